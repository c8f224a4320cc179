"""Options of methods: the kind and limits of a value, its default, and where it has a part."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from numbers import Integral, Real
from typing import Any

from registry.errors import InvalidInputError
from registry.io.display import plain, quoted
from registry.io.untrusted import NUMBER, NUMBERS, SWITCH, TEXT, WHOLE, Kind, maybe
from registry.names.suggest import suggest

_LARGEST_WHOLE = 2**53
_LONGEST_TEXT = 100


class OptionKind(Enum):
    """The values of an option, in words."""

    CHOICE = "one of some words"
    NUMBER = "a finite number"
    WHOLE = "a whole number"
    SWITCH = "true or false"
    BY_MEMBER = "numbers by member"
    TEXT = "text"


@dataclass(frozen=True)
class Limits:
    """The least and the largest value, infinite where there is no limit; with `above` `least` itself is too small."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False

    def hold(self, value: float) -> bool:
        """Return whether `value` is within the limits."""
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def words(self, kind: str) -> str:
        """Return the requirement on a value of some kind, for messages."""
        if math.isfinite(self.most):
            return f"{kind} from {self.least:g} to {self.most:g}"
        if not math.isfinite(self.least):
            return kind
        return f"{kind}, " + (f"more than {self.least:g}" if self.above else f"{self.least:g} or more")


@dataclass(frozen=True)
class Option:
    """One option of a method, which is a field of the recipes that use the method.

    Attributes:
        name: in recipes, in recipe files, and with `--` on the command line.
        kind: what its values are.
        help: what it does, for the command line. Where it begins with a small letter, the methods that have it are put
            before it; `{choices}` stands for these.
        metavar: what the command line's help calls a value.
        outputs: the outputs that it has a part in; found from the methods.
        only_with: other field → the methods of that field with which this one has a part, where not all.
        or_with: other fields of which any, where given, gives this one a part whatever `only_with` says.
        default: its value where nothing is given; None where the program decides.
        default_with: output or method → the default there, where it differs.
        unset: what the program decides where nothing is given, in words.
        unset_with: output → the same there, where it differs.
        choices: the words to choose from.
        limits: of a number, or of each number by member.
        noun: what messages call it.
        group: the key of the recipe that holds it, where it is not a key of its own.
        usual: of numbers by member: the number of a member that has none.
        is_later: documents have it only where it is not at its default, so that earlier ones keep their digest.
        stands_for: (field, value) that a switch is short for; recipes hold that instead.
        label: beside the field in the form of the web pages; empty where the form does not have it.
        note: below the field in the form.
        advanced: it stands under "More options" in the form, and only `--help-all` lists it.
    """

    name: str
    kind: OptionKind
    help: str
    metavar: str
    outputs: tuple[str, ...] = ()
    only_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    or_with: tuple[str, ...] = ()
    default: Any = None
    default_with: Mapping[str, Any] = field(default_factory=dict)
    unset: str = ""
    unset_with: Mapping[str, str] = field(default_factory=dict)
    choices: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    noun: str = ""
    group: str = ""
    usual: float = 1.0
    is_later: bool = False
    stands_for: tuple[str, str] | None = None
    label: str = ""
    note: str = ""
    advanced: bool = False

    @property
    def option(self) -> str:
        """Its name on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def key(self) -> str:
        """Its place in recipe files: `lam`, `trunk_options.alpha`."""
        return f"{self.group}.{self.name}" if self.group else self.name

    @property
    def called(self) -> str:
        """Its name in messages."""
        return self.noun or self.name

    @property
    def default_text(self) -> str:
        """The default as people read it."""
        own = self.unset if self.default in (None, {}) else plain(self.default)
        unset = {method: self.unset_with.get(method, self.unset) for method in self.default_with}
        others = {one: unset[one] if value is None else plain(value) for one, value in self.default_with.items()}
        return "; ".join([own, *(f"with {method} {value}" for method, value in others.items())])

    @property
    def words(self) -> str:
        """Requirement on a value, for messages."""
        if self.kind in (OptionKind.NUMBER, OptionKind.WHOLE):
            return self.limits.words(self.kind.value)
        return (
            f"printable text of at most {_LONGEST_TEXT} characters" if self.kind is OptionKind.TEXT else self.kind.value
        )

    def problem(self, value: Any) -> tuple[str, str] | None:
        """Return what is wrong with a value, and a hint; None where nothing is."""
        if value is None and self.default is None:
            return None
        if self.kind is OptionKind.CHOICE:
            if isinstance(value, str) and value in self.choices:
                return None
            near = suggest(value, self.choices) if isinstance(value, str) else ""
            message = f"{self.called} {quoted(value)} is not one of {', '.join(self.choices)}{near}"
            return message, f"choose one of them: {self.name}={self.choices[0]!r}"
        hint = f"the default is {self.default_text}"
        if self.kind is OptionKind.BY_MEMBER:
            return self._problem_by_member(value, hint)
        if self._holds(value):
            return None
        return f"{self.called} is {quoted(value)}, it must be {self.words}", hint

    def typed(self, value: Any) -> Any:
        """Return a value that has no problem with its numbers as floats, where they may have a fraction."""
        if self.kind is OptionKind.BY_MEMBER:
            return {member: float(number) for member, number in value.items()}
        return float(value) if self.kind is OptionKind.NUMBER else value

    def _problem_by_member(self, value: Any, hint: str) -> tuple[str, str] | None:
        if not isinstance(value, Mapping) or not all(isinstance(member, str) for member in value):
            return f"{self.name} is {quoted(value)}, it must be {self.kind.value}", "write it as NAME: NUMBER"
        for member, number in value.items():
            if not _is_number(number, self.limits):
                words = self.limits.words(OptionKind.NUMBER.value)
                fitting = hint if self.unset != "none" else f"such as {self.option} {member}=0.5"
                return f"the {self.called} of {member} is {quoted(number)}, it must be {words}", fitting
        return None

    def _holds(self, value: Any) -> bool:
        if self.kind is OptionKind.NUMBER:
            return _is_number(value, self.limits)
        if self.kind is OptionKind.WHOLE:
            whole = isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) <= _LARGEST_WHOLE
            return whole and self.limits.hold(float(value))
        if self.kind is OptionKind.SWITCH:
            return isinstance(value, bool)
        return isinstance(value, str) and value.isprintable() and 0 < len(value) <= _LONGEST_TEXT

    @property
    def document_kind(self) -> Kind:
        """Kind of its value in a `composition.json` that has it."""
        kinds = {
            OptionKind.NUMBER: NUMBER,
            OptionKind.WHOLE: WHOLE,
            OptionKind.SWITCH: SWITCH,
            OptionKind.BY_MEMBER: NUMBERS,
        }
        kind = kinds.get(self.kind, TEXT)
        return maybe(kind) if self.default is None and self.kind is OptionKind.CHOICE else kind

    def written(self, value: Any, names: Sequence[str]) -> Any:
        """Return a value as `composition.json` holds it: of numbers by member, one for each of `names`."""
        if self.kind is OptionKind.BY_MEMBER:
            return {name: float(value.get(name, self.usual)) for name in names}
        return float(value) if self.kind is OptionKind.NUMBER else value


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a recipe; of the `fields` at fault the first one is to blame most."""

    fields: tuple[str, ...]
    message: str
    hint: str

    def error(self, where: str = "") -> InvalidInputError:
        """Return the error to raise."""
        return InvalidInputError(f"{where}{self.message}", self.hint)


def _is_number(value: Any, limits: Limits) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        number = float(value)
    except OverflowError:
        return False
    return math.isfinite(number) and limits.hold(number)
