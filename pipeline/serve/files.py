"""`/v1/files` of a server: files of requests enter; they and the output and error files of batches leave, as often as clients ask.

All of them are in the run folder until a client deletes them.
"""

import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from pipeline.data.requests.errors import ApiError
from pipeline.files import new_file
from pipeline.serve.limits import ServeLimits, bounded
from pipeline.serve.responses import as_json, page

PIECE = 1 << 20
"""Bytes of a file that are copied at a time."""
LISTED = 10_000
"""Most files in a page of their list."""


class StoredFile(Struct, frozen=True, kw_only=True):
    """A file of a client, or for one."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: None = None
    """None: it does not."""
    filename: str
    purpose: str
    status: str = "processed"


class StoredFiles:
    """The files of one server, those of earlier sessions of its run included."""

    def __init__(self, folder: Path, limits: ServeLimits, is_needed: Callable[[str], bool]) -> None:
        """`folder`: where they are; `is_needed`: whether a file, by its id, must not be deleted yet."""
        self._folder, self._limits, self._is_needed = folder, limits, is_needed
        found = folder.glob("*.json") if folder.is_dir() else ()
        kept = [msgspec.json.decode(path.read_bytes(), type=StoredFile) for path in found]
        self._known: dict[str, StoredFile | None] = {file.id: file for file in sorted(kept, key=lambda file: (file.created_at, file.id))}
        """In the order in which they came; None: deleted in this session, as a page of their list may begin there."""

    @property
    def routes(self) -> list[Route]:
        """What clients may ask for."""
        return [
            Route("/v1/files", self._upload, methods=["POST"]),
            Route("/v1/files", self._list),
            Route("/v1/files/{id}", self._delete, methods=["DELETE"]),
            Route("/v1/files/{id}", self._retrieve),
            Route("/v1/files/{id}/content", self._content),
        ]

    def named(self, name: str) -> StoredFile:
        """The file with this id; raises `ApiError` where there is none."""
        found = self._known.get(name)
        if found is None:
            raise ApiError(f"there is no file {name!r}", "id", "not_found", status=404)
        return found

    def path(self, name: str) -> Path:
        """Where the content of the file with this id is."""
        return self._folder / f"{name}.jsonl"

    def add(self, name: str, filename: str, purpose: str) -> StoredFile:
        """Let clients have the file with the id `name`, whose content is written."""
        size = self.path(name).stat().st_size
        stored = StoredFile(id=name, bytes=size, created_at=int(time.time()), filename=filename, purpose=purpose)
        with new_file(self._folder / f"{name}.json") as draft:
            draft.write_bytes(msgspec.json.encode(stored))
        self._known[name] = stored
        return stored

    async def _upload(self, request: Request) -> Response:
        async with Request(request.scope, bounded(request.receive, self._limits.max_file_bytes)).form() as form:
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise ApiError("missing required parameter `file`", "file", "missing_required_parameter")
            if form.get("purpose") != "batch":
                raise ApiError(f"`purpose` is {form.get('purpose')!r}; only 'batch' is supported", "purpose", "invalid_value")
            if any(name.startswith("expires_after") for name in form):
                raise never_expires("expires_after")
            name = f"file-{secrets.token_hex(12)}"
            self._folder.mkdir(exist_ok=True)
            with self.path(name).open("wb") as kept:
                while piece := await file.read(PIECE):
                    kept.write(piece)
        return as_json(self.add(name, file.filename or name, "batch"))

    async def _list(self, request: Request) -> Response:
        purpose = request.query_params.get("purpose")
        known = {name: file for name, file in self._known.items() if file is None or purpose in (None, file.purpose)}
        return page(known, request.query_params, usual=LISTED, most=LISTED)

    async def _retrieve(self, request: Request) -> Response:
        return as_json(self.named(request.path_params["id"]))

    async def _content(self, request: Request) -> Response:
        return FileResponse(self.path(self.named(request.path_params["id"]).id), media_type="application/octet-stream")

    async def _delete(self, request: Request) -> Response:
        name = self.named(request.path_params["id"]).id
        if self._is_needed(name):
            raise ApiError(f"{name!r} belongs to a batch that is not over; wait for its end, or cancel it", "id", "file_in_use", status=409)
        (self._folder / f"{name}.json").unlink(missing_ok=True)  # first: what is left after a kill is a content without a name
        self.path(name).unlink(missing_ok=True)
        self._known[name] = None
        return as_json({"id": name, "object": "file", "deleted": True})


def never_expires(param: str) -> ApiError:
    """Why `param`, which asks that files expire, is refused."""
    return ApiError(f"`{param}` is not supported: files are kept until they are deleted", param, "unsupported_parameter")
