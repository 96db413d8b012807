"""Run folders by URL: the two ways to have one on this machine, for a command or a call of the Python API."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.remote.object_store import ObjectStore
from pipeline.remote.reader import Mirror
from pipeline.remote.staging import Staging
from pipeline.remote.url import parse_url
from pipeline.remote.writer import Tell, writing


@contextmanager
def written_folder(text: str, tell: Tell, *, new: bool) -> Iterator[Path]:
    """The folder for a run that is written to a URL, uploaded while the body works and at its end; of a `file://` URL its path.

    `new`: there must be no run yet; otherwise the one that is there is brought here. Raises as `writer.writing` does.
    """
    url = parse_url(text)
    if isinstance(url, Path):
        yield url
        return
    staging = Staging(url)
    with writing(ObjectStore(url), staging, tell, new=new):
        yield staging.folder


def mirrored_folder(text: str, tell: Tell) -> tuple[Path, Mirror | None]:
    """The folder with a copy of the run at a URL, and what brings it up to date again; of a `file://` URL its path alone."""
    url = parse_url(text)
    if isinstance(url, Path):
        return url, None
    staging = Staging(url)
    mirror = Mirror(ObjectStore(url), staging, tell)
    mirror.refresh()
    return staging.folder, mirror
