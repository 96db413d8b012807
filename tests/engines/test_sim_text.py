"""What simulated models write and judge: lengths, quality, stops, and that prompts can be read back."""

import math
from pathlib import Path
from statistics import NormalDist, fmean, pstdev
from string import ascii_lowercase
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from pipeline.confidence import Confidence
from pipeline.engine import Candidate, Content, Request
from pipeline.engines.sim.device import devices_of
from pipeline.engines.sim.output import GATE_AUC
from pipeline.engines.sim.spec import MAX_LENGTHS, PRESETS, Preset, SimTextSpec, log_normal, quantiles
from pipeline.engines.sim.text import TextModel, sim_answer
from pipeline.engines.sim.tokenizer import SPECIALS, VOCAB_SIZE, SimTokenizer
from pipeline.errors import GraphError
from pipeline.graph.prompts import DELIMITER, LABELS, THINK_CLOSE
from pipeline.reasoning.prompts import OptionPrompt, PromptBuilder
from tests.support.engines import SIM

TOKENIZER = SimTokenizer()
DIALECT = PromptBuilder(TOKENIZER)
PROBLEM = "How many apples are 17 + 25?"
CLOSE = TOKENIZER.special_ids["</think>"]
DEFAULT = SimTextSpec()
ENGINES = Path(__file__).parents[2] / "graphs/engines"
STEP: dict[str, Any] = {"stop": (DELIMITER,), "stop_ids": (CLOSE,)}


def write(prompt: list[int], text: SimTextSpec = DEFAULT, limit: int = 4096, **fields: Any) -> list[Candidate]:
    request = Request(request_id="r", prompt_ids=prompt, max_tokens=limit, **{"temperature": 1.0, **fields})
    return TextModel("m", text).write(request, tuple(prompt), limit)


def thought(text: SimTextSpec, seed: int = 0, problem: str = PROBLEM) -> list[Candidate]:
    """All steps of a thought, one request each."""
    prompt, steps = DIALECT.generation(problem), []
    while not steps or steps[-1].ids[-1] != CLOSE:
        steps += write(prompt, text, seed=seed + len(steps), **STEP)
        prompt += steps[-1].ids
    return steps


def boxed(text: str) -> str:
    return text.partition("\\boxed{")[2].partition("}")[0]


@given(st.text() | st.lists(st.sampled_from([*SPECIALS, DELIMITER, "\n", "<", "A1", " é中𝄞"])).map("".join))
@example("\n\n\n<think")
def test_any_text_survives(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert all(0 <= token < VOCAB_SIZE for token in ids)


@given(st.text(max_size=20), st.sampled_from([DELIMITER, *SPECIALS, *LABELS]), st.text(max_size=20))
def test_no_token_reaches_over_a_boundary(before: str, boundary: str, after: str) -> None:
    before, after = before.rstrip("\n< "), after.lstrip(f"\n{ascii_lowercase}")
    encode = TOKENIZER.encode
    assert len(encode(boundary)) == 1
    assert encode(before + boundary + after) == encode(before) + encode(boundary) + encode(after)


@pytest.mark.parametrize("tokens", [3, 4, 5, 9, 13, 40])
def test_steps_and_answers_are_as_short_as_stated(tokens: int) -> None:
    text = SimTextSpec(step_tokens_mean=tokens, step_tokens_sigma=0, steps_mean=30, answer_tokens=tokens, step_accuracy=1)
    steps = thought(text)
    assert {len(step.ids) for step in steps} == {tokens}
    [answer] = write(DIALECT.generation(PROBLEM) + [token for step in steps for token in step.ids] + TOKENIZER.encode(DELIMITER), text)
    assert len(answer.ids) == max(tokens, len(sim_answer(PROBLEM)))
    assert sim_answer(PROBLEM) in answer.text
    assert ("\\boxed{" in answer.text) == (tokens >= 4 + len(sim_answer(PROBLEM)))


def test_the_text_depends_on_seed_and_index_alone() -> None:
    prompt = DIALECT.generation(PROBLEM)
    three = write(prompt, n=3, seed=7, **STEP)
    assert write(prompt, n=3, seed=7, **STEP) == three
    assert write(prompt, n=1, seed=7, **STEP) == three[:1]
    assert len({written.ids for written in three}) == 3
    assert write(prompt, seed=8, **STEP)[0].ids != three[0].ids
    assert write(prompt, seed=8, temperature=0.0, **STEP) == write(prompt, seed=9, temperature=0.0, **STEP)


def test_a_thought_cut_off_early_is_right_as_often_as_it_is_long() -> None:
    text = SimTextSpec(step_accuracy=1, steps_mean=4, steps_sigma=0)
    right = 0
    for number in range(400):
        problem = f"Problem number {number}?"
        prompt = DIALECT.generation(problem)
        prompt += write(prompt, text, **STEP)[0].ids
        [said] = write(prompt + DIALECT.close_thought_ids, text)
        right += boxed(said.text) == sim_answer(problem)
    assert right / 400 == pytest.approx(0.25, abs=0.06)


def test_an_answer_asked_for_early_is_that_of_the_thought_ended_there_and_looks_sure_as_often_as_stated() -> None:
    text = SimTextSpec(step_accuracy=1, steps_mean=4, steps_sigma=0)
    sure: dict[bool, list[float]] = {True: [], False: []}
    for number in range(300):
        problem = f"Problem number {number}?"
        prompt, stood = DIALECT.generation(problem), False
        for _ in range(3):
            prompt += write(prompt, text, **STEP)[0].ids
            [trial] = write(DIALECT.trial(prompt), text, logprobs=True)
            [answer] = write([*prompt, *DIALECT.close_thought_ids], text)
            right = trial.text == f"{sim_answer(problem)}}}."
            assert trial.ended
            assert trial.confidence is not None
            assert trial.confidence.flaw is None
            assert right == (boxed(answer.text) == sim_answer(problem))
            assert right >= stood, "an answer that stands goes on to stand"
            stood = right
            sure[right].append(math.exp(trial.confidence.mean))
    above = {right: sum(each >= 0.95 for each in sure[right]) / len(sure[right]) for right in sure}
    assert above == {True: pytest.approx(0.82, abs=0.06), False: pytest.approx(0.18, abs=0.06)}


def test_any_stop_string_ends_after_the_token_that_completes_it() -> None:
    prompt = DIALECT.generation(PROBLEM)
    [written] = write(prompt, stop=("e su",))
    text = TOKENIZER.decode(written.ids)
    assert written.stop_reason == "e su"
    assert "e su" in text
    assert "e su" not in TOKENIZER.decode(written.ids[:-1])


def verification(prompt: OptionPrompt) -> Request:
    content = Content("", prompt.judged)
    return Request(request_id="r", prompt_ids=prompt.ids, max_tokens=1, option_ids=prompt.option_ids, content=content)


def drafted(correlation: float, accuracy: float = 0.8, candidates: int = 5, steps: int = 1500) -> list[list[bool]]:
    """Which candidates of a first step are right, over many problems."""
    model = TextModel("d", SimTextSpec(step_accuracy=accuracy, step_correlation=correlation))
    rows = []
    for number in range(steps):
        prompt = DIALECT.generation(f"{PROBLEM} ({number})")
        request = Request(request_id="r", prompt_ids=prompt, max_tokens=512, temperature=1.0, n=candidates, seed=number, **STEP)
        rows.append([" no" not in TOKENIZER.decode(w.ids) for w in model.write(request, tuple(prompt), 512)])
    return rows


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_correlation_changes_who_fails_together_but_not_how_often(correlation: float) -> None:
    rows = drafted(correlation)
    # Four standard deviations of a mean over 1,500 steps; candidates of one step may count as one.
    assert sum(map(sum, rows)) / (5 * len(rows)) == pytest.approx(0.8, abs=0.042)
    all_wrong = sum(not any(row) for row in rows) / len(rows)
    assert all_wrong == pytest.approx(correlation * 0.2 + (1 - correlation) * 0.2**5, abs=0.042)
    alike = sum(row[0] == row[1] for row in rows) / len(rows)
    assert alike == pytest.approx(1 - (1 - correlation) * 2 * 0.8 * 0.2, abs=0.05)


@pytest.mark.parametrize(("accuracy", "digits"), [(1.0, range(7, 10)), (0.0, range(7))])
def test_a_score_is_high_for_a_right_step(accuracy: float, digits: range) -> None:
    context = DIALECT.generation(PROBLEM)
    [step] = write(context, SimTextSpec(step_accuracy=accuracy), **STEP)
    prompt = DIALECT.score(context, step.ids)
    request = verification(prompt)
    chosen, _ = TextModel("t", SimTextSpec(verifier_accuracy=1)).choose(request, tuple(prompt.ids))
    assert chosen in digits


def test_a_right_step_is_likelier_than_a_wrong_one() -> None:
    context = tuple(DIALECT.generation(PROBLEM))
    means = []
    for accuracy in (0, 1):
        ids = write(list(context), SimTextSpec(step_accuracy=accuracy), **STEP)[0].ids
        logprobs = TextModel("t", SimTextSpec(verifier_accuracy=1)).score(context, ids)
        means.append(sum(logprobs) / len(logprobs))
    assert means[0] < means[1] < 0


def test_a_gate_separates_right_from_wrong_steps_as_well_as_stated() -> None:
    model = TextModel("d", SimTextSpec(step_accuracy=0.6))
    found: dict[bool, list[Confidence]] = {True: [], False: []}
    for number in range(1200):
        prompt = DIALECT.generation(f"{PROBLEM} ({number})")
        asked = Request(request_id="r", prompt_ids=prompt, max_tokens=512, temperature=1.0, seed=number, logprobs=True, **STEP)
        [step] = model.write(asked, tuple(prompt), 512)
        [glimpse] = model.write(structs.replace(asked, max_tokens=1), tuple(prompt), 1)
        assert step.confidence is not None
        assert glimpse.confidence == step.confidence
        assert step.confidence.flaw is None
        found[" no" not in step.text].append(step.confidence)
    for measure, sign in (("mean", 1), ("min", 1), ("margin", 1), ("first_entropy", -1)):
        right, wrong = ([sign * getattr(each, measure) for each in found[side]] for side in (True, False))
        above = sum(one > other for one in right for other in wrong) / (len(right) * len(wrong))
        assert above == pytest.approx(GATE_AUC, abs=0.05)


# Lengths.


NORMALS = [NormalDist().inv_cdf((number + 0.5) / 2000) for number in range(2000)]
CHARACTERS_A_TOKEN = 2.8
SHORTEST_STEP = 3
"""Tokens of the shortest simulated step."""


def drawn(preset: Preset, part: Literal["steps", "step_tokens"]) -> list[int]:
    """The lengths of a preset as `TextModel` draws them, each as likely as the others, in order."""
    found, least = SimTextSpec(preset=preset).distribution(part), 1 if part == "steps" else SHORTEST_STEP
    return [max(least, round(found(normal))) for normal in NORMALS]


def share(values: list[int], part: float) -> int:
    return values[int(part * len(values))]


@pytest.mark.parametrize(
    ("preset", "mean", "median", "sigma"), [("gsm8k", 137, 116, 0.9), ("math", 109, 71, 1.0), ("aime", 134, 104, 0.98)]
)
def test_steps_have_the_characters_that_were_measured(preset: Preset, mean: float, median: float, sigma: float) -> None:
    tokens = drawn(preset, "step_tokens")
    assert fmean(tokens) * CHARACTERS_A_TOKEN == pytest.approx(mean, rel=0.03)
    assert share(tokens, 0.5) * CHARACTERS_A_TOKEN == pytest.approx(median, rel=0.03)
    assert pstdev(map(math.log, tokens)) == pytest.approx(sigma, abs=0.05)


def test_thoughts_have_the_steps_that_were_measured() -> None:
    """Those about MATH once they are cut as the measured ones were."""
    steps = drawn("gsm8k", "steps")
    assert fmean(steps) == pytest.approx(8.7, rel=0.03)
    assert pstdev(map(math.log, steps)) == pytest.approx(0.72, abs=0.02)
    assert fmean(min(count, 8600 / 109) for count in drawn("math", "steps")) == pytest.approx(42.8, rel=0.03)
    assert [share(drawn("aime", "steps"), part) for part in (0.1, 0.9)] == [40, 200]


def test_quantiles_are_met_and_between_them_the_distribution_is_log_normal() -> None:
    found = quantiles({10: 5, 50: 20, 99.9: 300, 100: 400}, MAX_LENGTHS["steps"])
    for part, value in ((0.1, 5), (0.5, 20), (0.999, 300)):
        assert found(NormalDist().inv_cdf(part)) == pytest.approx(value)
    assert found(8) == pytest.approx(400)
    two = quantiles({10: math.exp(3 - 1.2815515655 * 0.7), 90: math.exp(3 + 1.2815515655 * 0.7)}, MAX_LENGTHS["steps"])
    normal = log_normal(math.exp(3 + 0.7**2 / 2), 0.7)
    assert [two(z) for z in (-2, -0.3, 0, 1.7, 3)] == pytest.approx([normal(z) for z in (-2, -0.3, 0, 1.7, 3)])


def test_lengths_have_one_source() -> None:
    with pytest.raises(ValueError, match="`preset` and `step_tokens_sigma` both set `step_tokens`; drop one"):
        SimTextSpec(preset="math", step_tokens_sigma=0.7)
    with pytest.raises(GraphError, match="engine 'b': text: its thoughts differ in numbers of steps from those of 'a'"):
        devices_of({"a": SIM, "b": structs.replace(SIM, text=SimTextSpec(preset="math"))})


@pytest.mark.parametrize("preset", PRESETS)
def test_all_steps_of_a_preset_have_drawn_lengths(preset: Preset) -> None:
    """Of whole thoughts, which is where markers that were too long would show."""
    text, found = SimTextSpec(preset=preset), list[int]()
    for number in range(6):
        prompt = DIALECT.generation(f"Problem {number}?")
        [thought] = write(prompt, text, 40_000, seed=number, stop_ids=(CLOSE,))
        parts = thought.text.removesuffix(THINK_CLOSE).split(DELIMITER)
        assert len(parts) == TextModel("m", text).read(tuple(prompt)).total
        found += [len(TOKENIZER.encode(part)) + 1 for part in parts]
    assert min(found) >= SHORTEST_STEP
    assert fmean(found) == pytest.approx(fmean(drawn(preset, "step_tokens")), rel=5 * 1.2 / math.sqrt(len(found)))


# Who writes.


FIVE: dict[str, Any] = {"steps_mean": 5, "steps_sigma": 0}


def problem(number: int) -> str:
    return f"Problem number {number}?"


def said(model: TextModel, prompt: list[int], seed: int = 0, n: int = 1, **stops: Any) -> list[list[int]]:
    request = Request(request_id="r", prompt_ids=prompt, max_tokens=1 << 16, temperature=1.0, seed=seed, n=n, **stops)
    return [list(each.ids) for each in model.write(request, tuple(prompt), 1 << 16)]


def reasoned(model: TextModel, number: int, seed: int = 0) -> list[int]:
    [ids] = said(model, DIALECT.generation(problem(number)), seed, stop_ids=(CLOSE,))
    return ids


def marks(ids: list[int]) -> list[tuple[int, int, str]]:
    """Number, total and word of each step in `ids`."""
    model, prompt, found = TextModel("reader", SimTextSpec()), DIALECT.generation("?"), []
    words = {TOKENIZER.encode(f"1 {word}")[1]: word for word in ("ok", "no", "eh")}
    for place, token in enumerate(ids):
        if token in words:
            state = model.read([*prompt, *ids[: place + 1]])
            found.append((state.done, state.total, words[token]))
    return found


@pytest.mark.parametrize("verbosity", [1.0, 1.5, 4.0])
def test_a_thought_has_as_many_times_more_steps(verbosity: float) -> None:
    model = TextModel("m", SimTextSpec(verbosity=verbosity, step_tokens_mean=12, **FIVE))
    lengths = [len(marks(reasoned(model, number))) for number in range(300)]
    # The number of steps until five cover ground: negative binomial.
    error = 4 * (5 * verbosity * (verbosity - 1) / 300) ** 0.5
    assert fmean(lengths) == pytest.approx(5 * verbosity, abs=max(error, 1e-9))


def test_a_step_leaves_as_much_as_its_writer_makes_it() -> None:
    """One writer covers ground with every step, also of a thought that a verbose one began; and the verbose one goes on from there."""
    terse, wordy = TextModel("t", SimTextSpec(**FIVE)), TextModel("w", SimTextSpec(verbosity=5, **FIVE))
    seen = set()
    for number in range(40):
        prompt = DIALECT.generation(problem(number))
        for writer in (wordy, terse, wordy, terse):
            before = terse.read(prompt)
            [step] = said(writer, prompt, seed=number, **STEP)
            prompt += step
            after = terse.read(prompt)
            assert after.done == before.done + 1
            covered = (before.total - before.done) - (after.total - after.done)
            assert covered == 1 or (covered == 0 and writer is wordy)
            seen.add((writer is wordy, covered))
    assert seen == {(False, 1), (True, 1), (True, 0)}


def test_a_thought_is_gone_on_with_in_the_same_words_wherever_it_is_cut() -> None:
    model = TextModel("m", SimTextSpec(verbosity=2, step_accuracy=0.6, **FIVE))
    for number in range(10):
        prompt, whole = DIALECT.generation(problem(number)), reasoned(model, number)
        for cut in range(1, len(whole), 17):
            [rest] = said(model, [*prompt, *whole[:cut]], stop_ids=(CLOSE,))
            assert whole[:cut] + rest == whole


def test_the_answer_is_right_where_no_error_stands_at_the_end() -> None:
    model = TextModel("m", SimTextSpec(step_accuracy=0.7, **FIVE))
    ends = set()
    for number in range(60):
        ids = reasoned(model, number)
        words = [word for _, _, word in marks(ids)]
        [answer] = said(model, [*DIALECT.generation(problem(number)), *ids])
        assert (boxed(TOKENIZER.decode(answer)) == sim_answer(problem(number))) == (words[-1] == "ok")
        ends.add(("no" in words, words[-1]))
    assert ends == {(False, "ok"), (True, "no"), (True, "eh")}


def test_of_right_candidates_the_first_that_covers_ground_is_taken() -> None:
    draft = TextModel("d", SimTextSpec(verbosity=3, step_accuracy=0.8, **FIVE))
    idle = 0
    for number in range(100):
        context = DIALECT.generation(problem(number))
        shown = said(draft, context, seed=number, n=4, **STEP)
        found = [mark for [mark] in map(marks, shown)]
        right = [place for place, (_, _, word) in enumerate(found, 1) if word == "ok"]
        covers = [place for place in right if found[place - 1][1] == 5]
        idle += bool(right) and not covers
        prompt = DIALECT.choose(context, [tuple(ids) for ids in shown])
        chosen, _ = TextModel("j", SimTextSpec(verifier_accuracy=1)).choose(verification(prompt), tuple(prompt.ids))
        assert chosen == (covers or right or [0])[0]
    assert 5 < idle < 40  # (2 / 3)^4 of the steps or more
