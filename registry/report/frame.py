"""The surroundings of a report among the local pages; a file has none."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Frame:
    """The surroundings of a report.

    Attributes:
        links: name and address of each page in the navigation; none in a file.
        active: address of the page in the navigation that the report belongs to.
        back: name and address of the page that the report belongs to.
        theme: light or dark, where the reader chose one; None for the system's.
        program: the beginning of commands: `reg`, or `reg --home DIR`.
        form: address of the form that evaluates the composition; None where work cannot be started.
    """

    links: tuple[tuple[str, str], ...] = ()
    active: str | None = None
    back: tuple[str, str] | None = None
    theme: str | None = None
    program: str = "reg"
    form: str | None = None
