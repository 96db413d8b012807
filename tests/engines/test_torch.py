"""What is particular to the torch engine: it computes what transformers computes, keeps prefixes, and dies loudly."""

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from anyio.from_thread import BlockingPortal
from msgspec import structs

from pipeline.engines.cores import share_cores
from pipeline.engines.models import resolve
from pipeline.engines.torch.backend import open_torch
from pipeline.engines.torch.slots import SlotTable
from pipeline.engines.torch.spec import TorchSpec
from pipeline.errors import EngineDead, GraphError
from tests.support.bench import Bench, InProcess, random_prompt, request
from tests.support.engines import DRAFT, TARGET, ask_all, prompt_of

PROBLEMS = [
    "Lily has 19 pens. Lily sells 5 packs of 2. Lily drops 9. How many pens has Lily now?",
    "Hugo has 3 cards. Hugo buys 8. How many cards has Hugo now?",
    "Finn has 12 coins. Finn finds 4. Finn loses 3. Finn gets 2 bags of 5. How many coins has Finn now?",
    "Mia has 7 apples. Mia eats 3. How many apples has Mia now?",
]


@pytest.fixture(scope="session")
def reference() -> Any:
    """The bundled target as transformers computes it, one sequence at a time, in float32 like the engine."""
    from transformers import AutoModelForCausalLM

    folder = resolve("target", "bundled:tiny-target")
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def reference_logprobs(reference: Any, ids: Sequence[int]) -> Any:
    import torch

    with torch.inference_mode():
        return torch.log_softmax(reference(torch.tensor([list(ids)])).logits[0].float(), dim=-1)


@pytest.mark.torch
def test_greedy_text_is_what_transformers_generates(reference: Any) -> None:
    import torch

    engine = InProcess("draft", TARGET)
    prompts = [prompt_of(engine, problem) for problem in PROBLEMS]
    answers = anyio.run(ask_all, engine, [request(prompt, max_tokens=80) for prompt in prompts])
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = reference.generate(torch.tensor([prompt]), max_new_tokens=80, do_sample=False)[0, len(prompt) :].tolist()
        assert list(answer.candidates[0].ids) == [i for i in expected if i not in engine.tokenizer.eos_ids]
        assert "\\boxed" in answer.candidates[0].text


@pytest.mark.torch
def test_ragged_sequences_agree_with_plain_forward_passes(reference: Any) -> None:
    prompts = [random_prompt(n, length) for n, length in enumerate([2, 31, 7, 120, 300, 64])]
    requests = [request(prompt, n=2, temperature=1.0, seed=n, max_tokens=5 + n) for n, prompt in enumerate(prompts)]
    for prompt, answer in zip(prompts, Bench(max_num_seqs=9).run(requests), strict=True):
        for candidate in answer.candidates:
            logprobs = reference_logprobs(reference, [*prompt, *candidate.ids])
            total = sum(float(logprobs[len(prompt) - 1 + k, i]) for k, i in enumerate(candidate.ids))
            assert candidate.cumulative_logprob == pytest.approx(total, abs=1e-3)


def small_model(folder: Path, kind: str, **options: Any) -> Any:
    """A random model of another architecture, saved with the bundled tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    bundled = Path(resolve("draft", DRAFT.model))
    for path in bundled.glob("tokenizer*"):
        shutil.copy(path, folder)
    size = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
    rest = {"vocab_size": 560, "max_position_embeddings": 512, "initializer_range": 0.2, "eos_token_id": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **size | rest | options)).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_shared_key_heads_and_sliding_windows_are_computed_rightly(tmp_path: Path, kind: str) -> None:
    model = small_model(tmp_path, kind, **({"sliding_window": 16} if kind == "mistral" else {}))
    prompts = [random_prompt(n, 5 + 17 * n) for n in range(4)]
    requests = [request(prompt, n=2, temperature=1.0, seed=n) for n, prompt in enumerate(prompts)]
    for prompt, answer in zip(prompts, Bench(model=str(tmp_path), max_num_batched_tokens=16).run(requests), strict=True):
        for candidate in answer.candidates:
            logprobs = reference_logprobs(model, [*prompt, *candidate.ids])
            total = sum(float(logprobs[len(prompt) - 1 + k, i]) for k, i in enumerate(candidate.ids))
            assert candidate.cumulative_logprob == pytest.approx(total, abs=1e-3)


@pytest.mark.torch
def test_attention_that_is_not_supported_is_refused(tmp_path: Path) -> None:
    from pipeline.errors import UsageError

    small_model(tmp_path, "gemma2", head_dim=16)
    with pytest.raises(UsageError, match="soft caps"):
        Bench(model=str(tmp_path))


@pytest.mark.torch
def test_scored_tokens_agree_with_plain_forward_passes(reference: Any) -> None:
    prompt, scored = random_prompt(1, 40), random_prompt(2, 30)
    expected = reference_logprobs(reference, prompt + scored)
    bench = Bench(max_num_batched_tokens=16)
    for cached in (0, len(prompt) - 1):
        (answer,) = bench.run([request(prompt, scored_ids=tuple(scored))])
        assert answer.scored_logprobs == pytest.approx([float(expected[39 + k, i]) for k, i in enumerate(scored)], abs=1e-3)
        assert answer.candidates == ()
        assert answer.usage.cached_input_tokens == cached


@pytest.mark.torch
def test_eviction_under_pressure_changes_no_text() -> None:
    prompts = [random_prompt(n % 5, 40) + random_prompt(n, 20) for n in range(24)]
    requests = [request(prompt, n=2, temperature=1.0, seed=n, affinity=str(n % 7)) for n, prompt in enumerate(prompts)]
    roomy, tight = Bench(max_num_seqs=64, kv_cache_slots=200).run(requests), Bench(max_num_seqs=4, kv_cache_slots=5).run(requests)
    assert [[c.ids for c in a.candidates] for a in roomy] == [[c.ids for c in a.candidates] for a in tight]


@pytest.mark.torch
def test_a_verification_keeps_the_prefix_of_its_chain() -> None:
    bench = Bench(max_num_seqs=4, kv_cache_slots=8)
    context = random_prompt(1, 100)
    bench.run([request(context, affinity="a")])
    (verify,) = bench.run([request(context + random_prompt(2, 30), max_tokens=1, option_ids=(30, 31), affinity="a")])
    assert verify.usage.cached_input_tokens == 100
    (fallback,) = bench.run([request(context, affinity="a")])
    assert fallback.usage.cached_input_tokens == 99
    (other,) = bench.run([request(context[:60] + random_prompt(3, 10), affinity="b")])
    assert other.usage.cached_input_tokens == 60
    (again,) = bench.run([request(context, affinity="a")])
    assert again.usage.cached_input_tokens == 99


@pytest.mark.torch
def test_leftover_candidates_are_evicted_before_other_chains_prefixes() -> None:
    bench = Bench(max_num_seqs=4, kv_cache_slots=8)
    for chain in range(4):
        bench.run([request(random_prompt(chain, 80), n=4, temperature=1.0, affinity=str(chain))])
    again = [bench.run([request(random_prompt(chain, 80), affinity=str(chain))])[0] for chain in range(4)]
    assert [a.usage.cached_input_tokens for a in again] == [79] * 4


@pytest.mark.torch
def test_lower_priority_numbers_go_first_and_none_waits_for_ever() -> None:
    bench = Bench(max_num_seqs=1)
    late = [request(random_prompt(n, 10), max_tokens=1, priority=n % 2) for n in range(30)]
    bench.run([request(random_prompt(99, 10), max_tokens=2, priority=9), *late])
    order = [n - 1 for n in bench.order if n]
    urgent_first = [n for n in order if n % 2 == 0] + [n for n in order if n % 2]
    assert order[:6] == [0, 2, 4, 6, 8, 10]
    assert bench.order.index(0) < 10, "every eighth admission goes to the oldest"
    assert sorted(order) == sorted(urgent_first)


def test_slots_hold_what_they_say() -> None:
    """Placements and copies, carried out on a model of the store, always leave the promised prefix in place."""
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
def test_top_k_and_min_p_leave_only_the_likeliest_and_top_p_counts_what_they_leave(reference: Any) -> None:
    prompt = random_prompt(5, 20)
    ordered, order = reference_logprobs(reference, prompt)[-1].exp().sort(descending=True)
    share = float(ordered[3] / ordered[0])
    few = float(ordered[:2].sum() / ordered[:4].sum()) - 1e-3
    nucleus = int((ordered.cumsum(0) < 0.4).sum()) + 1
    bounds: list[tuple[dict[str, Any], int]] = [
        ({"top_p": 0.4}, nucleus),
        ({"top_k": 4}, 4),
        ({"min_p": share * 0.999}, 4),
        ({"top_k": 4, "min_p": share * 1.001}, 3),
        ({"top_k": 4, "top_p": few}, 2),
    ]
    asked = [request(prompt, n=60, max_tokens=1, temperature=1.0, **bound) for bound, _ in bounds]
    for answer, (bound, count) in zip(Bench().run(asked), bounds, strict=True):
        drawn = {candidate.ids[0] for candidate in answer.candidates}
        assert drawn <= set(order[:count].tolist()), bound
        assert len(drawn) > 1 or count == 1, bound


@pytest.mark.torch
def test_samples_follow_the_distribution(reference: Any) -> None:
    prompt = random_prompt(6, 20)
    (answer,) = Bench().run([request(prompt, n=600, max_tokens=1, temperature=1.0)])
    probabilities = reference_logprobs(reference, prompt)[-1].exp()
    counts = np.bincount([c.ids[0] if c.ids else 0 for c in answer.candidates], minlength=len(probabilities))
    assert np.abs(counts / 600 - probabilities.numpy()).max() < 0.07


@pytest.mark.torch
def test_a_worker_stands_on_its_core_and_one_that_is_killed_is_started_again_there(portal: BlockingPortal) -> None:
    core = min(os.sched_getaffinity(0))

    async def main() -> None:
        async with open_torch({"draft": structs.replace(DRAFT, device="cpu", core=core, kv_cache_slots=10)}) as engines:
            engine = engines["draft"]
            known = {"answers": "model", "devices": (f"CPU core {core}",), "cores": 1, "kv_cache_tokens": 10 * 512}
            assert known.items() <= engine.facts.items()
            assert "accelerators" not in engine.facts
            asked = request(prompt_of(engine, PROBLEMS[0]), max_tokens=12)
            first, killed, before = await engine.generate(asked), engine.pid, engine.statistics()
            os.kill(killed, signal.SIGKILL)
            with pytest.raises(EngineDead, match="SIGKILL"):
                await engine.generate(asked)
            await engine.restart()
            assert (await engine.generate(asked)).candidates == first.candidates
            after = engine.statistics()
            assert engine.pid != killed
            assert os.sched_getaffinity(engine.pid) == {core}
            assert (after.restarts, after.requests) == (1, before.requests + 1)

    portal.call(main)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (TorchSpec(model="bundled:tiny-drafd"), "did you mean `tiny-draft`"),
        (TorchSpec(model="/no/such/folder"), "no such directory: /no/such/folder"),
        (TorchSpec(model="bundled:tiny-draft", kv_cache_slots=3), "kv_cache_slots is 3"),
    ],
    ids=["bundled", "folder", "slots"],
)
def test_what_cannot_start_is_said_before_a_worker_is_there(spec: TorchSpec, says: str) -> None:
    async def main() -> None:
        async with open_torch({"draft": spec}):
            pass

    with pytest.raises(GraphError, match=f"engine 'draft': .*{says}"):
        anyio.run(main)


@pytest.mark.torch
def test_a_context_that_the_model_does_not_have_is_refused() -> None:
    from pipeline.errors import UsageError

    with pytest.raises(UsageError, match="max_model_len is 1048576, but the model supports 4096"):
        Bench(max_model_len=1 << 20)


def test_cores_are_shared_out_only_if_there_are_enough() -> None:
    free, pinned = TorchSpec(model="m"), TorchSpec(model="m", core=1)
    assert share_cores({"a": free, "b": free}, [4, 6]) == {"a": (4,), "b": (6,)}
    assert share_cores({"a": free, "b": free, "c": free}, [4, 6]) == {"a": (), "b": (), "c": ()}
    assert share_cores({"a": pinned, "b": free}, [4, 6]) == {"a": (6,), "b": (4,)}
    with pytest.raises(GraphError, match=r"^engine 'a': core 1 with 1 threads: this process has 1 CPU cores, counted from 0"):
        share_cores({"a": pinned}, [4])


def stops_of(*strings: str) -> Callable[[list[int]], Any]:
    from pipeline.engines.torch.sequences import Stops

    pieces = ["a", "b\n", "\n", "\n\nc", " "]
    stops = Stops(strings, (), frozenset(), lambda ids: "".join(pieces[i] for i in ids))
    return lambda ids: stops.reason(ids) if stops.may_end(ids[-1]) else None


@pytest.mark.torch
def test_stop_strings_may_span_tokens_or_end_inside_one() -> None:
    reason = stops_of("\n\n", "a a a")
    assert [reason(ids) for ids in ([0, 1], [0, 1, 2], [0, 3], [2], [0, 4, 0, 4, 0])] == [None, "\n\n", "\n\n", None, "a a a"]
