"""Engine `vllm` on the CPU build: token-level speculation, adapters, death."""

import math
import os
import signal
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import anyio
import numpy as np
import psutil
import pytest
from anyio.from_thread import BlockingPortal
from msgspec import structs

from pipeline.engine import Completion, Engine, Request
from pipeline.engines.vllm.backend import open_vllm
from pipeline.errors import EngineDead, RequestRefused
from tests.support.adapters import write_adapter
from tests.support.engines import PLAIN, ask_all, prompt_of

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed here")]
TOKENS = 3
"""At most as many are speculated at a time."""
PROBLEMS = [f"Finn has {n} coins. Finn finds {n // 2 + 1}. Finn loses 3. How many coins has Finn now?" for n in range(5, 25)]


def asked(engine: Engine, problem: str, **options: object) -> Request:
    defaults = {"request_id": problem, "prompt_ids": prompt_of(engine, problem), "max_tokens": 60, "seed": 5}
    return Request(**defaults | options)  # type: ignore[arg-type]


def test_speculation_changes_no_greedy_text(portal: BlockingPortal, vllm_engines: Mapping[str, Engine], speculating: Engine) -> None:
    plain, engine = vllm_engines["target"], speculating
    for options in ({}, {"stop": ("\n\n",)}):
        said = [portal.call(ask_all, one, [asked(one, problem, **options) for problem in PROBLEMS]) for one in (plain, engine)]
        texts = [[answer.candidates[0].text for answer in answers] for answers in said]
        assert sum(a == b for a, b in zip(*texts, strict=True)) >= 19, options


def test_speculation_keeps_the_distribution(portal: BlockingPortal, vllm_engines: Mapping[str, Engine], speculating: Engine) -> None:
    """Mean log probability under the model itself: arbitrary temperatures lie far below."""

    def mean_logprob(engine: Engine) -> float:
        requests = [asked(engine, problem, temperature=0.8, n=4, stop=("\n\n",), logprobs=True) for problem in PROBLEMS]
        found = [c for answer in portal.call(ask_all, engine, requests) for c in answer.candidates]
        return sum(c.cumulative_logprob for c in found) / sum(len(c.ids) for c in found)

    assert mean_logprob(speculating) == pytest.approx(mean_logprob(vllm_engines["target"]), abs=0.05)


def test_speculation_is_counted_and_a_choice_works_under_it(portal: BlockingPortal, speculating: Engine) -> None:
    engine = speculating
    portal.call(engine.generate, asked(engine, PROBLEMS[0]))
    counted = engine.statistics().speculation
    assert counted is not None
    assert engine.facts["cannot"] == ("min_p", "top_k")
    assert 0 < counted.accepted_tokens < counted.draft_tokens <= TOKENS * counted.drafts
    assert sum(counted.accepted_by_position) == counted.accepted_tokens
    assert sorted(counted.accepted_by_position, reverse=True) == list(counted.accepted_by_position)
    options = tuple(engine.tokenizer.encode(digit)[-1] for digit in "0123")
    answer: Completion = portal.call(engine.generate, asked(engine, PROBLEMS[0], max_tokens=1, option_ids=options))
    assert answer.candidates[0].ids[0] in options
    assert 0 < sum(map(math.exp, answer.option_logprobs)) < 1


def test_what_vllm_refuses_is_refused_and_the_engine_goes_on(portal: BlockingPortal, speculating: Engine) -> None:
    with pytest.raises(RequestRefused, match=r"request '.*': .*min_p"):
        portal.call(speculating.generate, asked(speculating, PROBLEMS[0], temperature=1.0, min_p=0.5, n=3))
    assert portal.call(speculating.generate, asked(speculating, PROBLEMS[0])).candidates


def test_an_adapter_is_part_of_requests_that_name_it_and_death_leaves_nothing_behind(
    portal: BlockingPortal, vllm_engines: Mapping[str, Engine], tmp_path: Path
) -> None:
    plain = portal.call(ask_all, vllm_engines["target"], [asked(vllm_engines["target"], problem) for problem in PROBLEMS])
    draw = np.random.default_rng(0).normal
    sides = (draw(size=(24, 128)).astype("float32"), draw(size=(128, 24)).astype("float32"))
    folder = write_adapter(tmp_path, {"model.layers.0.self_attn.o_proj": sides})  # turns the attention of the first layer upside down
    plainly = PLAIN.specs()["target"]
    spec = structs.replace(plainly, adapters={"upside": str(folder)}, args={**plainly.args, "max_lora_rank": 32})
    found: list[psutil.Process] = []

    async def scene() -> None:
        async with open_vllm({"target": spec}) as engines:
            engine = engines["target"]
            adapted = await ask_all(engine, [asked(engine, problem, adapter="upside") for problem in PROBLEMS])
            assert sum(a.candidates[0].text == b.candidates[0].text for a, b in zip(plain, adapted, strict=True)) <= 2
            found.extend([psutil.Process(engine.pid), *psutil.Process(engine.pid).children(recursive=True)])
            deaths: list[EngineDead] = []

            async def ask(seed: int) -> None:
                try:
                    await engine.generate(asked(engine, PROBLEMS[0], max_tokens=400, temperature=1.0, stop_ids=(), seed=seed))
                except EngineDead as death:
                    deaths.append(death)

            async with anyio.create_task_group() as tasks:
                for seed in range(40):
                    tasks.start_soon(ask, seed)
                await engine.generate(asked(engine, PROBLEMS[1], max_tokens=1, priority=-1))
                os.kill(next(p.pid for p in found if "EngineCore" in " ".join(p.cmdline())), signal.SIGKILL)
            assert deaths
            assert all("engine 'target' died: " in str(death) for death in deaths)
            with pytest.raises(EngineDead):
                await engine.generate(asked(engine, PROBLEMS[0]))

    portal.call(scene)
    assert [each for each in psutil.wait_procs(found, timeout=10)[1] if each.status() != psutil.STATUS_ZOMBIE] == []
