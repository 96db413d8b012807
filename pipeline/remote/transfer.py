"""One run folder, here and in a store: files that one side has and the other lacks are copied, in an order that readers can rely on.

Uploaded are parts and other files first, then the manifest with those of its parts that are there, then `run.json`; downloaded in the
reverse order. So whoever reads `run.json`, then the manifest, then the parts, finds at least what each of them names.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from pipeline.errors import InputError, RunFolderError, StoreError, boundary
from pipeline.files import new_file
from pipeline.remote.object_store import ObjectStore, Seen
from pipeline.remote.staging import Local, Staging, Synced, digest_of, is_data, local_version
from pipeline.store.manifest import FILE as MANIFEST
from pipeline.store.manifest import Manifest
from pipeline.store.part_file import Fingerprint, fingerprint
from pipeline.store.run_file import FILE as CARD

T = TypeVar("T")
FIRST_S, MOST_S = 0.5, 30.0
"""The first and the longest pause before a request is repeated."""
DOWNLOAD_PATIENCE_S = 30.0
"""Seconds for which a download that fails is repeated."""
HIDDEN = "."
"""What the names of objects begin with that are no files of the run."""


Call = Callable[[], object]


def _nothing() -> None:
    return


def patiently(call: Callable[[], T], seconds: float) -> T:
    """The result of `call`, repeated with growing pauses for up to `seconds` while it fails for a reason that may pass."""
    pause, deadline = FIRST_S, time.monotonic() + seconds
    while True:
        try:
            return call()
        except StoreError as error:
            left = deadline - time.monotonic()
            if not error.transient or left <= 0:
                raise
            time.sleep(min(pause, left))
            pause = min(2 * pause, MOST_S)


def upload(store: ObjectStore, staging: Staging, *, data: bool = True, before_each: Call = _nothing) -> None:
    """Bring the store up to date with this machine; with `data=False` only with files that are no part of the run itself.

    `before_each` is called before every file.

    Raises `StoreError`, after which it may be repeated, and `RunFolderError`.
    """
    if staging.is_gone:
        raise RunFolderError(f"{staging.folder / CARD}: is gone; nothing more is uploaded to {staging.url}")
    try:
        card, manifest = _content(staging, CARD), _content(staging, MANIFEST)
        changed = staging.changed()
        gone = [name for name in staging.state.files if not (staging.folder / name).exists()]
        for name in sorted(changed.keys() - {CARD, MANIFEST}):
            if data or not is_data(name):
                before_each()
                _upload(store, staging, name)
        if data and manifest is not None:
            _upload_manifest(store, staging)
        if data and card is not None and CARD in changed:
            store.write(CARD, card[1])
            staging.state.files[CARD] = Synced(card[0], None)
        for name in gone if data else ():
            store.delete(name)
            del staging.state.files[name]
        _note(staging, store.list())
    finally:
        staging.save()


def download(store: ObjectStore, staging: Staging, before_each: Call = _nothing) -> int:
    """Bring this machine up to date with the store; the number of files that were downloaded. `before_each` is called before every file.

    Raises `StoreError`, `RunFolderError`.
    """
    count = 0
    try:
        before = store.list()
        for name in (CARD, MANIFEST):
            if name in before:
                staging.state.files.pop(name, None)  # it is small, and another one may look the same in a list
                count += _download(store, staging, name, before[name])
        _forget_others(staging)
        listing = store.list()
        for name in sorted(listing.keys() - {CARD, MANIFEST}):
            if not name.startswith(HIDDEN):
                before_each()
                count += _download(store, staging, name, listing[name])
        for name in [name for name in staging.files() if is_data(name) and name not in listing]:
            (staging.folder / name).unlink(missing_ok=True)
            staging.state.files.pop(name, None)
        staging.state.files = {name: known for name, known in staging.state.files.items() if name in listing}
    finally:
        staging.save()
    return count


def _forget_others(staging: Staging) -> None:
    """Take note of the manifest that was downloaded, and of parts that are not those which it lists."""
    with boundary(RunFolderError, f"{staging.folder}: cannot be read", foreign=OSError):
        path, manifest = staging.folder / MANIFEST, Manifest.read(staging.folder)
        staging.state.manifest = digest_of(path.read_bytes() if path.exists() else None)
    for table, entries in manifest.tables.items() if manifest is not None else ():
        for entry in entries.values():
            if fingerprint(staging.folder / table / entry.file) != Fingerprint(entry.bytes, entry.digest):
                staging.state.files.pop(f"{table}/{entry.file}", None)


def _content(staging: Staging, name: str) -> tuple[Local, bytes] | None:
    """A file of the run with its version; None where it is not there."""
    path = staging.folder / name
    with boundary(RunFolderError, f"{path}: cannot be read", foreign=OSError), suppress(FileNotFoundError):
        return local_version(path), path.read_bytes()
    return None


def _upload(store: ObjectStore, staging: Staging, name: str) -> None:
    path = staging.folder / name
    try:
        version = local_version(path)
        store.upload(path, name)
    except (OSError, StoreError):
        if path.exists():
            raise
        return  # it was removed meanwhile
    staging.state.files[name] = Synced(version, None)


def _upload_manifest(store: ObjectStore, staging: Staging) -> None:
    """Write the manifest of the files that are in the store; write-ahead files, which stay here, and parts to come are not in it."""
    with boundary(RunFolderError, f"{staging.folder}: cannot be read", foreign=OSError):
        version, ours = local_version(staging.folder / MANIFEST), Manifest.read(staging.folder)
    if ours is None:
        return
    sizes = {name: known.local.size for name, known in staging.state.files.items()}
    with TemporaryDirectory(prefix="manifest-") as folder:
        theirs = Manifest.new(Path(folder), ours.run)
        for table, entries in ours.settled().items():
            there = [entry for entry in entries.values() if entry.digest and sizes.get(f"{table}/{entry.file}") == entry.bytes]
            theirs.list_all(table, there)
        path = Path(folder, MANIFEST)
        content = path.read_bytes() if path.exists() else b""
    if digest_of(content) != staging.state.manifest:
        store.write(MANIFEST, content)
        staging.state.manifest = digest_of(content)
        staging.state.files[MANIFEST] = Synced(version, None)
    elif not staging.is_synced(MANIFEST, version):
        before = staging.state.files.get(MANIFEST)
        staging.state.files[MANIFEST] = Synced(version, before.remote if before is not None else None)


def _download(store: ObjectStore, staging: Staging, name: str, seen: Seen) -> bool:
    """Download an object unless this machine has it; whether it was downloaded."""
    path, known = staging.folder / name, staging.state.files.get(name)
    if known is not None and known.remote == seen and path.is_file() and local_version(path) == known.local:
        return False
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(str(store.url), f"holds an object {name!r}, which is not a file of a run")
    with boundary(RunFolderError, f"{path}: cannot be written", foreign=OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as draft:
            patiently(lambda: store.download(name, draft), DOWNLOAD_PATIENCE_S)
        staging.state.files[name] = Synced(local_version(path), seen)
    return True


def _note(staging: Staging, listing: dict[str, Seen]) -> None:
    """Note how the store lists the files that were uploaded."""
    for name, known in staging.state.files.items():
        if known.remote is None and name in listing:
            staging.state.files[name] = Synced(known.local, listing[name])
