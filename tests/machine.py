"""Drives a whole registry at random and holds it against a model in plain Python after every step.

    python -m tests.machine [--examples 500] [--steps 30] [--seed 0] [--names 3] [--scratch DIR] [--untrained]

Steps add experts and base models (also again), those of a SIMoE and one of another architecture, train soups, point
aliases and take them away, compose (also by fits, of copies of the base model, of soups, SIMoEs and members of several
architectures), opt versions and names out, purge, collect garbage, reopen, verify and reproduce. Any that writes may be
killed on its way, in a process of its own; what it leaves must then be one of the states that lie between its beginning
and its end.

After every step the registry must hold what the model holds, on disk what the catalog needs, and each composition
that was made last, of members that are active still, must be, byte by byte, the one of a registry that never held
anything but these members. With `--untrained` no step trains or fits: the SIMoE is trained before the first. Prints one
line of JSON: examples, steps, kills, compositions compared, fresh compositions.
"""

import json
import resource
import shutil
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from registry import Registry
from registry.errors import ConflictError
from tests import tiny
from tests.model import Model, Version, observed
from tests.running import command_line, tell
from tests.tiny import BASE, BASE_NAME, CONTENTS, PARTS, RECIPES, SOUP, SPARSE, WIDE, WITH_BASE, Fresh, Member, Pool
from tests.zygote import Zygote

NAMES = ("code", "math", "law")
ALIASES = ("stable", "best")
FOLDERS = ("moe", "other")
KNOWN = 2
"""Compositions that are made again after every step: those asked for last."""

any_name = st.sampled_from(NAMES)
any_content = st.sampled_from(CONTENTS)
any_alias = st.sampled_from(ALIASES)
any_other = st.sampled_from((WIDE, *SPARSE))
any_recipe = st.sampled_from(list(RECIPES))
any_number = st.integers(0, 11)
any_numbers = st.lists(any_number, min_size=1, max_size=3)
killed = st.one_of(st.none(), st.none(), st.floats(0, 1, exclude_max=True))
"""When a command is killed: not at all, or after a share of its steps."""

STEPS = {"add": 160, "alias": 40, "compose": 150, "gc": 35, "opt-out": 160, "remove-alias": 27, "train-soup": 430}
"""Command → about as many steps as it takes: a figure that changed with what ran before would make examples flaky."""


class Machine(RuleBasedStateMachine):
    """One registry, its model, and what its compositions must be; `pool`, `fresh` and `zygote` are set by `drive`."""

    pool: Pool
    fresh: Fresh
    zygote: Zygote
    scratch: Path
    names: tuple[str, ...]
    steps: int
    untrained: bool
    counted: Counter[str]
    arrays: dict[str, frozenset[str]]

    def __init__(self) -> None:
        super().__init__()
        self.done = 0
        self.home = self.scratch / "home"
        shutil.copytree(self.scratch / "start", self.home)  # making a catalog takes longer than all else
        self.registry = Registry(self.home)
        based = Model().add(BASE_NAME, "base", BASE, None, {})[-1]
        self.model = based.add(self.names[0], "expert", CONTENTS[0], None, {})[-1]
        self.known: list[tuple[tuple[str, ...], str]] = []
        self.folders: dict[str, tuple[frozenset[Member], str] | None] = dict.fromkeys(FOLDERS)
        self.on_disk: frozenset[str] = frozenset()
        self.was_killed = self.changed = False
        self._learn()

    def teardown(self) -> None:
        """Look at all of it once more, and delete it."""
        try:
            self.verify()
            self.counted["steps"] += self.done
            self.counted["examples"] += self.done >= self.steps
        finally:
            self.registry.close()
            shutil.rmtree(self.home)

    # -- steps -------------------------------------------------------------------------------------------------------

    @initialize(recipe=any_recipe)
    def begin(self, recipe: str) -> None:
        self._compose(self._experts(), [0], recipe, None)

    @rule(name=any_name, content=any_content, alias=st.none() | any_alias, tagged=st.booleans(), at=killed)
    def add(self, name: str, content: str, alias: str | None, tagged: bool, at: float | None) -> None:
        self._add(self.names[NAMES.index(name) % len(self.names)], "expert", content, alias, tagged, at)

    @rule(tagged=st.booleans(), at=killed)
    def add_base(self, tagged: bool, at: float | None) -> None:
        self._add(BASE_NAME, "base", BASE, None, tagged, at)

    @rule(name=any_other, tagged=st.booleans(), at=killed)
    def add_other(self, name: str, tagged: bool, at: float | None) -> None:
        self._add(name, "expert", name, None, tagged, at)

    @precondition(lambda self: not self.untrained)
    @rule(at=killed)
    def train_soup(self, at: float | None) -> None:
        checkpoints = {name: str(path) for name, path in self.pool.checkpoints.items()}
        self._do({"do": "train-soup", "checkpoints": checkpoints}, self.model.train_soup((SOUP, *PARTS)), at)

    @precondition(lambda self: self.model.active())
    @rule(number=any_number, alias=any_alias, at=killed)
    def alias(self, number: int, alias: str, at: float | None) -> None:
        ref = self._one(self.model.active(), number).ref
        self._do({"do": "alias", "ref": ref, "alias": alias}, self.model.alias(ref, alias), at)

    @precondition(lambda self: self.model.aliases)
    @rule(number=any_number, at=killed)
    def remove_alias(self, number: int, at: float | None) -> None:
        name, alias = self._one(sorted(self.model.aliases), number)
        self._do({"do": "remove-alias", "name": name, "alias": alias}, self.model.remove_alias(name, alias), at)

    @precondition(lambda self: self._experts())
    @rule(numbers=any_numbers, recipe=any_recipe, at=killed)
    def compose(self, numbers: list[int], recipe: str, at: float | None) -> None:
        self._compose(self._experts(), numbers, recipe, at)

    @precondition(lambda self: self._named(SPARSE))
    @rule(numbers=any_numbers, recipe=st.sampled_from(tiny.FOR_SPARSE), others=st.booleans(), at=killed)
    def compose_sparse(self, numbers: list[int], recipe: str, others: bool, at: float | None) -> None:
        if self._base() is None:
            recipe = "ensemble"
        some = self._named(SPARSE) + (self._experts() if others and recipe != "simoe" else [])
        self.counted["of a SIMoE"] += 1
        self._compose(some, numbers, recipe, at)

    @precondition(lambda self: self._named((WIDE,)) and self._experts())
    @rule(numbers=any_numbers, recipe=st.sampled_from(tiny.FOR_SEVERAL), at=killed)
    def compose_several(self, numbers: list[int], recipe: str, at: float | None) -> None:
        experts, wide = self._experts(), self._named((WIDE,))
        self.counted["of several architectures"] += 1
        self._compose([*experts, *wide], [len(experts), *(number % len(experts) for number in numbers)], recipe, at)

    def _compose(self, some: list[Version], numbers: list[int], recipe: str, at: float | None) -> None:
        """Compose the experts of these numbers among some."""
        if recipe in WITH_BASE and self._base() is None:
            recipe = "mean"
        chosen: dict[str, Version] = {}
        for number in numbers:
            version = self._one(some, number)
            chosen.setdefault(version.name, version)
        refs = tuple(version.ref for version in chosen.values())
        digest = self._plan(refs, recipe).digest
        self._write(list(chosen.values()), recipe, FOLDERS[numbers[0] % len(FOLDERS)], digest, at)
        self.known = [*(one for one in self.known if one != (refs, recipe)), (refs, recipe)][-KNOWN:]

    @precondition(lambda self: self._base())
    @rule(folder=st.sampled_from(FOLDERS), at=killed)
    def compose_copies(self, folder: str, at: float | None) -> None:
        self._write([], "copies", folder, None, at)

    @precondition(lambda self: not self.untrained and self._base() and self._experts())
    @rule(number=any_number, folder=st.sampled_from(FOLDERS), at=killed)
    def fit(self, number: int, folder: str, at: float | None) -> None:
        self._write([self._one(self._experts(), number)], "fit", folder, None, at)

    @precondition(lambda self: any(version.name == SOUP for version in self.model.active("base")))
    @rule(folder=st.sampled_from(FOLDERS), at=killed)
    def instantiate(self, folder: str, at: float | None) -> None:
        parts = [version for version in self.model.active() if version.name in PARTS]
        if len(parts) == len(PARTS):
            self._write(parts, SOUP, folder, None, at)
            return
        with pytest.raises(ConflictError, match="was opted out or is not registered here"):
            tiny.make(self.registry, [], self.home / "none", SOUP, self.pool.text)

    def _write(self, chosen: list[Version], recipe: str, folder: str, digest: str | None, at: float | None) -> None:
        """Compose into a folder, and look at what is there then; the digest is a fresh registry's if none is given."""
        refs = tuple(version.ref for version in chosen)
        expected = frozenset((version.name, version.content) for version in chosen), recipe
        made = str(json.loads(self.fresh.files(*expected)["composition.json"])["digest"])
        base = next((one for one in self.model.active("base") if one.name == self._beside(recipe)), None)
        used = frozenset(refs) | ({base.ref} if base else frozenset())
        before = self.folders[folder]
        command = {"do": "compose", "refs": refs, "folder": folder, "recipe": recipe, "text": str(self.pool.text)}
        if recipe not in RECIPES:
            self.counted[recipe] += 1
        finished = self._do(command, self.model.compose(made, used), at)
        if not finished:
            self.folders[folder] = self._found(folder, before, expected)
        else:
            self.folders[folder] = expected
            assert not list(self.home.glob(f".{folder}.*"))
        self._check_folder(folder)
        assert digest in (None, made)

    @precondition(lambda self: self.model.versions)
    @rule(number=any_number, whole=st.booleans(), purge=st.booleans(), at=killed)
    def opt_out(self, number: int, whole: bool, purge: bool, at: float | None) -> None:
        version = self._one(self.model.versions, number)
        refs = [one.ref for one in self.model.versions if one.name == version.name] if whole else [version.ref]
        states = self.model.opt_out(refs, purge=purge)
        if purge and self._garbage(states[-1]):
            states += states[-1].collect()[1:]
        command = {"do": "opt-out", "ref": version.name if whole else version.ref, "purge": purge}
        if self._do(command, states, at) and purge:
            assert self.on_disk == self._needed(self.model)

    @rule(at=killed)
    def gc(self, at: float | None) -> None:
        states = self.model.collect() if self._garbage(self.model) else [self.model]
        if self._do({"do": "gc"}, states, at):
            assert self.on_disk == self._needed(self.model)

    @rule()
    def reopen(self) -> None:
        self.registry.close()
        self.registry = Registry(self.home)
        self.changed = True

    @rule(folder=st.sampled_from(FOLDERS))
    def reproduce(self, folder: str) -> None:
        made = self.folders[folder]
        if made is None:
            return
        members, recipe = made
        active = {(version.name, version.content) for version in self.model.active()}
        bases = {version.name for version in self.model.active("base")} | {None}
        if members <= active and self._beside(recipe) in bases:
            assert self.registry.reproduce(self.home / folder).is_same
            self.counted["compared"] += 1
        else:
            with pytest.raises(ConflictError, match="opted out"):
                self.registry.reproduce(self.home / folder)

    # -- after every step --------------------------------------------------------------------------------------------

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        self.done += 1
        found, expected = observed(self.registry), self.model.state()
        assert found == expected, (found, expected)
        self._learn()
        self.on_disk = frozenset(self.registry.arrays.digests())
        needed = self._needed(self.model)
        assert needed <= self.on_disk
        assert self.was_killed or self.on_disk == needed
        chain = self.registry.catalog.chain()
        assert (chain.broken, chain.events) == (None, len(self.model.events))

    @invariant()
    def what_was_opted_out_cannot_be_composed(self) -> None:
        for version in self.model.versions:
            if version.state != "active" and version.kind == "expert":
                with pytest.raises(ConflictError, match="opted out"):
                    self.registry.plan([version.ref])

    @invariant()
    def compositions_are_those_of_a_fresh_registry(self) -> None:
        if not self.changed:
            return  # nothing was written since they were compared
        self.changed = False
        active = {version.ref: (version.name, version.content) for version in self.model.active()}
        for refs, recipe in self.known:
            if not active.keys() >= set(refs) or (recipe in WITH_BASE and self._base() is None):
                continue
            plan = self._plan(refs, recipe)
            self.registry.write(plan, self.home / "again")
            found = tiny.tree(self.home / "again")
            shutil.rmtree(self.home / "again")
            assert found == self.fresh.files(frozenset(active[ref] for ref in refs), recipe), (refs, recipe)
            self.counted["compared"] += 1

    # -- within ------------------------------------------------------------------------------------------------------

    def _experts(self) -> list[Version]:
        """Return the experts that can be composed by any of `RECIPES`: those trained together have counts alone."""
        return self._named(self.names)

    def _named(self, names: Sequence[str]) -> list[Version]:
        """Return the active experts of some names."""
        return [version for version in self.model.active() if version.name in names]

    def _base(self) -> Version | None:
        return next((version for version in self.model.active("base") if version.name == BASE_NAME), None)

    @staticmethod
    def _beside(recipe: str) -> str | None:
        """Return the name of the base model that takes part."""
        return SOUP if recipe == SOUP else BASE_NAME if recipe in WITH_BASE else None

    def _plan(self, refs: Sequence[str], recipe: str) -> Any:
        names = [ref.partition("@")[0] for ref in refs]
        return self.registry.plan(refs, tiny.ALL_RECIPES[recipe](names), base=self._beside(recipe))

    def _add(self, name: str, kind: str, content: str, alias: str | None, tagged: bool, at: float | None) -> None:
        tags = {"from": content} if tagged else {}
        checkpoint = str(self.pool.checkpoints[content])
        command = {"do": "add", "kind": kind, "name": name, "checkpoint": checkpoint, "alias": alias, "tags": tags}
        self._do(command, self.model.add(name, kind, content, alias, tags), at)

    def _do(self, command: dict[str, Any], states: list[Model], at: float | None) -> bool:
        """Do a command, killed after a share of its steps where `at` says so; tell whether it came to its end."""
        self.changed = True
        self.counted[command["do"]] += 1
        dead = False
        if at is None:
            tiny.perform(self.home, command, self.registry)
        else:
            self.registry.close()
            dead = self.zygote.run(self.home, command, int(at * STEPS[command["do"]]))[0]
            self.registry = Registry(self.home)
        if not dead:
            self.model = states[-1]
            self.on_disk = frozenset(self.registry.arrays.digests())
            return True
        self.counted["kills"] += 1
        self.was_killed = True
        found = observed(self.registry)
        self.model = next((state for state in states if state.state() == found), self.model)
        self.verify(but=command.get("folder"))  # what that holds is found out next
        return False

    def _found(
        self, folder: str, before: tuple[frozenset[Member], str] | None, expected: tuple[frozenset[Member], str]
    ) -> tuple[frozenset[Member], str] | None:
        """Return what a killed composition left in its folder: what was there, what was to be, or nothing."""
        place = self.home / folder
        if not place.exists():
            aside = self.home / f".{folder}.old"
            assert (aside.exists()) == (before is not None)
            return None
        found = tiny.tree(place)
        return next(one for one in (before, expected) if one is not None and found == self.fresh.files(*one))

    def _check_folder(self, folder: str) -> None:
        if (made := self.folders[folder]) is not None:
            assert tiny.tree(self.home / folder) == self.fresh.files(*made)
            self.counted["compared"] += 1

    @rule()
    def verify(self, but: str | None = None) -> None:
        self.counted["verified"] += 1
        result = self.registry.verify()
        assert result.problems == ()
        assert self.was_killed or result.orphans == 0
        for folder in FOLDERS:
            if folder != but:
                self._check_folder(folder)

    def _learn(self) -> None:
        """Note the arrays of each checkpoint when it is first seen, in whatever registry."""
        unknown = {version.content for version in self.model.versions if version.state != "purged"} - self.arrays.keys()
        for version in self.registry.versions(everything=True) if unknown else ():
            known = self.model.named(version.ref)
            if known.content in unknown:
                self.arrays[known.content] = frozenset(link.digest for link in self.registry.arrays_of(version))

    def _needed(self, model: Model) -> frozenset[str]:
        return frozenset().union(*(self.arrays[content] for content in model.contents()))

    def _garbage(self, after: Model) -> frozenset[str]:
        there = frozenset(self.registry.arrays.digests()) | frozenset(self.registry.catalog.unreferenced())
        return (there | self._needed(self.model)) - self._needed(after)

    @staticmethod
    def _one(choices: list[Any], number: int) -> Any:
        return choices[number % len(choices)]


def drive(given: Namespace, scratch: Path) -> dict[str, Any]:
    """Run the machine as the command line asks, and return what there is to tell of it."""
    torch.set_num_threads(1)  # no thread pool may exist when a process forks
    began = time.monotonic()
    zygote = Zygote(tiny.perform)
    pool = tiny.with_others(tiny.make_pool(scratch / "pool"), scratch / "pool")
    with Registry(scratch / "start") as registry:
        registry.add_base(BASE_NAME, pool.checkpoints[BASE])
        registry.add_expert(NAMES[0], pool.checkpoints[CONTENTS[0]])
    fresh, counted = Fresh(pool, scratch / "fresh", given.seed), Counter[str]()
    own = {"pool": pool, "fresh": fresh, "zygote": zygote, "scratch": scratch, "counted": counted}
    own |= {"names": NAMES[: given.names], "untrained": given.untrained, "steps": given.steps}
    driven = seed(given.seed)(type("Driven", (Machine,), own | {"arrays": {}}))
    profile = settings(
        max_examples=given.examples,
        stateful_step_count=given.steps,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(driven, settings=profile, _min_steps=given.steps)
    finally:
        zygote.close()
    used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = {"seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(used, 1)}
    return dict(sorted(counted.items())) | {"fresh": fresh.made} | seconds


def main() -> None:
    """Do all of it."""
    parser = command_line(__doc__, examples=500, steps=30, seed=0, names=len(NAMES))
    parser.add_argument("--untrained", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reg-machine-", dir=given.scratch) as scratch:
        tell(drive(given, Path(scratch)))


if __name__ == "__main__":
    main()
