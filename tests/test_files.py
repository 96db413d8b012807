"""A file gets its name whole, in the place of the one that had it."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.files import NotRegular, new_file, open_file, publish


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


def test_a_device_is_written_as_it_is() -> None:
    with new_file(Path("/dev/null")) as draft:
        draft.write_text("gone")
    assert Path("/dev/null").is_char_device()


@pytest.fixture(params=["a folder, not a regular file", "a named pipe, not a regular file", "a socket, not a regular file"])
def irregular(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, str]]:
    path, kind = tmp_path / "it", request.param
    with socket.socket(socket.AF_UNIX) as server:
        if kind == "a folder, not a regular file":
            path.mkdir()
        elif "pipe" in kind:
            os.mkfifo(path)
        else:
            server.bind(str(path))
        yield path, kind


def test_what_is_no_file_is_not_replaced(tmp_path: Path, irregular: tuple[Path, str]) -> None:
    path, kind = irregular
    before = path.stat()
    with pytest.raises(NotRegular, match=f"^it is {kind}$"), new_file(path) as draft:
        draft.write_text("nothing")
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_ino == before.st_ino


def test_what_is_no_file_is_not_read_and_nobody_waits_for_it(tmp_path: Path, irregular: tuple[Path, str]) -> None:
    path, kind = irregular
    for place in (path, tmp_path / "link"):
        with suppress(FileExistsError):
            (tmp_path / "link").symlink_to(path)
        with pytest.raises(NotRegular, match=f"^(it|link) is {kind}$"):
            open_file(place)


def test_a_file_and_an_open_pipe_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    reader, writer = os.pipe()
    os.write(writer, b"text")
    os.close(writer)
    for path in (tmp_path / "file", tmp_path / "link", Path(f"/dev/fd/{reader}")):
        with open_file(path) as file:
            assert os.get_blocking(file.fileno())
            assert file.read() == b"text"
    os.close(reader)


def test_a_link_gives_way_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    """Links of every name that a draft could have been expected under, and of the file's own."""
    (tmp_path / "foreign").write_text("theirs")
    for name in ("run.json", f".run.json.{os.getpid()}.tmp", "run.json.tmp", ".run.json.tmp"):
        (tmp_path / name).symlink_to("foreign")
    with new_file(tmp_path / "run.json") as draft:
        draft.write_text("ours")
    assert (tmp_path / "foreign").read_text() == "theirs"
    assert not (tmp_path / "run.json").is_symlink()
    assert (tmp_path / "run.json").read_text() == "ours"


def test_a_second_name_of_a_file_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("theirs")
    (tmp_path / "run.json").hardlink_to(tmp_path / "foreign")
    with new_file(tmp_path / "run.json") as draft:
        draft.write_text("ours")
    assert ((tmp_path / "foreign").read_text(), (tmp_path / "run.json").read_text()) == ("theirs", "ours")


def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path: Path) -> None:
    with new_file(tmp_path / ("x" * 255)) as draft:
        draft.write_text("long")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["long"]
