"""Methods by name: the built-in ones, and those of other packages.

A package declares its methods as entry points of the group `reg.methods`. An entry point names a class of `Output`,
`Trunk` or `Router`. Nothing is loaded before a name is looked up.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from registry.built_in import METHODS, instances
from registry.composition.method import Method, Router, Target, Trunk
from registry.errors import InvalidInputError
from registry.names.reference import check_name
from registry.names.suggest import suggest

GROUP = "reg.methods"

V = TypeVar("V")
M = TypeVar("M", bound=Method)


class Lazy(Mapping[str, V], Generic[V]):
    """A mapping that a function finds when it is first read."""

    def __init__(self, find: Callable[[], dict[str, V]]) -> None:
        self._find = cache(find)

    def __getitem__(self, name: str) -> V:
        return self._find()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._find())

    def __len__(self) -> int:
        return len(self._find())


class Methods(Lazy[M]):
    """Name → method of one kind: the built-in ones in their order, then those of other packages by name."""

    def __init__(self, kind: type[M], called: str) -> None:
        super().__init__(lambda: {one.name: one for one in every_method() if isinstance(one, kind)})
        self._called = called

    @property
    def default(self) -> M:
        """The one where nothing is asked for."""
        return next(iter(self.values()))

    def named(self, name: object) -> M:
        """Return a method by its name (InvalidInputError: no method has this name)."""
        if isinstance(name, str) and name in self:
            return self[name]
        near = suggest(name, [*self]) if isinstance(name, str) else ""
        raise InvalidInputError(
            f"{self._called} {str(name)[:80]!r} is not one of {', '.join(self)}{near}",
            f"choose one of them, or install the package that has it (entry points of group {GROUP})",
        )


@cache
def every_method() -> tuple[Method, ...]:
    """Return the methods of every kind (InvalidInputError: an entry point names no method, or one of a taken name)."""
    found: dict[tuple[type[Method], str], Method] = {}
    for one in instances(METHODS):
        found[_kind(one), one.name] = one
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        one = _of_entry_point(point)
        if (_kind(one), one.name) in found:
            raise _refused(point, f"its name {one.name!r} is taken")
        found[_kind(one), one.name] = one
    return tuple(found.values())


def _kind(method: Method) -> type[Method]:
    return next(kind for kind in (Target, Trunk, Router) if isinstance(method, kind))


def _of_entry_point(point: EntryPoint) -> Method:
    try:
        one = point.load()()
    except Exception as error:  # another package's code
        raise _refused(point, f"it cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(one, Target | Trunk | Router):
        raise _refused(point, "it is no class of Output, Trunk or Router")
    try:
        check_name(one.name)
    except InvalidInputError as error:
        raise _refused(point, error.message) from error
    return one


def _refused(point: EntryPoint, why: str) -> InvalidInputError:
    package = "a package" if point.dist is None else f"package {point.dist.name} {point.dist.version}"
    hint = "install another version of it" if point.dist is None else f"pip uninstall {point.dist.name}, or mend it"
    return InvalidInputError(f"method {point.value} of {package}: {why}", hint)


OUTPUTS: Methods[Target] = Methods(Target, "output")
TRUNKS: Methods[Trunk] = Methods(Trunk, "trunk method")  # type: ignore[type-abstract]
ROUTERS: Methods[Router] = Methods(Router, "router method")
