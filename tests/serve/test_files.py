"""Files and batches of a server without a run behind it, through the `openai` package: listed page by page, and deleted."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import openai
import pytest

from pipeline.runtime.admission.feed import Arrivals
from pipeline.serve.app import Access, ServerSelf, new_app
from pipeline.serve.batches import BatchDesk
from pipeline.serve.completions import ChatEndpoint
from pipeline.serve.desk import Desk
from pipeline.serve.limits import ServeLimits

pytestmark = [pytest.mark.slow, pytest.mark.anyio]  # the package takes a second to import
BATCH: Any = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
OTHER = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "other", "messages": []}}\n'
"""A line that is refused, so that a batch of it ends without a run."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def asked(folder: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a server whose chains never begin, with the files and batches of `folder`."""
    desk, limits = Desk(Arrivals(), ServeLimits(), "</think>"), ServeLimits()
    batches = BatchDesk(folder, desk, limits, "m")
    own = ServerSelf("m", lambda: "serving", lambda: (b"", ""))
    app = new_app(own, ChatEndpoint(desk, limits, "m"), Access(), batches.routes)
    async with anyio.create_task_group() as tasks, httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as http:
        batches.begin(tasks)
        yield openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", max_retries=0, http_client=http)
        tasks.cancel_scope.cancel()


async def uploaded(client: openai.AsyncOpenAI, *contents: bytes) -> list[str]:
    return [(await client.files.create(file=("asked.jsonl", content), purpose="batch")).id for content in contents]


async def batch_of(client: openai.AsyncOpenAI, file: str) -> Any:
    """A batch of a file all of whose lines are refused, at its end."""
    batch = await client.batches.create(input_file_id=file, **BATCH)
    while batch.status == "in_progress":
        await anyio.lowlevel.checkpoint()
        batch = await client.batches.retrieve(batch.id)
    return batch


async def test_lists_are_told_page_by_page_the_newest_first(tmp_path: Path) -> None:
    async with asked(tmp_path) as client:
        names = await uploaded(client, *[OTHER] * 5)
        first = await client.files.list(limit=2)
        assert (first.has_more, [file.id for file in first.data]) == (True, names[:2:-1])
        assert [file.id async for file in client.files.list(limit=2)] == names[::-1]
        assert [file.id async for file in client.files.list(limit=2, order="asc")] == names
        rest = await client.files.list(after=names[2])
        assert (rest.has_more, [file.id for file in rest.data]) == (False, names[1::-1])
        batches = [await batch_of(client, name) for name in names[:3]]
        assert [batch.id async for batch in client.batches.list(limit=1)] == [batch.id for batch in batches][::-1]
        assert [file.id async for file in client.files.list(purpose="batch_output", limit=1)] == [b.error_file_id for b in batches][::-1]
        assert {file.expires_at async for file in client.files.list()} == {batch.expires_at for batch in batches} == {None}


async def test_files_can_be_deleted_while_they_are_listed_and_stay_deleted(tmp_path: Path) -> None:
    async with asked(tmp_path) as client:
        [name, *_] = await uploaded(client, *[OTHER] * 5)
        batch = await batch_of(client, name)
        async for file in client.files.list(limit=2):
            assert (await client.files.delete(file.id)).deleted
        assert [path for path in (tmp_path / "files").iterdir() if path.stat().st_size] == []
        assert (await client.batches.retrieve(batch.id)).error_file_id == batch.error_file_id
        for refused in (client.files.delete(name), client.files.content(name), client.files.retrieve(batch.error_file_id)):
            with pytest.raises(openai.NotFoundError, match="there is no file"):
                await refused
    async with asked(tmp_path) as client:
        assert (await client.files.list()).data == []
        assert [each.id async for each in client.batches.list()] == [batch.id]


async def test_a_file_of_a_batch_that_is_not_over_cannot_be_deleted(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "What?"}]}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}).encode()
    for resumed in (False, True):
        async with asked(tmp_path) as client:
            if not resumed:
                [name] = await uploaded(client, line)
                await client.batches.create(input_file_id=name, **BATCH)
            with pytest.raises(openai.ConflictError, match="belongs to a batch that is not over"):
                await client.files.delete(name)


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 101}, {"limit": "many"}, {"after": "batch_1"}, {"order": "up"}])
async def test_a_page_that_there_cannot_be_is_refused(tmp_path: Path, query: dict[str, Any]) -> None:
    async with asked(tmp_path) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.batches.list(extra_query=query)
    assert ([refused.value.param], refused.value.code) == ([*query], "invalid_value")


async def test_that_files_expire_cannot_be_asked(tmp_path: Path) -> None:
    after: Any = {"anchor": "created_at", "seconds": 3600}
    async with asked(tmp_path) as client:
        with pytest.raises(openai.BadRequestError, match="`expires_after` is not supported: files are kept until they are deleted"):
            await client.files.create(file=("asked.jsonl", OTHER), purpose="batch", expires_after=after)
        [name] = await uploaded(client, OTHER)
        with pytest.raises(openai.BadRequestError, match="`output_expires_after` is not supported"):
            await client.batches.create(input_file_id=name, output_expires_after=after, **BATCH)
