"""A file gets its name whole, in the place of the one that had it."""

from pathlib import Path

import pytest

from pipeline.files import publish


def test_the_old_file_gives_way(tmp_path: Path) -> None:
    (tmp_path / "part").write_text("old")
    (tmp_path / "draft").write_text("new")
    publish(tmp_path / "draft", tmp_path / "part")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("part", "new")]


def test_without_a_draft_the_old_file_stays(tmp_path: Path) -> None:
    (tmp_path / "part").write_text("old")
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / "draft", tmp_path / "part")
    assert (tmp_path / "part").read_text() == "old"
