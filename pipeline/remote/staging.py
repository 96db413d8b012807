"""The folder of this machine in which a run with a URL happens, or is mirrored to be read, and what is known of its copy in the store.

    STAGING/HASH/state.json     which version of each file is in the store, and the name of this machine as a writer
    STAGING/HASH/NAME/          the run folder

There is one for each URL (and server), so that a later command finds the write-ahead files of an earlier one. It is removed by nobody
but the user.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from uuid import uuid4

import msgspec
from msgspec import Struct

from pipeline.errors import RunFolderError, UsageError, boundary
from pipeline.files import new_file
from pipeline.remote.environment import endpoint
from pipeline.remote.object_store import Seen
from pipeline.remote.url import SCHEMES, Url
from pipeline.store.folder import LOCK, PROBLEMS
from pipeline.store.manifest import FILE as MANIFEST
from pipeline.store.run_file import FILE as CARD

VARIABLE = "PIPELINE_STAGING"
"""The environment variable that names another folder for all of this."""
_PART = re.compile(r"[^/]+/part-\d+\.parquet")
_LOCAL = re.compile(rf"(.*/)?(\..*|{re.escape(LOCK)}|wal-\d+\.arrows|.*\.tmp|.*\.moved)")
"""Files that stay on this machine: locks, write-ahead files and drafts."""


class Local(Struct, frozen=True):
    """A version of a file of this machine."""

    size: int
    mtime_ns: int


class Synced(Struct, frozen=True):
    """A version that both sides have."""

    local: Local
    remote: Seen | None
    """None: it was not listed since it was uploaded."""


class State(Struct):
    """What is known of the copy in the store."""

    url: str
    writer: str = msgspec.field(default_factory=lambda: uuid4().hex[:12])
    """The random name of this machine as a writer of this run: unlike a host name it says nothing about it."""
    files: dict[str, Synced] = {}
    manifest: str = ""
    """The digest of the manifest in the store, which names the digest of every part: a list alone shows times of whole seconds."""


class Staging:
    """The local side of a run folder with a URL. Methods raise `RunFolderError` where this machine's disk cannot be written."""

    def __init__(self, url: Url) -> None:
        if not url.name:
            raise UsageError(f"{url}: names a bucket; expected a folder in it, such as {SCHEMES[url.scheme].replace('PATH', 'runs/mine')}")
        self.url = url
        digest = blake2b(f"{url} {endpoint(url)}".encode(), digest_size=8).hexdigest()
        self.place = staging_folder() / digest
        """What is locked by the process that uploads."""
        self.folder = self.place / url.name
        self.state = self._read()

    def save(self) -> None:
        """Write the state, durably."""
        with boundary(RunFolderError, f"{self.place}: cannot be written", foreign=OSError):
            self.place.mkdir(parents=True, exist_ok=True)
            with new_file(self.place / "state.json") as draft:
                draft.write_bytes(msgspec.json.encode(self.state))

    def files(self) -> dict[str, Local]:
        """The files that belong into the store, by name."""
        with boundary(RunFolderError, f"{self.folder}: cannot be read", foreign=OSError):
            return dict(self._files())

    def changed(self) -> dict[str, Local]:
        """Those of them of which the store has no version, or another one."""
        return {name: local for name, local in self.files().items() if not self.is_synced(name, local)}

    def is_synced(self, name: str, local: Local) -> bool:
        """Whether the store has this version of a file."""
        known = self.state.files.get(name)
        return known is not None and known.local == local

    @property
    def is_ahead(self) -> bool:
        """Whether rows are here that are not in the store."""
        return any(self.folder.glob("*/wal-*.arrows")) or any(map(is_data, self.changed()))

    @property
    def is_gone(self) -> bool:
        """Whether the folder was removed since the store got its files."""
        return CARD in self.state.files and not (self.folder / CARD).exists()

    def is_based_on(self, listing: dict[str, Seen], manifest: bytes | None) -> bool:
        """Whether the store, which lists these objects and has this manifest, holds what it held when this side was last up to date."""
        theirs = {name: seen for name, seen in listing.items() if is_data(name)}
        ours = {name: known.remote for name, known in self.state.files.items() if is_data(name)}
        return theirs == ours and digest_of(manifest) == self.state.manifest

    def _files(self) -> Iterator[tuple[str, Local]]:
        for place, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(place, name)
                relative = path.relative_to(self.folder).as_posix()
                if not _LOCAL.fullmatch(relative):
                    with suppress(FileNotFoundError):  # it has got its name, or was replaced, meanwhile
                        yield relative, local_version(path)

    def _read(self) -> State:
        with suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode((self.place / "state.json").read_bytes(), type=State)
        return State(url=str(self.url))


def staging_folder() -> Path:
    """Where the folders of all runs with URLs are."""
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "speculative-pipeline" / "runs"


def digest_of(manifest: bytes | None) -> str:
    """What tells a manifest from every other one; empty where there is none."""
    return "" if manifest is None else blake2b(manifest, digest_size=16).hexdigest()


def is_data(name: str) -> bool:
    """Whether a file holds what a run is, unlike a report about it."""
    return name in (CARD, MANIFEST, PROBLEMS) or _PART.fullmatch(name) is not None


def local_version(path: Path) -> Local:
    """The version of a file; raises `OSError`."""
    found = path.stat()
    return Local(found.st_size, found.st_mtime_ns)
