"""Division of long lists into pages."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Paging:
    """One page of a list.

    Attributes:
        number: the number of the page, from 1.
        total: number of items in the list.
        size: number of items per page.
        at: function from a page's number to its address.
    """

    number: int
    total: int
    size: int
    at: Callable[[int], str]

    @classmethod
    def of(cls, number: int, total: int, size: int, at: Callable[[int], str]) -> "Paging":
        """Return the page `number`, or the last page if there are fewer."""
        return cls(max(1, min(number, -(-total // size))), total, size, at)

    @property
    def offset(self) -> int:
        """Number of items before the page."""
        return (self.number - 1) * self.size

    @property
    def last(self) -> int:
        """The number of pages."""
        return max(1, -(-self.total // self.size))

    @property
    def first_item(self) -> int:
        """The number of the first item on the page, from 1; 0 if the list is empty."""
        return min(self.total, self.offset + 1)

    @property
    def last_item(self) -> int:
        """The number of the last item on the page."""
        return min(self.total, self.offset + self.size)
