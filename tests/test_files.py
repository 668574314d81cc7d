"""Atomic writes: the old, the new, or nothing; never a half and never a leftover."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from marslm import files


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_text_is_written_with_its_folders(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "note.txt"
    files.write_text(target, "é\n")
    assert target.read_bytes() == "é\n".encode()
    assert names(target.parent) == ["note.txt"]


def test_text_replaces_the_old(tmp_path: Path) -> None:
    target = tmp_path / "note.txt"
    target.write_text("a much longer old text")
    files.write_text(target, "new")
    assert target.read_text() == "new"
    assert names(tmp_path) == ["note.txt"]


@pytest.mark.parametrize("old", [None, "old"])
def test_text_that_fails_half_way_changes_nothing(tmp_path: Path, old: str | None) -> None:
    target = tmp_path / "note.txt"
    if old:
        target.write_text(old)
    with pytest.raises(UnicodeEncodeError):
        files.write_text(target, "x" * 100_000 + "\ud800")
    assert names(tmp_path) == (["note.txt"] if old else [])
    assert not old or target.read_text() == old


def test_an_interruption_while_replacing_leaves_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "note.txt"
    target.write_text("old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write_text(target, "new")
    assert (names(tmp_path), target.read_text()) == (["note.txt"], "old")


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "run"
    with files.new_folder(target) as draft:
        (draft / "one").write_text("1")
        assert not target.exists()
        assert draft.parent == target.parent  # on one disk, so that renaming is one step
    assert names(target) == ["one"]
    assert names(target.parent) == ["run"]


def test_a_folder_replaces_the_old_one_whole(tmp_path: Path) -> None:
    target = tmp_path / "run"
    target.mkdir()
    (target / "old").touch()
    with files.new_folder(target) as draft:
        (draft / "new").touch()
        assert names(target) == ["old"]
    assert names(target) == ["new"]
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_that_fails_half_way_changes_nothing(
    tmp_path: Path, error: type[BaseException], exists: bool
) -> None:
    target = tmp_path / "run"
    if exists:
        target.mkdir()
        (target / "old").touch()

    def fill() -> None:
        with files.new_folder(target) as draft:
            (draft / "half").touch()
            (draft / "inner").mkdir()
            raise error

    with pytest.raises(error):
        fill()
    assert names(tmp_path) == (["run"] if exists else [])
    assert not exists or names(target) == ["old"]


def test_a_failed_swap_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "run"
    target.mkdir()
    (target / "old").touch()
    real = Path.replace

    def fail_for_drafts(self: Path, other: Path) -> Path:
        if other == target and not (self / "old").exists():
            raise OSError("no")
        return real(self, other)

    def swap() -> None:
        with files.new_folder(target) as draft:
            (draft / "new").touch()
            monkeypatch.setattr(Path, "replace", fail_for_drafts)

    with pytest.raises(OSError, match="no"):
        swap()
    assert names(tmp_path) == ["run"]
    assert names(target) == ["old"]


def test_others_may_read_what_was_written(tmp_path: Path) -> None:
    """Temporary files are private; what they become is not."""
    before = os.umask(0o022)
    try:
        files.write_text(tmp_path / "note.txt", "x")
        with files.new_folder(tmp_path / "run") as draft:
            files.write_text(draft / "inner.txt", "x")
            (draft / "weights").touch(mode=0o600)  # as safetensors leaves them
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "note.txt").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o755
    for name in ("inner.txt", "weights"):
        assert stat.S_IMODE((tmp_path / "run" / name).stat().st_mode) == 0o644
