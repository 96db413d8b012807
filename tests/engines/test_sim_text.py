"""What simulated models write and judge: lengths, quality, stops, and that prompts can be read back."""

import math
from statistics import NormalDist, fmean, pstdev
from string import ascii_lowercase
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from pipeline.engine import Candidate, Content, Request
from pipeline.engines.sim.device import devices_of
from pipeline.engines.sim.output import GATE_AUC
from pipeline.engines.sim.spec import Preset, SimTextSpec
from pipeline.engines.sim.text import TextModel, sim_answer
from pipeline.engines.sim.tokenizer import SPECIALS, VOCAB_SIZE, SimTokenizer
from pipeline.errors import GraphError
from pipeline.graph.prompts import DELIMITER, LABELS
from pipeline.reasoning.prompts import OptionPrompt, PromptBuilder
from tests.support.engines import SIM

TOKENIZER = SimTokenizer()
DIALECT = PromptBuilder(TOKENIZER)
CLOSE = TOKENIZER.special_ids["</think>"]
STEP: dict[str, Any] = {"stop": (DELIMITER,), "stop_ids": (CLOSE,)}
FIVE: dict[str, Any] = {"steps_mean": 5, "steps_sigma": 0}


def model(name: str = "m", **text: Any) -> TextModel:
    return TextModel(name, SimTextSpec(**text))


def problem(number: int) -> str:
    return f"Problem number {number}?"


def start(number: int = 0) -> list[int]:
    return DIALECT.generation(problem(number))


def about(prompt: list[int]) -> Content:
    return Content(TOKENIZER.decode(prompt).removeprefix("<|user|>"))


def write(writer: TextModel, prompt: list[int], limit: int = 1 << 16, **fields: Any) -> list[Candidate]:
    request = Request(request_id="r", prompt_ids=prompt, max_tokens=limit, content=about(prompt), **{"temperature": 1.0, **fields})
    return writer.write(request, tuple(prompt), limit)


def thought(writer: TextModel, number: int = 0, seed: int = 0) -> list[int]:
    [whole] = write(writer, start(number), seed=seed, stop_ids=(CLOSE,))
    return list(whole.ids)


def marks(ids: list[int]) -> list[tuple[int, int, str]]:
    """Number, total and word of each step in `ids`."""
    words = {TOKENIZER.encode(f"1 {word}")[1]: word for word in ("ok", "no", "eh")}
    states = [(model().read(ids[: place + 1], None), words[token]) for place, token in enumerate(ids) if token in words]
    return [(state.done, state.total, word) for state, word in states]


def boxed(text: str) -> str:
    return text.partition("\\boxed{")[2].partition("}")[0]


def choice(judge: TextModel, prompt: OptionPrompt) -> int:
    content = Content("", prompt.judged)
    request = Request(request_id="r", prompt_ids=prompt.ids, max_tokens=1, option_ids=prompt.option_ids, content=content)
    return judge.choose(request, tuple(prompt.ids))[0]


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
    writer = model(step_tokens_mean=tokens, step_tokens_sigma=0, steps_mean=30, answer_tokens=tokens, step_accuracy=1)
    prompt = start()
    while prompt[-1] != CLOSE:
        [step] = write(writer, prompt, **STEP)
        assert len(step.ids) == tokens
        prompt += step.ids
    [answer] = write(writer, prompt + TOKENIZER.encode(DELIMITER))
    right = sim_answer(problem(0))
    assert right in answer.text
    assert len(answer.ids) == max(tokens, len(right))
    assert ("\\boxed{" in answer.text) == (tokens >= 4 + len(right))


def test_greedy_text_depends_on_no_seed() -> None:
    one, other = (write(model(), start(), seed=seed, temperature=0.0, n=2, **STEP) for seed in (8, 9))
    assert one == other
    assert one[0] == one[1]


def test_an_answer_asked_for_early_is_that_of_the_thought_ended_there_right_as_often_as_it_is_long_and_looks_sure_as_stated() -> None:
    writer, sure = model(step_accuracy=1, steps_mean=4, steps_sigma=0), {True: list[float](), False: list[float]()}
    rights = [0] * 3
    for number in range(300):
        prompt, stood = start(number), False
        for done in range(3):
            prompt += write(writer, prompt, **STEP)[0].ids
            [trial] = write(writer, DIALECT.trial(prompt), logprobs=True)
            [answer] = write(writer, [*prompt, *DIALECT.close_thought_ids])
            right = trial.text == f"{sim_answer(problem(number))}}}."
            assert trial.ended
            assert trial.confidence is not None
            assert trial.confidence.flaw is None
            assert right == (boxed(answer.text) == sim_answer(problem(number)))
            assert right >= stood, "an answer that stands goes on to stand"
            stood = right
            rights[done] += right
            sure[right].append(math.exp(trial.confidence.mean))
    assert [right / 300 for right in rights] == pytest.approx([0.25, 0.5, 0.75], abs=0.07)
    above = {right: sum(each >= 0.95 for each in found) / len(found) for right, found in sure.items()}
    assert above == {True: pytest.approx(0.82, abs=0.06), False: pytest.approx(0.18, abs=0.06)}


def test_a_stop_string_that_begins_inside_a_token_ends_after_the_one_that_completes_it() -> None:
    [written] = write(model(), start(), stop=("e su",))
    assert written.stop_reason == "e su"
    assert "e su" in TOKENIZER.decode(written.ids)
    assert "e su" not in TOKENIZER.decode(written.ids[:-1])


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_correlation_changes_who_fails_together_but_not_how_often(correlation: float) -> None:
    draft, rows = model(step_accuracy=0.8, step_correlation=correlation), []
    for number in range(1500):
        candidates = write(draft, start(number), n=5, seed=number, **STEP)
        rows.append([" no" not in each.text for each in candidates])
    # Four standard deviations of a mean over 1,500 steps; candidates of one step may count as one.
    assert sum(map(sum, rows)) / (5 * len(rows)) == pytest.approx(0.8, abs=0.042)
    all_wrong = sum(not any(row) for row in rows) / len(rows)
    assert all_wrong == pytest.approx(correlation * 0.2 + (1 - correlation) * 0.2**5, abs=0.042)
    alike = sum(row[0] == row[1] for row in rows) / len(rows)
    assert alike == pytest.approx(1 - (1 - correlation) * 2 * 0.8 * 0.2, abs=0.05)


def test_a_right_step_has_a_higher_score_than_a_wrong_one() -> None:
    judge, context = model("t", verifier_accuracy=1), start()
    wrong, right = (write(model(step_accuracy=accuracy), context, **STEP)[0].ids for accuracy in (0, 1))
    assert choice(judge, DIALECT.score(context, wrong)) < 7 <= choice(judge, DIALECT.score(context, right))


def test_a_gate_separates_right_from_wrong_steps_as_well_as_stated() -> None:
    draft, found = model("d", step_accuracy=0.6), {True: list[Any](), False: list[Any]()}
    for number in range(1200):
        [step] = write(draft, start(number), seed=number, logprobs=True, **STEP)
        [glimpse] = write(draft, start(number), 1, seed=number, logprobs=True, **STEP)
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


@pytest.mark.parametrize(("preset", "mean", "median", "sigma"), [("gsm8k", 137, 116, 0.9), ("math", 109, 71, 1.0)])
def test_steps_have_the_characters_that_were_measured(preset: Preset, mean: float, median: float, sigma: float) -> None:
    tokens = drawn(preset, "step_tokens")
    assert fmean(tokens) * CHARACTERS_A_TOKEN == pytest.approx(mean, rel=0.03)
    assert tokens[1000] * CHARACTERS_A_TOKEN == pytest.approx(median, rel=0.03)
    assert pstdev(map(math.log, tokens)) == pytest.approx(sigma, abs=0.05)


def test_thoughts_have_the_steps_that_were_measured() -> None:
    """Those about MATH once they are cut as the measured ones were."""
    steps = drawn("gsm8k", "steps")
    assert fmean(steps) == pytest.approx(8.7, rel=0.03)
    assert pstdev(map(math.log, steps)) == pytest.approx(0.72, abs=0.02)
    assert fmean(min(count, 8600 / 109) for count in drawn("math", "steps")) == pytest.approx(42.8, rel=0.03)


def test_lengths_have_one_source() -> None:
    with pytest.raises(ValueError, match="`preset` and `step_tokens_sigma` both set `step_tokens`; drop one"):
        SimTextSpec(preset="math", step_tokens_sigma=0.7)
    with pytest.raises(GraphError, match="engine 'b': text: its thoughts differ in numbers of steps from those of 'a'"):
        devices_of({"a": SIM, "b": structs.replace(SIM, text=SimTextSpec(preset="math"))})


# Who writes.


@pytest.mark.parametrize("verbosity", [1.0, 1.5, 4.0])
def test_a_thought_has_as_many_times_more_steps(verbosity: float) -> None:
    writer = model(verbosity=verbosity, step_tokens_mean=12, **FIVE)
    # The number of steps until five cover ground: negative binomial.
    error = 4 * (5 * verbosity * (verbosity - 1) / 300) ** 0.5
    assert fmean(len(marks(thought(writer, number))) for number in range(300)) == pytest.approx(5 * verbosity, abs=max(error, 1e-9))


def test_a_step_leaves_as_much_as_its_writer_makes_it() -> None:
    """One writer covers ground with every step, also of a thought that a verbose one began; and the verbose one goes on from there."""
    terse, wordy = model("t", **FIVE), model("w", verbosity=5, **FIVE)
    seen = set()
    for number in range(40):
        prompt = start(number)
        for writer in (wordy, terse, wordy, terse):
            before = terse.read(prompt, about(prompt))
            prompt += write(writer, prompt, seed=number, **STEP)[0].ids
            after = terse.read(prompt, about(prompt))
            assert after.done == before.done + 1
            seen.add((writer is wordy, (before.total - before.done) - (after.total - after.done)))
    assert seen == {(False, 1), (True, 1), (True, 0)}


@given(st.integers(0, 50), st.floats(0, 1))
def test_a_thought_is_gone_on_with_in_the_same_words_wherever_it_is_cut(number: int, part: float) -> None:
    writer = model(verbosity=2, step_accuracy=0.6, **FIVE)
    whole = thought(writer, number)
    begun = whole[: round(part * (len(whole) - 1))]
    assert begun + list(write(writer, start(number) + begun, stop_ids=(CLOSE,))[0].ids) == whole


def test_the_answer_is_right_where_no_error_stands_at_the_end() -> None:
    writer, ends = model(step_accuracy=0.7, **FIVE), set()
    for number in range(60):
        ids = thought(writer, number)
        words = [word for _, _, word in marks(ids)]
        [answer] = write(writer, start(number) + ids)
        assert (boxed(answer.text) == sim_answer(problem(number))) == (words[-1] == "ok")
        ends.add(("no" in words, words[-1]))
    assert ends == {(False, "ok"), (True, "no"), (True, "eh")}


def test_of_right_candidates_the_first_that_covers_ground_is_taken() -> None:
    draft, judge, idle = model("d", verbosity=3, step_accuracy=0.8, **FIVE), model("j", verifier_accuracy=1), 0
    for number in range(100):
        shown = [each.ids for each in write(draft, start(number), seed=number, n=4, **STEP)]
        found = [mark for ids in shown for mark in marks(list(ids))]
        right = [place for place, (_, _, word) in enumerate(found, 1) if word == "ok"]
        covers = [place for place in right if found[place - 1][1] == 5]
        idle += bool(right) and not covers
        assert choice(judge, DIALECT.choose(start(number), shown)) == (covers or right or [0])[0]
    assert 5 < idle < 40  # (2 / 3)^4 of the steps or more
