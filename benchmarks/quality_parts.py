"""The parts of `quality.py`: each registers what it needs, composes, scores, and returns figures as plain JSON.

Reference rows are those of `reference.json` beside the experts, `reg`'s own names on the left.
"""

import filecmp
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from registry import PassSettings, Recipe, Registry, TestSettings
from registry.evaluation.methods import DENSE, METHODS
from registry.families.sites import MLP_INPUT
from registry.methods.moe.options import PAPER, SOLVES_AGAIN
from registry.statistics.file import FILE_NAME, Collected, save

Figures = dict[str, Any]
Part = Callable[["Place"], Figures]

FIVE = ("code", "math", "literature", "german", "biomed")
SIXTH = "history_philosophy"
TOKENS = PassSettings().tokens
UNBALANCED = "math"
"""The expert that is also registered with ten times the tokens."""

SCHEDULES = (
    FIVE,
    ("biomed", "german", "literature", "math", "code"),
    ("literature", "code", "biomed", "math", "german"),
)


def _paper(top_k: int = 1, **fields: Any) -> Recipe:
    """Return a recipe whose routers are as the DUME paper has them; top-2 is at temperature 0.1."""
    return Recipe(router=SOLVES_AGAIN, **{**PAPER, "top_k": top_k, "temperature": 0.1 if top_k > 1 else 1.0} | fields)


REFERENCE = {
    "base": "base",
    **{f"expert {name}": f"expert {name}" for name in FIVE},
    "average": "average",
    "oracle-mean": "ORACLE mean",
    "oracle-base": "ORACLE base",
    "oracle": "ORACLE regmean",
    "random": "random routing (mean)",
    "dume": "mean: retaken",
    "mean-own": "mean: own",
    "base-own": "base: own",
    "ties": "ties.8: own",
    "regmean-alpha-0.9": "regmean a=0.9: own",
    "regmean-paper": "regmean: own",
    "regmean-paper-top-2": "regmean: own k=2 tau.1",
}
"""Row of the table → row of the reference."""

MORE = {
    "mean: self-consistent": _paper(trunk="mean", refine=2),
    "mean: own k=2 tau.1": _paper(top_k=2, trunk="mean"),
    "base: retaken": _paper(trunk="base", refine=1),
    "base: self-consistent": _paper(trunk="base", refine=2),
    "base: own k=2 tau.1": _paper(top_k=2, trunk="base"),
    "regmean: retaken": _paper(refine=1),
    "regmean: self-consistent": _paper(refine=2),
    "regmean a=0.9: own": _paper(trunk_options={"alpha": 0.9}),
    "ties.8: own": _paper(trunk="ties"),
}
"""Row of the reference → its recipe, where no method of the table is it."""

MORE_ORACLES = {
    "regmean a=0.9: own oracle": "ORACLE regmean a=0.9",
    "ties.8: own oracle": "ORACLE ties.8",
}
"""Oracle row of these → row of the reference."""

SAMPLED_REFERENCE = {"regmean-paper": "regmean: self-generated", "mean-own": "mean: self-generated"}

FAR = ("c_headers", "chinese")
"""Experts that are far from the five."""

_FAR = (
    "dume",
    "mean-own",
    "regmean-paper",
    "regmean-paper-top-2",
    "regmean-top-1",
    "regmean",
    "refine-2",
    "btm",
    "context",
    "context-whole",
    "context-shared",
    "oracle-context",
    "prompt-perplexity",
)
_APART: dict[str, tuple[str, ...]] = {
    "refined": ("dume", "refine-1", "refine-2", "domain-embedding"),
    "dume+": ("dume+",),
    "router-ft": ("router-ft",),
    "ensembles": ("btm", "btm-top-1", "perplexity", "prompt-perplexity", "task-vector"),
    "dense": DENSE,
    "seeds": ("random",),
}
"""The table in pieces that take minutes each; every other method is in the piece `solved`."""


@dataclass(frozen=True)
class Place:
    """Where everything is.

    Attributes:
        shared: the folder with `experts` and `corpora`.
        home: the registry of the experts, made where it is absent.
        sampled: that of those registered without text.
        far: a folder of far experts, and `corpora` of their text; None for none.
        settings: how test text is scored.
    """

    shared: Path
    home: Path
    sampled: Path
    far: Path | None
    settings: TestSettings

    @property
    def distant(self) -> list[str]:
        """Names of the far experts."""
        if self.far is None:
            return []
        return sorted(folder.name for folder in self.far.iterdir() if (folder / "config.json").is_file())

    def checkpoint(self, name: str) -> Path:
        """Return an expert's or the base model's folder."""
        return self.far / name if self.far and name in self.distant else self.shared / "experts" / name

    def text(self, name: str, split: str) -> list[Path]:
        """Return the files of a domain's `train` or `test` text."""
        above = self.far if self.far and name in self.distant else self.shared
        return [above / "corpora" / name / f"{split}.jsonl.gz"]

    def test(self, names: Sequence[str]) -> dict[str, list[Path]]:
        """Return domain → test text."""
        return {name: self.text(name, "test") for name in names}


def add(registry: Registry, place: Place, names: Sequence[str], *, sampled: bool = False) -> None:
    """Register the base model and experts with their train text, or with none, as far as they are not there."""
    present = {version.name for version in registry.versions()}
    if "base" not in present:
        registry.add_base("base", place.checkpoint("base"))
    for name in names:
        if name not in present:
            data = [] if sampled else place.text(name, "train")
            registry.add_expert(name, place.checkpoint(name), data=data, keep_calibration=True)


def methods(place: Place, home: Path, experts: Sequence[str], names: Sequence[str]) -> Figures:
    """Return the rows of methods."""
    with Registry(home) as registry:
        refs = [f"{name}@1" for name in experts]
        rows = registry.evaluate([], place.test(experts), place.settings, experts=refs, methods=names)
    return {"rows": [row.document() for row in rows]}


def recipes(
    registry: Registry,
    place: Place,
    experts: Sequence[str],
    wanted: Mapping[str, tuple[Sequence[str], Recipe]],
    oracle: bool = False,
) -> list[Figures]:
    """Return the rows of compositions by recipes, name → (members, recipe); with `oracle` also of oracle routing."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = []
        for number, (refs, recipe) in enumerate(wanted.values()):
            folders.append(Path(scratch) / str(number))
            registry.write(registry.plan(refs, recipe), folders[-1])
        rows = registry.evaluate(folders, place.test(experts), place.settings, oracle=oracle)
    named = {str(number): name for number, name in enumerate(wanted)}
    named |= {f"{number} oracle": f"{name} oracle" for number, name in enumerate(wanted)}
    return [{**row.document(), "name": named[row.name]} for row in rows]


def table(place: Place, names: Sequence[str]) -> Figures:
    """Return rows of the table of all methods."""
    return methods(place, place.home, FIVE, names)


def sampled(place: Place) -> Figures:
    """Return the rows of experts registered without any text."""
    with Registry(place.sampled) as registry:
        add(registry, place, FIVE, sampled=True)
    return methods(place, place.sampled, FIVE, ("mean-own", "regmean-paper", "regmean"))


def register(place: Place) -> Figures:
    """Register the five experts with their text."""
    with Registry(place.home) as registry:
        add(registry, place, FIVE)
    return {}


def more(place: Place) -> Figures:
    """Return the reference's rows that are no method's."""
    refs = [f"{name}@1" for name in FIVE]
    upper = [name.removesuffix(" oracle") for name in MORE_ORACLES]
    with Registry(place.home) as registry:
        plain = {name: (refs, recipe) for name, recipe in MORE.items() if name not in upper}
        rows = recipes(registry, place, FIVE, plain)
        rows += recipes(registry, place, FIVE, {name: (refs, MORE[name]) for name in upper}, oracle=True)
    return {"rows": [{**row, "name": MORE_ORACLES.get(row["name"], row["name"])} for row in rows]}


def six(place: Place) -> Figures:
    """Return the rows of six experts, the sixth close to another."""
    with Registry(place.home) as registry:
        add(registry, place, [SIXTH])
    names = ("oracle", "regmean-paper", "regmean", "context", "context-whole", "refine-2")
    return methods(place, place.home, (*FIVE, SIXTH), names)


def far(place: Place) -> Figures:
    """Return the rows of the five with experts that are far from them."""
    distant = [name for name in FAR if name in place.distant]
    with Registry(place.home) as registry:
        add(registry, place, distant)
    names = ("base", "average", "oracle-mean", "oracle", *_FAR)
    return methods(place, place.home, (*FIVE, *distant), names)


def _halved(place: Place) -> Place:
    """Return a place where half the windows are scored: for figures that are compared with one another alone."""
    return replace(place, settings=replace(place.settings, windows=max(1, place.settings.windows // 2)))


def tokens(place: Place) -> Figures:
    """Return what one expert's ten times as many tokens do, unbalanced and balanced."""
    ref = f"{UNBALANCED}@2"
    equal = [f"{name}@1" for name in FIVE]
    unequal = [ref if name == UNBALANCED else f"{name}@1" for name in FIVE]
    with Registry(place.home) as registry:
        if ref not in [version.ref for version in registry.versions()]:
            settings = PassSettings(tokens=10 * TOKENS)
            data = place.text(UNBALANCED, "train")
            registry.add_expert(UNBALANCED, place.checkpoint(UNBALANCED), data=data, settings=settings)
        count = registry.member(registry.resolve(ref)).tokens
        rows = recipes(registry, place, FIVE, {"reference": (equal, Recipe(router="ridge"))})
        wanted = {
            "unbalanced": (unequal, Recipe(router="ridge")),
            "balanced": (unequal, Recipe(router="ridge", balance="tokens")),
        }
        rows += recipes(registry, place, FIVE, wanted)
    return {"rows": rows, "expert": UNBALANCED, "tokens": count, "others": TOKENS}


def continual(place: Place) -> Figures:
    """Return the figures of three schedules, each in a registry of its own, and whether they end at the same bytes."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        with Registry(place.home) as registry:
            for name in FIVE:
                _travelling(registry, place, name, work / "checkpoints" / name)
        finals, schedules = [], []
        for number, schedule in enumerate(SCHEDULES):
            with Registry(work / f"home{number}") as registry:
                registry.add_base("base", place.checkpoint("base"))
                for name in schedule:
                    registry.add_expert(name, work / "checkpoints" / name)
                settings = _halved(place).settings
                schedules.append(registry.continual(schedule, place.test(schedule), settings).document())
                finals.append(work / f"final{number}")
                registry.compose(schedule, finals[-1])
        names = sorted(file.name for file in finals[0].iterdir())
        same = all(
            sorted(file.name for file in other.iterdir()) == names
            and filecmp.cmpfiles(finals[0], other, names, shallow=False) == (names, [], [])
            for other in finals[1:]
        )
    return {"schedules": schedules, "identical": same, "files": names}


def _travelling(registry: Registry, place: Place, name: str, out: Path) -> None:
    """Write a checkpoint with the statistics that are registered of it, so that it registers without text or a pass."""
    shutil.copytree(place.checkpoint(name), out)
    member = registry.member(registry.resolve(f"{name}@1"))
    taken = next(one for one in member.version.statistics if one.site == MLP_INPUT)
    sites = {
        one.site: tuple(member.statistics(one.site, layer) for layer in range(_layers_of(member, one.site)))
        for one in member.version.statistics
    }
    collected = Collected(
        member.content["weights"],
        sites,
        taken.calibration_digest,
        taken.calibration_label,
        member.content["computed"],
        member.calibration,
        token_counts=member.token_counts,
    )
    save(out / FILE_NAME, collected)


def _layers_of(member: Any, site: str) -> int:
    prefix = f"{site}/gram/"
    return sum(name.startswith(prefix) for name in member.names("statistics"))


def _pieces() -> dict[str, Part]:
    known = {name for names in _APART.values() for name in names}
    pieces = {"solved": tuple(name for name in METHODS if name not in known), **_APART}
    return {f"table-{name}": partial(table, names=names) for name, names in pieces.items()}


REGISTERING: dict[str, Part] = {"register": register}
"""Parts that others need."""

REGISTERS_ITSELF = ("sampled",)
"""Parts that need none of those."""

PARTS: dict[str, Part] = {
    "far": far,
    "reference": more,
    "six": six,
    **_pieces(),
    "continual": continual,
    "tokens": tokens,
    "sampled": sampled,
}
"""Name → part, the longest first; those of a section are named as it up to the first hyphen."""
