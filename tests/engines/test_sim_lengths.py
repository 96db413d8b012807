"""How long simulated thoughts are: distributions, presets against what was measured, steps to the token."""

import math
from itertools import pairwise
from statistics import NormalDist, fmean, pstdev

import pytest
from msgspec import structs

from pipeline.engine import Request
from pipeline.engines.sim.device import devices_of
from pipeline.engines.sim.spec import MAX_LENGTHS, PRESETS, Distribution, Preset, SimTextSpec, log_normal, quantiles
from pipeline.engines.sim.text import TextModel
from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.errors import GraphError
from pipeline.graph.prompts import DELIMITER, THINK_CLOSE
from pipeline.reasoning.prompts import PromptBuilder
from tests.support.engines import SIM

TOKENIZER = SimTokenizer()
DIALECT = PromptBuilder(TOKENIZER)
CLOSE = TOKENIZER.special_ids[THINK_CLOSE]
NORMALS = [NormalDist().inv_cdf((number + 0.5) / 2000) for number in range(2000)]
CHARACTERS_A_TOKEN = 2.8
SHORTEST_STEP = 3
"""Tokens of the shortest simulated step where lengths are measured ones."""


def spread(found: Distribution, least: int) -> list[int]:
    """The whole lengths of `found`, each as likely as the others, in order."""
    return [max(least, round(found(normal))) for normal in NORMALS]


def lengths(preset: Preset) -> tuple[list[int], list[int]]:
    """Steps of a thought and tokens of a step, as `TextModel` draws them."""
    text = SimTextSpec(preset=preset)
    return spread(text.distribution("steps"), 1), spread(text.distribution("step_tokens"), SHORTEST_STEP)


def log_sigma(values: list[int]) -> float:
    return pstdev(map(math.log, values))


def share(values: list[int], part: float) -> int:
    return values[int(part * len(values))]


def test_gsm8k_has_the_lengths_that_were_measured() -> None:
    steps, tokens = lengths("gsm8k")
    assert fmean(steps) == pytest.approx(8.7, rel=0.03)
    assert log_sigma(steps) == pytest.approx(0.72, abs=0.02)
    assert [share(steps, part) for part in (0.5, 0.9, 0.99)] == pytest.approx([4, 11, 64], rel=0.05)
    assert fmean(tokens) * CHARACTERS_A_TOKEN == pytest.approx(137, rel=0.03)
    assert log_sigma(tokens) == pytest.approx(0.90, abs=0.02)
    assert [share(tokens, part) * CHARACTERS_A_TOKEN for part in (0.5, 0.9, 0.99)] == pytest.approx([116, 272, 444], rel=0.02)
    assert fmean(steps) * fmean(tokens) * CHARACTERS_A_TOKEN == pytest.approx(1210, rel=0.05)


def test_math_has_the_lengths_that_were_measured_once_it_is_cut_as_those_were() -> None:
    steps, tokens = lengths("math")
    assert fmean(min(count * fmean(tokens) * CHARACTERS_A_TOKEN, 8600) for count in steps) == pytest.approx(4760, rel=0.02)
    assert fmean(min(count, 8600 / 109) for count in steps) == pytest.approx(42.8, rel=0.03)
    assert fmean(tokens) * CHARACTERS_A_TOKEN == pytest.approx(109, rel=0.02)
    assert share(tokens, 0.5) * CHARACTERS_A_TOKEN == pytest.approx(71, rel=0.03)
    assert log_sigma(tokens) == pytest.approx(1.0, abs=0.05)


def test_aime_has_40_to_200_steps_of_the_measured_length() -> None:
    steps, tokens = lengths("aime")
    assert (share(steps, 0.1), share(steps, 0.9)) == (40, 200)
    assert fmean(tokens) * CHARACTERS_A_TOKEN == pytest.approx(134, rel=0.02)
    assert share(tokens, 0.5) * CHARACTERS_A_TOKEN == pytest.approx(104, rel=0.03)
    assert log_sigma(tokens) == pytest.approx(0.98, abs=0.05)


def test_quantiles_are_met_and_between_them_the_distribution_is_log_normal() -> None:
    found = quantiles({10: 5, 50: 20, 99.9: 300, 100: 400}, MAX_LENGTHS["steps"])
    for part, value in ((0.1, 5), (0.5, 20), (0.999, 300)):
        assert found(NormalDist().inv_cdf(part)) == pytest.approx(value)
    assert found(8) == pytest.approx(400)
    assert all(below <= above for below, above in pairwise(map(found, NORMALS)))
    two = quantiles({10: math.exp(3 - 1.2815515655 * 0.7), 90: math.exp(3 + 1.2815515655 * 0.7)}, MAX_LENGTHS["steps"])
    normal = log_normal(math.exp(3 + 0.7**2 / 2), 0.7)
    assert [two(z) for z in (-2, -0.3, 0, 1.7, 3)] == pytest.approx([normal(z) for z in (-2, -0.3, 0, 1.7, 3)])


def test_without_bounds_no_length_is_below_1_or_above_the_most() -> None:
    steep = quantiles({49: 2, 51: 5000}, MAX_LENGTHS["steps"])
    assert (steep(-7), steep(7)) == pytest.approx((1, MAX_LENGTHS["steps"]))


def test_lengths_have_one_source() -> None:
    with pytest.raises(ValueError, match="`preset` and `step_tokens_sigma` both set `step_tokens`; drop one"):
        SimTextSpec(preset="math", step_tokens_sigma=0.7)
    assert SimTextSpec().distribution("steps")(1) == log_normal(12, 0.5)(1)


def write(model: TextModel, prompt: list[int], seed: int, limit: int = 8192) -> tuple[int, ...]:
    request = Request(request_id="r", prompt_ids=prompt, max_tokens=limit, temperature=1.0, seed=seed, stop=(DELIMITER,), stop_ids=(CLOSE,))
    return model.write(request, tuple(prompt), limit)[0].ids


@pytest.mark.parametrize("preset", PRESETS)
def test_all_steps_of_a_preset_have_drawn_lengths(preset: Preset) -> None:
    """Of whole thoughts, which is where markers that were too long would show."""
    text = SimTextSpec(preset=preset)
    model, least = TextModel("m", text), SHORTEST_STEP
    drawn: list[int] = []
    for number in range(6):
        prompt = DIALECT.generation(f"Problem {number}?")
        steps = model.read(tuple(prompt)).total
        request = Request(request_id="r", prompt_ids=prompt, max_tokens=40_000, temperature=1.0, seed=number, stop_ids=(CLOSE,))
        [thought] = model.write(request, tuple(prompt), 40_000)
        parts = thought.text.removesuffix(THINK_CLOSE).split(DELIMITER)
        assert len(parts) == steps
        drawn += [len(TOKENIZER.encode(part)) + 1 for part in parts]
    assert min(drawn) >= least
    assert fmean(drawn) == pytest.approx(fmean(lengths(preset)[1]), rel=5 * 1.2 / math.sqrt(len(drawn)))


def test_engines_that_disagree_on_the_number_of_steps_are_refused() -> None:
    with pytest.raises(GraphError, match="engine 'b': text: its thoughts differ in numbers of steps from those of 'a'"):
        devices_of({"a": SIM, "b": structs.replace(SIM, text=SimTextSpec(preset="math"))})


def test_engines_of_one_preset_agree_on_the_number_of_steps() -> None:
    draft, target = (TextModel(name, SimTextSpec(preset="math")) for name in ("draft", "target"))
    prompts = [tuple(DIALECT.generation(f"Problem {number}?")) for number in range(50)]
    counts = [draft.read(prompt).total for prompt in prompts]
    assert counts == [target.read(prompt).total for prompt in prompts]
    assert len(set(counts)) > 20
