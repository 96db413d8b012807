"""A file gets its name whole, in the place of the one that had it."""

from pathlib import Path

import pytest

from pipeline.files import new_file, publish


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


def test_a_new_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "report"
    for text in ("one", "two"):
        with new_file(path) as draft:
            draft.write_text(text)
            assert path.exists() == (text == "two")
        assert [each.read_text() for each in tmp_path.iterdir()] == [text]


@pytest.mark.parametrize("written", [True, False])
def test_a_draft_that_fails_leaves_what_was_there(tmp_path: Path, written: bool) -> None:
    path = tmp_path / "report"
    path.write_text("old")

    def fail() -> None:
        with new_file(path) as draft:
            if written:
                draft.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("report", "old")]


def test_what_is_no_regular_file_is_written_as_it_is(tmp_path: Path) -> None:
    with new_file(Path("/dev/null")) as draft:
        draft.write_text("gone")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(IsADirectoryError), new_file(tmp_path) as draft:
        draft.write_text("nothing")
    assert list(tmp_path.iterdir()) == []
