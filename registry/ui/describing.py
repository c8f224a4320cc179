"""Compositions in words: a name, what each is, how it differs from an earlier one, and its score with its sample."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.composition.found import OUTPUTS
from registry.composition.recipe.fields import default, listed, target_of
from registry.composition.recipe.recipe import Recipe
from registry.composition.recipe.shared_options import TRUNK_OPTIONS
from registry.errors import InvalidInputError
from registry.evaluation.stored import Score
from registry.io.display import counted, plain
from registry.methods.ensemble.output import ROUTINGS
from store.catalog import CompositionRecord

EARLIER = 200  # earlier compositions, the latest, among which a similar one is looked for
MOST_CHANGES = 3  # differences up to which a composition is described by another one
UNSTATED = ("to", "weights", TRUNK_OPTIONS, "computed", "fit", "bias", "coefficients")
"""Keys of a recipe that are not compared as they are."""


@dataclass(frozen=True)
class Difference:
    """The differences from an earlier composition, each as a few words: `router random instead of context`."""

    other: CompositionRecord
    words: Sequence[str]


@dataclass(frozen=True)
class Described:
    """A composition for a list, described in words."""

    record: CompositionRecord
    experts: Sequence[str]  # references; none of copies
    base: Sequence[str]  # the reference of its base model, if that is no expert of it
    copies: int | None  # number of its experts, where they are copies of its base model
    kind: str
    difference: Difference | None
    score: Score | None  # as a rule that of its widest evaluation


def title(record: CompositionRecord) -> str:
    """Return the name of a composition: that of the folder it was written to last, else its members."""
    name = Path(record.folders[-1]).name if record.folders else ""
    return name or ", ".join(record.members) or record.digest[:12]


def expert_names(record: CompositionRecord) -> tuple[list[str], list[str]]:
    """Return the references of a composition's experts (none of copies), and that of another base model, if any."""
    document = record.document
    names = set() if "from_base" in document else {one["name"] for one in document["members"]}
    experts = [ref for ref in record.members if ref.partition("@")[0] in names]
    return experts, [ref for ref in record.members if ref not in experts]


def output(document: Mapping[str, Any]) -> str:
    """Return what a composition is: `moe`, `dense`, …; of the first format's, a mixture."""
    return str(document["recipe"].get("to", OUTPUTS.default.name))


def kind(document: Mapping[str, Any]) -> str:
    """Return what a composition is, in a few words: `mixture · regmean · context, 1 per token`."""
    recipe, made = document["recipe"], target_of(document["recipe"])
    routing = str(recipe.get("routing", ""))
    parts = [
        made.kind,
        recipe.get("trunk"),
        ROUTINGS[routing].words if routing in ROUTINGS else routing,
        recipe.get("router") and "top_k" in recipe and f"{recipe['router']}, {recipe['top_k']} per token",
        recipe.get("refine") and f"refine {recipe['refine']}",
        "training" in document and "trained",
    ]
    return " · ".join(str(part) for part in parts if part)


def sentences(document: Mapping[str, Any]) -> list[str]:
    """Return how a composition was made, each step as a few words."""
    trained = ["trained further"] if "training" in document else []
    return [*target_of(document["recipe"]).sentences(document), *trained]


def stated(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a composition's recipe that are not at their defaults, as text."""
    recipe, to, count = document["recipe"], output(document), len(document["members"])
    fields = {key: value for key, value in recipe.items() if key not in UNSTATED}
    fields |= recipe.get(TRUNK_OPTIONS) or {}
    methods = (str(recipe.get("router")), str(recipe.get("trunk")), to)
    found = {}
    for name, value in fields.items():
        usual = default(name, *methods)
        if name == "top_k":
            usual = usual_top_k(recipe, count)
        if value is not None and value != usual:
            found[name] = plain(value)
    weights = recipe.get("weights") or {}
    return found | ({"weights": plain(weights)} if any(weight != 1 for weight in weights.values()) else {}) | {"to": to}


def usual_top_k(recipe: Mapping[str, Any], count: int) -> Any:
    """Return the experts per token of a recipe's document where it does not say so."""
    own = {name: recipe[name] for name in ("to", "router") if name in recipe}
    with suppress(InvalidInputError):
        return Recipe(**own).document([str(number) for number in range(count)]).get("top_k")
    return None


def set_in_recipe(document: Mapping[str, Any]) -> str:
    """Return the fields of a composition's recipe that are not at their defaults: `router random`, `default recipe`."""
    changed = _fields_changed(stated(document), {"to": OUTPUTS.default.name})
    return "; ".join(words for _, words in changed) or "default recipe"


def difference(
    record: CompositionRecord, earlier: Sequence[CompositionRecord], known: dict[str, dict[str, str]] | None = None
) -> Difference | None:
    """Return how a composition differs from the most similar earlier one, the latest of such; None without one.

    `earlier` are the compositions made before it, oldest first. `known` keeps what `stated` returned, by digest.
    """
    known = {} if known is None else known
    best: Difference | None = None
    least = MOST_CHANGES + 1
    for other in reversed(earlier):
        if other.digest != record.digest and _share_members(record, other):
            count, words = _changed(record, other, known)
            if 0 < count < least:
                least, best = count, Difference(other, tuple(words))
    return best


def changes(record: CompositionRecord, other: CompositionRecord) -> list[str]:
    """Return every difference of a composition from another one, however many, each as a few words."""
    return _changed(record, other, {})[1]


def describe(record: CompositionRecord, earlier: Sequence[CompositionRecord], score: Score | None) -> Described:
    """Return a composition for a list; `earlier` are the compositions made before it, oldest first."""
    experts, base = expert_names(record)
    copies = record.document.get("from_base")
    return Described(record, experts, base, copies, kind(record.document), difference(record, earlier), score)


def _changed(
    record: CompositionRecord, other: CompositionRecord, known: dict[str, dict[str, str]]
) -> tuple[int, list[str]]:
    """Return the number of differences of a composition from another, and their words."""
    count, words = _members_changed(record, other)
    if record.document.get("parent") == other.digest:
        return 1, ["trained further"]
    own, old = (known.get(one.digest) or known.setdefault(one.digest, stated(one.document)) for one in (record, other))
    fields = _fields_changed(own, old, record.document["recipe"])
    fields += _top_k_changed(record.document["recipe"], other.document["recipe"], {name for name, _ in fields})
    count += sum(MOST_CHANGES if name == "to" else 1 for name, _ in fields)
    if own["to"] != old["to"]:  # whose other fields have no part in the one or in the other
        fields = [(name, text) for name, text in fields if name == "to"]
    return count, [*words, *(text for _, text in fields)]


def _experts_by_name(record: CompositionRecord) -> dict[str, str]:
    return {ref.partition("@")[0]: ref for ref in expert_names(record)[0]}


def _share_members(record: CompositionRecord, other: CompositionRecord) -> bool:
    """Tell whether two compositions have enough members in common to describe one by the other."""
    if record.document.get("from_base") or other.document.get("from_base"):
        copies = all(one.document.get("from_base") for one in (record, other))
        return copies and record.members == other.members
    own, old = set(_experts_by_name(record)), set(_experts_by_name(other))
    added, removed, shared = own - old, old - own, own & old
    return bool(shared) and not (added and removed and len(shared) < len(added) + len(removed))


def _members_changed(record: CompositionRecord, other: CompositionRecord) -> tuple[int, list[str]]:
    """Return the number of differences between the experts of two compositions, and their words."""
    copies, earlier = (one.document.get("from_base") for one in (record, other))
    if copies or earlier:
        own, old = (f"{count} copies" if count else "experts" for count in (copies, earlier))
        return (0, []) if copies == earlier else (1, [f"{own} instead of {old}"])
    by_name, before = _experts_by_name(record), _experts_by_name(other)
    added = [by_name[name] for name in by_name if name not in before]
    removed = [before[name] for name in before if name not in by_name]
    replaced = [(by_name[name], before[name]) for name in by_name if before.get(name, by_name[name]) != by_name[name]]
    words = [f"without {listed(removed, 'and')}"] if removed else []
    words += [f"with {listed(added, 'and')} added"] if added else []
    words += [f"{new} in place of {earlier}" for new, earlier in replaced]
    return len(added) + len(removed) + len(replaced), words


def _top_k_changed(own: Mapping[str, Any], old: Mapping[str, Any], said: Collection[str]) -> list[tuple[str, str]]:
    """Return the experts per token where a changed router brings its own default."""
    new, before = own.get("top_k"), old.get("top_k")
    if "router" not in said or "top_k" in said or new == before or not new or not before:
        return []
    return [("top_k", f"{counted(new, 'expert')} per token instead of {before}")]


def _fields_changed(
    own: Mapping[str, str], old: Mapping[str, str], recipe: Mapping[str, Any] | None = None
) -> list[tuple[str, str]]:
    """Return the fields of two recipes that differ, each with words; `recipe` has the values that are defaults."""
    words = []
    for name in [*own, *(key for key in old if key not in own)]:
        if own.get(name) == old.get(name):
            continue
        label = name.replace("_", " ")
        if name == "to":
            words.append((name, OUTPUTS[own[name]].words if own[name] in OUTPUTS else own[name]))
        elif name not in own:
            value = (recipe or {}).get(name)
            now = "by default" if value is None or isinstance(value, bool) else plain(value)
            words.append((name, f"{label} {now} instead of {old[name]}"))
        else:
            words.append((name, f"{label} {own[name]}" + (f" instead of {old[name]}" if name in old else "")))
    return words
