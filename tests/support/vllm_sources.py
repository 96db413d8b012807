"""vLLM's sources as text, of the installed version or of a wheel on the package index, and what they declare. Nothing is imported."""

import ast
import io
import json
import os
import re
import urllib.request
import zipfile
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urljoin

Read = Callable[[str], str]
"""The text of a file, by its path in the wheel, such as `vllm/outputs.py`."""
_INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
_TIMEOUT_S = 60


def installed() -> Read | None:
    """The sources of the installed vLLM; None where none is."""
    found = find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        return None
    root = Path(found.submodule_search_locations[0]).parent
    return lambda path: (root / path).read_text()


class _Ranges(io.RawIOBase):
    """A file on a server, of which only what is read is fetched."""

    def __init__(self, url: str) -> None:
        self._url, self._at = url, 0
        request = urllib.request.Request(url, headers={"Range": "bytes=-1"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            if answer.status != 206:
                raise OSError(f"{url} is not served in parts")
            self._size = int(answer.headers["Content-Range"].rpartition("/")[2])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        last = min(self._at + len(buffer), self._size) - 1
        if last < self._at:
            return 0
        request = urllib.request.Request(self._url, headers={"Range": f"bytes={self._at}-{last}"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            got = answer.read()
        buffer[: len(got)] = got
        self._at += len(got)
        return len(got)


def wheel(project: str, version: str) -> Read:
    """The sources in the wheel of `project` for this kind of machine; raises `OSError` where the index cannot be reached or lacks it."""
    page = f"{_INDEX}/{project}/"
    request = urllib.request.Request(page, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        files = json.load(answer)["files"]
    name = re.compile(rf"{re.escape(project.replace('-', '_'))}-{re.escape(version)}-.*x86_64\.whl")
    found = next((file["url"] for file in files if name.fullmatch(file["filename"])), None)
    if found is None:
        raise OSError(f"{page} has no wheel of {version}")
    archive = zipfile.ZipFile(io.BufferedReader(_Ranges(urljoin(page, found)), 1 << 18))
    return lambda path: archive.read(path).decode()


class Declared:
    """What the sources declare: classes with their members, functions with their parameters, and values."""

    def __init__(self, read: Read) -> None:
        self.read = read
        self._module = cache(lambda path: ast.parse(read(path)))

    def node(self, path: str, name: str) -> ast.AST | None:
        """The definition of `name`, which is `class` or `class.method` or a function, at the top of the file `path`; None without one."""
        node: ast.AST | None = self._module(path)
        for part in name.split("."):
            node = next((each for each in _body(node) if getattr(each, "name", None) == part), None)
        return node

    def has(self, path: str, name: str) -> set[str] | None:
        """The parameters of a function, or the members of a class and of its bases in the same file; None where there is none of it."""
        node = self.node(path, name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            every = (node.args.posonlyargs, node.args.args, node.args.kwonlyargs)
            return {argument.arg for arguments in every for argument in arguments} - {"self", "cls"}
        if not isinstance(node, ast.ClassDef):
            return None
        bases = [self.has(path, base.id) or set() for base in node.bases if isinstance(base, ast.Name)]
        return set().union(*bases, *(_names(each) for each in node.body))

    def value(self, path: str, name: str) -> ast.expr:
        """What is assigned to `name` at the top of the file `path`."""
        return next(
            each.value
            for each in _body(self._module(path))
            if isinstance(each, ast.Assign) and any(isinstance(target, ast.Name) and target.id == name for target in each.targets)
        )

    def top(self, path: str) -> set[str]:
        """The names that the file `path` defines."""
        return set().union(*(_names(each) for each in _body(self._module(path))))


def _body(node: ast.AST | None) -> list[ast.stmt]:
    """The statements of `node`, those under its conditions included."""
    found: list[ast.stmt] = []
    for each in getattr(node, "body", []):
        found += [each, *_body(each), *getattr(each, "orelse", [])] if isinstance(each, ast.If) else [each]
    return found


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "__init__":
        return {target.attr for target in ast.walk(node) if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.If):
        return set().union(*(_names(each) for each in _body(node)))
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}
