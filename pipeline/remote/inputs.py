"""Problems at a URL: it enters, a file or a folder of files on this machine leaves."""

from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path

from pipeline.data.files import files_among, is_problems_file
from pipeline.errors import InputError, RunFolderError, StoreError
from pipeline.remote.store import RemoteFiles
from pipeline.remote.url import Url, parse_url


def fetch_problems(text: str, folder: Path) -> Path:
    """The problems at a URL: of a `file://` URL its path, else downloaded into `folder`, which is empty, as a file, or of a folder or a
    pattern as a folder of files in the order of their names.

    Raises `UsageError` where the URL is wrong, the store does not answer, or there is no such file.
    """
    url = parse_url(text)
    if isinstance(url, Path):
        return url
    store = RemoteFiles(url)
    if store.is_file():
        return _downloaded(store, "", folder / url.name)
    if objects := store.list():
        return _downloaded_all(store, files_among(text, objects), folder / (url.name or url.bucket))
    parts = url.key.split("/")
    pattern = next((place for place, part in enumerate(parts) if has_magic(part)), None)
    if pattern is None:
        raise InputError(text, "there is no such file")
    above = RemoteFiles(Url(url.scheme, url.bucket, "/".join(parts[:pattern])))
    found = [name for name in above.list() if _matches(name, parts[pattern:]) and is_problems_file(name)]
    if not found:
        raise InputError(text, "no file matches this pattern")
    return _downloaded_all(above, found, folder / "matched")


def _matches(name: str, pattern: list[str]) -> bool:
    """True if a name fits a pattern, in which `**` matches any folders."""
    parts = name.split("/")
    if "**" in pattern:
        return fnmatchcase(name, "/".join(pattern).replace("**/", "*"))
    return len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern))


def _downloaded_all(store: RemoteFiles, names: list[str], folder: Path) -> Path:
    flat = [name.rpartition("/")[2] for name in sorted(names)]
    width = len(str(len(names))) if len(set(flat)) < len(flat) or flat != sorted(flat) else 0
    for number, (name, own) in enumerate(zip(sorted(names), flat, strict=True)):
        _downloaded(store, name, folder / (f"{number:0{width}}-{own}" if width else own))
    return folder


def _downloaded(store: RemoteFiles, name: str, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        store.download(name, path)
    except StoreError as error:
        raise InputError(error.where, error.what) from error
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written", str(error)) from error
    return path
