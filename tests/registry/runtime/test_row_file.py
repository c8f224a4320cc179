"""Proves: rows come back from a file as they were written, by ranges and by numbers."""

from pathlib import Path

import pytest
import torch

from registry.io.process import return_freed_memory
from registry.runtime.row_file import BLOCK_ROWS, RowFile


def test_rows_come_back_by_ranges_blocks_and_numbers(tmp_path: Path) -> None:
    rows = torch.arange((BLOCK_ROWS + 5) * 3.0).view(-1, 3)
    file = RowFile(tmp_path / "rows", (3,))
    file.append(rows[:7])
    file.append(rows[7:])
    file.write(2, rows[2:4])
    assert len(file) == len(rows)
    assert torch.equal(file.read(slice(4, 9)), rows[4:9])
    assert torch.equal(torch.cat(list(file.blocks())), rows)
    numbers = torch.tensor([0, 5, 6, BLOCK_ROWS + 4])
    assert torch.equal(file.take(numbers), rows[numbers])
    assert file.take(numbers[:0]).shape == (0, 3)
    with pytest.raises(OSError, match="ends within the rows"):
        file.take(numbers + 1)
    with pytest.raises(OSError, match="ends within the rows"):
        file.read(slice(0, len(rows) + 1))
    file.clear()
    assert len(file) == 0
    return_freed_memory()  # which changes nothing
    assert len(file) == 0
