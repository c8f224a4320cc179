"""Proves: a size of memory is read in decimal and in binary units, and anything else is refused."""

import click
import pytest

from cli.options import Size


def test_size() -> None:
    sizes = {"6GiB": 6 * 2**30, "500MB": 500_000_000, "1.5 gib": 3 * 2**29, "12": 12, "2TiB": 2**41, "3kB": 3000}
    for text, nbytes in sizes.items():
        assert Size().convert(text, None, None) == nbytes
    for text in ("", "0", "0.1", "-1GB", "1k", "6G", "GiB", "1e9", "nan", "1.GiB"):
        with pytest.raises(click.BadParameter, match="is not a size such as 6GiB"):
            Size().convert(text, None, None)
