"""The parts of the tests that CI runs in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import part_of


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_each_file_is_in_one_part(count: int) -> None:
    files = [Path(f"test_{number}.py") for number in range(count)]
    parts = [part_of(files, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(file for part in parts for file in part) == files
    assert part_of(files, "1/1") == files


@pytest.mark.parametrize("part", ["0/3", "4/3", "1/0", "2", "a/3", "", "-1/3"])
def test_a_part_that_is_not_there(part: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"--part is N/M.*not {part}"):
        part_of([], part)
