"""A file gets its name whole and replaces the one that had it; only a regular file is replaced. Text of others can be read, and no terminal
obeys it."""

import os
from pathlib import Path

import pytest

from pipeline.files import new_file, one_line, sanitize


def test_a_new_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
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
    with pytest.raises(FileNotFoundError), new_file(path) as lost:
        lost.unlink()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("report", "old")]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(OSError, match=f"^{path.name} is not a regular file$"), new_file(path) as draft:
            draft.write_text("nothing")
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]
    assert Path("/dev/null").is_char_device()


def test_a_link_gives_way_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("theirs")
    (tmp_path / "run.json").symlink_to("foreign")
    with new_file(tmp_path / "run.json") as draft:
        draft.write_text("ours")
    assert [(tmp_path / name).read_text() for name in ("foreign", "run.json")] == ["theirs", "ours"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, café, 日本, 👍\tand\nlines", "plain, café, 日本, 👍\tand\nlines"),
        ("\x1b[2J\x1b]0;title\x07", "\\u001b[2J\\u001b]0;title\\u0007"),
        ("a\rb\x00\x7f", "a\\u000db\\u0000\\u007f"),
        ("\x9b31m", "\\u009b31m"),
        ("\u202egnp.exe\u2066", "\\u202egnp.exe\\u2066"),
        ("half \ud83d", "half \\ud83d"),
    ],
)
def test_what_a_terminal_obeys_is_shown(text: str, shown: str) -> None:
    assert sanitize(text) == shown
    assert one_line(text) == shown.replace("\n", "\\n")
