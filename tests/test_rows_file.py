"""Files that grow row by row and survive a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from marslm.errors import InputError
from marslm.rows_file import append_row, read_rows


def test_rows_come_back_in_order_with_their_letters(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    assert read_rows(path) == []
    rows = [{"text": "Grüße\nfrom 東京"}, {"text": " "}]
    for row in rows:
        append_row(path, row)
    assert read_rows(path, "text") == rows


@pytest.mark.parametrize("left", [1, 5])
def test_a_last_line_cut_off_by_a_kill_is_dropped_from_the_file(tmp_path: Path, left: int) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, {"n": 1})
    whole = path.read_text()
    path.write_text(whole + whole[:left])
    assert read_rows(path) == [{"n": 1}]
    assert path.read_text() == whole


@pytest.mark.parametrize("line", ["{", "[1]", "7", '{"m": 1}'])
def test_a_bad_line_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"n": 1}}\n{line}\n{{"n": 2}}\n')
    with pytest.raises(InputError, match=r"rows\.jsonl:2"):
        read_rows(path, "n")
