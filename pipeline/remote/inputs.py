"""Problems at a URL: it enters, a file, a folder or a pattern of files on this machine leaves."""

from fnmatch import filter as matching
from glob import has_magic
from pathlib import Path

from pipeline.data.files import files_among
from pipeline.errors import InputError
from pipeline.remote.store import RemoteFiles
from pipeline.remote.url import Url, parse_url


def fetch_problems(text: str, folder: Path) -> Path:
    """The problems at a URL, downloaded into `folder`, which is empty.

    Raises `UsageError` where the URL is wrong, the store does not answer, or there is no such file.
    """
    url = parse_url(text)
    store, path = RemoteFiles(url), Path(folder, url.bucket, url.key)
    if store.is_file():
        store.download("", path)
    elif names := store.list():
        for name in files_among(text, names):
            store.download(name, path / name)
    else:
        parts = url.key.split("/")
        above = next((place for place, part in enumerate(parts) if has_magic(part)), None)
        if above is None:
            raise InputError(text, "there is no such file")
        store, path = RemoteFiles(Url(url.scheme, url.bucket, "/".join(parts[:above]))), Path(folder, *parts[above:])
        # `*` matches slashes, too, so these are all that the pattern matches here, and more.
        for name in matching(store.list(), "/".join(parts[above:]).replace("**/", "*")):
            store.download(name, folder / name)
    return path
