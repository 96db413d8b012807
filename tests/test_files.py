"""A file gets its name whole, in the place of the one that had it, and what is no regular file is neither read nor replaced."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.files import NotRegular, new_file, open_file, publish


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
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / "draft", path)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("report", "old")]


@pytest.fixture(params=["a folder", "a named pipe", "a socket"])
def irregular(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, str]]:
    path, kind = tmp_path / "it", request.param
    with socket.socket(socket.AF_UNIX) as server:
        if kind == "a folder":
            path.mkdir()
        elif kind == "a named pipe":
            os.mkfifo(path)
        else:
            server.bind(str(path))
        yield path, kind


def test_what_is_no_file_is_neither_replaced_nor_read_and_nobody_waits_for_it(tmp_path: Path, irregular: tuple[Path, str]) -> None:
    path, kind = irregular
    before = path.stat()
    with pytest.raises(NotRegular, match=f"^it is {kind}, not a regular file$"), new_file(path) as draft:
        draft.write_text("nothing")
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_ino == before.st_ino
    (tmp_path / "link").symlink_to(path)
    for place in (path, tmp_path / "link"):
        with pytest.raises(NotRegular, match=f"^(it|link) is {kind}, not a regular file$"):
            open_file(place)


def test_a_file_and_an_open_pipe_are_read_and_a_device_is_written_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    reader, writer = os.pipe()
    os.write(writer, b"text")
    os.close(writer)
    for path in (tmp_path / "file", tmp_path / "link", Path(f"/dev/fd/{reader}")):
        with open_file(path) as file:
            assert file.read() == b"text"
    os.close(reader)
    with new_file(Path("/dev/null")) as draft:
        draft.write_text("gone")
    assert Path("/dev/null").is_char_device()


def test_a_link_gives_way_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("theirs")
    (tmp_path / "run.json").symlink_to("foreign")
    with new_file(tmp_path / "run.json") as draft:
        draft.write_text("ours")
    assert [(tmp_path / name).read_text() for name in ("foreign", "run.json")] == ["theirs", "ours"]
