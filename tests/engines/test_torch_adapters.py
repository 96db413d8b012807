"""Adapters in engine `torch`: a request with one computes what the model with merged weights computes, whatever runs beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.engine import Completion
from tests.support.adapters import TARGET, noise, noisy, write_adapter
from tests.support.bench import Bench, random_prompt, request

pytestmark = pytest.mark.torch
NAMES = ("one", "two")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: str(noisy(tmp_path_factory.mktemp(name), seed)) for seed, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def merged() -> dict[str | None, Any]:
    """The bundled target as transformers computes it, by the adapter that is merged into its weights."""
    import torch
    from transformers import AutoModelForCausalLM

    models: dict[str | None, Any] = {}
    for name in (None, *NAMES):
        models[name] = model = AutoModelForCausalLM.from_pretrained(TARGET, dtype="float32").eval()
        for place, (a, b) in noise(NAMES.index(name)).items() if name else ():
            model.get_submodule(place).weight.data += torch.from_numpy(b @ a)
    return models


def greedy(model: Any, prompt: Sequence[int], tokens: int) -> list[int]:
    import torch

    written: list[int] = model.generate(torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False)[0, len(prompt) :].tolist()
    return written


def test_each_request_has_its_own_adapter_whatever_runs_beside_it(folders: dict[str, str], merged: dict[str | None, Any]) -> None:
    bench = Bench(adapters=folders, max_num_seqs=6, max_num_batched_tokens=32)
    prompts = [random_prompt(seed, 40) for seed in range(3)]
    asked = [request(prompt, adapter=name, max_tokens=12) for prompt in prompts for name in (None, *NAMES)]
    first, again = bench.run(asked), bench.run(asked)
    for each, answer, repeated in zip(asked, first, again, strict=True):
        expected = greedy(merged[each.adapter], each.prompt_ids, 12)
        assert list(answer.candidates[0].ids) == list(repeated.candidates[0].ids) == expected[: len(answer.candidates[0].ids)]
    assert [answer.usage.cached_input_tokens for answer in first] == [0] * 9, "the same prompts, each time with another adapter"
    assert len({round(answer.candidates[0].cumulative_logprob or 0, 3) for answer in first}) == 9
    assert sum(answer.usage.cached_input_tokens for answer in again) > 0


def test_log_probabilities_of_all_kinds_are_those_of_the_adapter(folders: dict[str, str], merged: dict[str | None, Any]) -> None:
    import torch

    bench, prompt = Bench(adapters=folders), random_prompt(7, 30)
    kinds: list[dict[str, Any]] = [{"option_ids": (5, 60, 100), "max_tokens": 1}, {"scored_ids": (9, 8, 7)}]
    asked = [request(prompt, adapter=name, **kind) for kind in kinds for name in (None, *NAMES)]
    answers: list[Completion] = bench.run(asked)
    with torch.inference_mode():
        said = {name: torch.log_softmax(model(torch.tensor([[*prompt, 9, 8, 7]])).logits[0], -1) for name, model in merged.items()}
    for each, answer in zip(asked, answers, strict=True):
        table = said[each.adapter]
        if each.option_ids:
            assert answer.option_logprobs == pytest.approx(table[29, list(each.option_ids)].tolist(), abs=1e-4)
        else:
            assert answer.scored_logprobs == pytest.approx([table[29 + i, token].item() for i, token in enumerate((9, 8, 7))], abs=1e-4)


def test_several_candidates_and_an_abort_beside_an_adapter(folders: dict[str, str]) -> None:
    """What decodes with another adapter goes on when its neighbours leave the batch."""
    asked = [request(random_prompt(1, 20), adapter=name, n=3, temperature=0.9, seed=4, max_tokens=20) for name in (None, *NAMES)]
    alone = [Bench(adapters=folders).run([each])[0] for each in asked]
    bench = Bench(adapters=folders, max_num_seqs=7)
    for number, each in enumerate([*asked, structs.replace(asked[1], request_id="gone")]):
        bench.runner.add(number, each)
    bench.runner.step()
    bench.runner.abort(3)
    done: dict[int, Completion] = {}
    while not bench.runner.idle:
        done |= dict(bench.runner.step())
    assert [[c.ids for c in done[number].candidates] for number in range(3)] == [[c.ids for c in each.candidates] for each in alone]


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"target_modules": ["k_proj", "v_proj", "q_proj"]}, "14 matrices of the adapter in .* are not in its file"),
        ({"target_modules": ["c_attn"]}, "the adapter in .* does not fit: Target modules"),
    ],
)
def test_an_adapter_that_peft_cannot_put_together_keeps_the_engine_from_opening(tmp_path: Path, config: dict[str, Any], what: str) -> None:
    from pipeline.errors import UsageError

    with pytest.raises(UsageError, match=what):
        Bench(adapters={"odd": str(write_adapter(tmp_path, noise(0), **config))})
