"""Proves: rows come back from a file as they were written, and stay there."""

from pathlib import Path

import pytest
import torch

from registry.runtime.row_file import RowFile


def test_rows_come_back_by_ranges(tmp_path: Path) -> None:
    rows = torch.arange(2053 * 3.0).view(-1, 3)
    RowFile(tmp_path / "rows", (3,), torch.float32).write(0, rows[:7])
    file = RowFile(tmp_path / "rows", (3,), torch.float32)
    file.write(7, rows[7:])
    file.write(2, rows[2:4])
    file.flush()
    assert len(file) == len(rows)
    assert torch.equal(file.read(slice(4, 9)), rows[4:9])
    assert torch.equal(file.read(slice(0, len(rows))), rows)
    with pytest.raises(OSError, match="ends within the rows"):
        file.read(slice(0, len(rows) + 1))
