"""The pages of a registry with a base model and experts."""

from collections.abc import Iterator

import pytest

from registry import Registry
from tests.pages import Pages, served


@pytest.fixture
def pages(filled: Registry) -> Iterator[Pages]:
    with served(filled) as found:
        yield found
