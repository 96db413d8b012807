"""The worker process as a public part: an engine of another package computes in it, on any event loop."""

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import psutil
import pytest

from pipeline.engine import Engine, PrefixCacheReset, Request, Restartable
from pipeline.engines.process.engine import WorkerEngine
from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.errors import ContextOverflow, EngineDead, GraphError, RequestRefused
from tests.support.paths import ROOT
from tests.support.plugin.scribe import ScribeSpec, open_scribe

pytestmark = pytest.mark.slow  # each test starts an interpreter
PROMPT = SimTokenizer().encode("What is 2 and 2?")


def asked(**options: Any) -> Request:
    return Request(**{"request_id": "r", "prompt_ids": PROMPT, "max_tokens": 50} | options)


def talk_to(talk: Callable[[WorkerEngine], Awaitable[None]] | None, **options: Any) -> None:
    """None: the engine does not even start."""

    async def main() -> None:
        async with open_scribe({"scribe": ScribeSpec(model="m", max_model_len=99, **options)}) as engines:
            assert talk is not None
            await talk(engines["scribe"])

    anyio.run(main)


def test_an_engine_of_another_package_answers_refuses_and_counts() -> None:
    async def talk(engine: Engine) -> None:
        assert (engine.role, engine.max_model_len, engine.facts["devices"]) == ("scribe", 99, ("desk",))
        answer = await engine.generate(asked(n=2))
        assert [candidate.text for candidate in answer.candidates] == ["Step 1, wrong.\n\n", "Step 1, right.\n\n"]
        assert [engine.tokenizer.decode(candidate.ids) for candidate in answer.candidates] == [each.text for each in answer.candidates]
        with pytest.raises(RequestRefused, match=r"^request 'r': a scribe chooses between two$"):
            await engine.generate(asked(option_ids=(1,), max_tokens=1))
        with pytest.raises(ContextOverflow):
            await engine.generate(asked(prompt_ids=PROMPT * 99))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.generate, asked(max_tokens=1 << 30))
            await anyio.wait_all_tasks_blocked()
            assert (await engine.generate(asked())).usage.cached_input_tokens == len(PROMPT) - 1
            tasks.cancel_scope.cancel()
        assert isinstance(engine, PrefixCacheReset)
        await engine.reset_prefix_cache()
        assert (await engine.generate(asked(n=4))).usage.cached_input_tokens == 0
        found, written = engine.statistics(), len(answer.candidates[0].ids)
        assert (found.requests, found.input_tokens, found.output_tokens) == (3, 3 * len(PROMPT), 7 * written)

    talk_to(talk)


def test_it_is_killed_found_dead_started_again_and_closed_for_good() -> None:
    async def talk(engine: WorkerEngine) -> None:
        assert isinstance(engine, Restartable)
        await engine.generate(asked())
        first = engine.pid
        os.kill(first, signal.SIGKILL)
        with pytest.raises(EngineDead, match="killed by SIGKILL"):
            await engine.generate(asked(max_tokens=1 << 30))
        await engine.restart()
        await engine.generate(asked())
        assert engine.pid != first
        assert (engine.statistics().restarts, engine.statistics().requests) == (1, 2)
        engine.kill("a test said so")
        with pytest.raises(EngineDead, match="a test said so"):
            await engine.generate(asked())
        await engine.restart()
        last = engine.pid
        await engine.aclose()
        await engine.aclose()
        assert not psutil.pid_exists(last)
        for call in (engine.generate(asked()), engine.restart()):
            with pytest.raises(EngineDead, match="it was closed"):
                await call

    talk_to(talk)


def test_what_cannot_be_loaded_or_takes_too_long_says_why_and_is_gone() -> None:
    with pytest.raises(GraphError, match=r"^engine 'scribe': cannot load the model 'm': there is no scribe here$"):
        talk_to(None, loads="not")
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(EngineDead, match=r"^engine 'scribe' died: it did not start within startup_timeout_s=0\.5; increase it if"):
        talk_to(None, loads="never", startup_timeout_s=0.5)
    assert psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=10)[1] == []


def test_a_worker_that_loads_and_what_it_started_end_when_the_main_process_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", f"from {__name__} import talk_to; talk_to(None, loads='never')"], cwd=ROOT) as main:
        started: list[psutil.Process] = []
        while len(started) < 2:
            with suppress(subprocess.TimeoutExpired):
                main.wait(0.05)
            started = psutil.Process(main.pid).children(recursive=True)
        main.kill()
        assert psutil.wait_procs(started, timeout=20)[1] == []
