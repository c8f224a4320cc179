"""Long lists in pages."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Paging:
    """Where in a list a page stands.

    Attributes:
        number: of the page, from 1.
        total: items in the list.
        size: items on a page.
        at: from a page's number to its address.
    """

    number: int
    total: int
    size: int
    at: Callable[[int], str]

    @classmethod
    def of(cls, number: int, total: int, size: int, at: Callable[[int], str]) -> "Paging":
        """Return the page of that number, the last one where there are not so many."""
        return cls(max(1, min(number, -(-total // size))), total, size, at)

    @property
    def offset(self) -> int:
        """Items before the page."""
        return (self.number - 1) * self.size

    @property
    def last(self) -> int:
        """How many pages there are."""
        return max(1, -(-self.total // self.size))

    @property
    def first_item(self) -> int:
        """The number of the first item on the page, from 1; 0 where there is none."""
        return min(self.total, self.offset + 1)

    @property
    def last_item(self) -> int:
        """The number of the last item on the page."""
        return min(self.total, self.offset + self.size)
