"""What is particular to the torch engine: it computes what transformers computes, keeps prefixes, and dies loudly."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from anyio.from_thread import BlockingPortal
from msgspec import structs

from pipeline.engine import Completion
from pipeline.engines.process.engine import share_cores
from pipeline.engines.torch.backend import open_torch
from pipeline.engines.torch.spec import TorchSpec
from pipeline.errors import GraphError
from tests.support.adapters import TARGET, noise, write_adapter
from tests.support.bench import Bench, random_prompt, request, small_model
from tests.support.engines import DRAFT, prompt_of

PROBLEM = "Lily has 19 pens. Lily sells 5 packs of 2. Lily drops 9. How many pens has Lily now?"
NAMES = ("one", "two")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: str(write_adapter(tmp_path_factory.mktemp(name), noise(seed))) for seed, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def references() -> Mapping[str | None, Any]:
    """The bundled target as transformers computes it, one sequence at a time, by the adapter that is merged into its weights."""
    import torch
    from transformers import AutoModelForCausalLM

    models: dict[str | None, Any] = {}
    for name in (None, *NAMES):
        models[name] = model = AutoModelForCausalLM.from_pretrained(TARGET, dtype="float32").eval()
        for place, (a, b) in noise(NAMES.index(name)).items() if name else ():
            model.get_submodule(place).weight.data += torch.from_numpy(b @ a)
    return models


def logprobs_of(model: Any, ids: Sequence[int]) -> Any:
    """The log probabilities of every next token, by a plain forward pass."""
    import torch

    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([list(ids)])).logits[0].float(), dim=-1)


def greedy(model: Any, prompt: Sequence[int], tokens: int) -> list[int]:
    import torch

    written: list[int] = model.generate(torch.tensor([list(prompt)]), max_new_tokens=tokens, do_sample=False)[0, len(prompt) :].tolist()
    return [token for token in written if token != model.generation_config.eos_token_id]


def ids_of(answers: Sequence[Completion]) -> list[list[tuple[int, ...]]]:
    return [[candidate.ids for candidate in answer.candidates] for answer in answers]


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["bundled", "llama", "mistral"])
def test_ragged_sequences_agree_with_plain_forward_passes(tmp_path: Path, references: Mapping[str | None, Any], kind: str) -> None:
    """In chunks, beside others, with shared key heads and, in the last one, with a sliding window."""
    windows = {"sliding_window": 16} if kind == "mistral" else {}
    model = references[None] if kind == "bundled" else small_model(tmp_path, kind, **windows)
    prompts = [random_prompt(n, length) for n, length in enumerate([2, 31, 7, 120, 300, 64])]
    requests = [request(prompt, n=2, temperature=1.0, seed=n, max_tokens=5 + n) for n, prompt in enumerate(prompts)]
    small = Bench(max_num_seqs=9, max_num_batched_tokens=64, **{} if kind == "bundled" else {"model": str(tmp_path)})
    for prompt, answer in zip(prompts, small.run(requests), strict=True):
        for candidate in answer.candidates:
            written = [*candidate.ids, *[model.generation_config.eos_token_id] * candidate.ended]
            logprobs = logprobs_of(model, prompt + written)
            total = sum(float(logprobs[len(prompt) - 1 + k, i]) for k, i in enumerate(written))
            assert candidate.cumulative_logprob == pytest.approx(total, abs=1e-3)


@pytest.mark.torch
def test_each_request_has_its_own_adapter_whatever_runs_beside_it(adapters: dict[str, str], references: Mapping[str | None, Any]) -> None:
    bench = Bench(adapters=adapters, max_num_seqs=6, max_num_batched_tokens=32)
    prompt, options = random_prompt(7, 40), (5, 60, 100)
    kinds: list[dict[str, Any]] = [{"max_tokens": 12}, {"option_ids": options, "max_tokens": 1}]
    asked = [request(prompt, adapter=name, **kind) for kind in kinds for name in (None, *NAMES)]
    first, answers = bench.run(asked[:3]), bench.run(asked)
    assert [answer.usage.cached_input_tokens for answer in first] == [0] * 3, "the same prompt, each time with another adapter"
    assert [answer.usage.cached_input_tokens for answer in answers] == [39] * 6
    assert ids_of(first) == ids_of(answers[:3])
    for each, answer in zip(asked, answers, strict=True):
        model = references[each.adapter]
        if each.option_ids:
            assert answer.option_logprobs == pytest.approx(logprobs_of(model, prompt)[39, list(options)].tolist(), abs=1e-4)
        else:
            assert list(answer.candidates[0].ids) == greedy(model, prompt, 12)[: len(answer.candidates[0].ids)]


@pytest.mark.torch
def test_eviction_under_pressure_changes_no_text() -> None:
    prompts = [random_prompt(n % 5, 40) + random_prompt(n, 20) for n in range(24)]
    requests = [request(prompt, n=2, temperature=1.0, seed=n, affinity=str(n % 7)) for n, prompt in enumerate(prompts)]
    roomy, tight = Bench(max_num_seqs=100).run(requests), Bench(max_num_seqs=3).run(requests)
    assert ids_of(roomy) == ids_of(tight)


@pytest.mark.torch
def test_the_prefix_of_a_chain_survives_its_verification_and_its_leftover_candidates() -> None:
    bench = Bench(max_num_seqs=4)

    def cached(prompt: list[int], **options: Any) -> int | None:
        return bench.run([request(prompt, **options)])[0].usage.cached_input_tokens

    context = random_prompt(1, 100)
    assert cached(context, affinity="a") == 0
    assert cached(context + random_prompt(2, 30), max_tokens=1, option_ids=(30, 31), affinity="a") == 100
    assert cached(context, affinity="a") == 99
    assert cached(context[:60] + random_prompt(3, 10), affinity="b") == 60
    assert cached(context, affinity="a") == 99
    bench.runner.reset_prefix_cache()
    assert [cached(random_prompt(chain, 80), n=4, temperature=1.0, affinity=str(chain)) for chain in range(4)] == [0] * 4
    assert [cached(random_prompt(chain, 80), affinity=str(chain)) for chain in range(4)] == [79] * 4


@pytest.mark.torch
def test_lower_priority_numbers_go_first_and_none_waits_for_ever() -> None:
    bench = Bench(max_num_seqs=1)
    late = [request(random_prompt(n, 10), max_tokens=1, priority=n % 2) for n in range(30)]
    bench.run([request(random_prompt(99, 10), max_tokens=2, priority=9), *late])
    assert [n - 1 for n in bench.order if n][:6] == [0, 2, 4, 6, 8, 10]
    assert bench.order.index(0) < 10, "every eighth admission goes to the oldest"


@pytest.mark.torch
def test_slots_hold_what_they_say() -> None:
    """Placements and copies, carried out on a model of the store, always leave the promised prefix in place."""
    from pipeline.engines.torch.cache import SlotTable

    random = np.random.default_rng(0)
    slots, store, running = SlotTable(9, 64), np.full((9, 64), -1), {}
    stems = [random.integers(0, 3, 50) for _ in range(4)]
    for _ in range(2000):
        if running and (len(running) == 6 or random.random() < 0.5):
            slots.release(running.popitem()[0])
            continue
        prompt = np.concatenate([stems[random.integers(4)][: random.integers(1, 50)], random.integers(0, 3, random.integers(1, 10))])
        placed = slots.place(prompt, str(random.integers(5)))
        for source, target, tokens in placed.copies:
            assert target not in running
            store[target, :tokens] = store[source, :tokens]
        assert placed.slot not in running
        assert placed.cached < len(prompt)
        assert (store[placed.slot, : placed.cached] == prompt[: placed.cached]).all()
        positions = np.arange(placed.cached, len(prompt))
        store[placed.slot, positions] = prompt[positions]
        slots.write(np.full(len(positions), placed.slot), positions, prompt[positions])
        running[placed.slot] = prompt
        for slot, content in running.items():
            assert (store[slot, : len(content)] == content).all()


@pytest.mark.torch
def test_stop_strings_may_span_tokens_or_end_inside_one() -> None:
    from pipeline.engines.torch.sequences import Stops

    pieces = ["a", "b\n", "\n", "\n\nc", " "]
    stops = Stops(("\n\n", "a a a"), (), frozenset(), lambda ids: "".join(pieces[i] for i in ids))
    found = [stops.reason(ids) if stops.may_end(ids[-1]) else None for ids in ([0, 1], [0, 1, 2], [0, 3], [2], [0, 4, 0, 4, 0])]
    assert found == [None, "\n\n", "\n\n", None, "a a a"]


@pytest.mark.torch
def test_a_worker_stands_on_its_core_also_once_it_is_started_again(portal: BlockingPortal) -> None:
    core = min(os.sched_getaffinity(0))

    async def main() -> None:
        async with open_torch({"draft": structs.replace(DRAFT, device="cpu", core=core)}) as engines:
            engine = engines["draft"]
            known = {"answers": "model", "devices": (f"CPU core {core}",), "cores": 1, "kv_cache_tokens": 16 * 512}
            assert known.items() <= engine.facts.items()
            assert "accelerators" not in engine.facts
            assert os.sched_getaffinity(engine.pid) == {core}
            await engine.restart()
            assert os.sched_getaffinity(engine.pid) == {core}
            assert (await engine.generate(request(prompt_of(engine, PROBLEM)))).candidates

    portal.call(main)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (TorchSpec(model="bundled:tiny-drafd"), "did you mean `tiny-draft`"),
        (TorchSpec(model="/no/such/folder"), "no such directory: /no/such/folder"),
    ],
    ids=["bundled", "folder"],
)
def test_what_cannot_start_is_said_before_a_worker_is_there(spec: TorchSpec, says: str) -> None:
    async def main() -> None:
        async with open_torch({"draft": spec}):
            pass

    with pytest.raises(GraphError, match=f"engine 'draft': .*{says}"):
        anyio.run(main)


def test_cores_are_shared_out_only_if_there_are_enough() -> None:
    free, pinned = TorchSpec(model="m"), TorchSpec(model="m", core=1)
    assert share_cores({"a": free, "b": free}, [4, 6]) == {"a": (4,), "b": (6,)}
    assert share_cores({"a": free, "b": free, "c": free}, [4, 6]) == {"a": (), "b": (), "c": ()}
    assert share_cores({"a": pinned, "b": free}, [4, 6]) == {"a": (6,), "b": (4,)}
    with pytest.raises(GraphError, match=r"^engine 'a': core 1 with 1 threads: this process has 1 CPU cores, counted from 0"):
        share_cores({"a": pinned}, [4])
