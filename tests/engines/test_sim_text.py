"""What simulated models write: lengths, quality, stops, and that prompts can be read back."""

import math
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.confidence import Confidence
from pipeline.engine import Candidate, Content, Request
from pipeline.engines.sim.output import GATE_AUC
from pipeline.engines.sim.spec import SimTextSpec
from pipeline.engines.sim.text import TextModel, sim_answer
from pipeline.engines.sim.tokenizer import SPECIALS, VOCAB_SIZE, SimTokenizer
from pipeline.graph.load import load_engines
from pipeline.graph.prompts import DEFAULT_PROMPTS, DELIMITER, LABELS, WORDINGS
from pipeline.reasoning.prompts import OptionPrompt, PromptBuilder

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


def test_a_token_is_about_four_characters_as_a_real_ones_are() -> None:
    words = " ".join(WORDINGS)
    assert 3.6 < len(words) / len(TOKENIZER.encode(words)) < 4.4


def test_the_dialect_has_all_its_labels() -> None:
    assert (
        DIALECT.thinks,
        DIALECT.flaw(DEFAULT_PROMPTS.choose, LABELS),
        DIALECT.flaw(DEFAULT_PROMPTS.score, DEFAULT_PROMPTS.score.labels),
    ) == (True, None, None)


def test_a_step_has_the_drawn_number_of_tokens() -> None:
    flat = SimTextSpec(step_tokens_mean=40, step_tokens_sigma=0, steps_mean=5, steps_sigma=0)
    steps = thought(flat)
    assert [len(step.ids) for step in steps] == [40] * 5
    assert [step.stop_reason for step in steps] == [DELIMITER] * 4 + [CLOSE]


def test_lengths_follow_their_means() -> None:
    text = SimTextSpec(step_tokens_mean=60, steps_mean=8)
    model = TextModel("m", text)
    steps = [write(DIALECT.generation(f"problem {i}"), text, seed=i, **STEP)[0] for i in range(500)]
    assert sum(len(step.ids) for step in steps) / 500 == pytest.approx(60, rel=0.1)
    totals = [model.read(tuple(DIALECT.generation(f"problem {i}"))).total for i in range(500)]
    assert sum(totals) / len(totals) == pytest.approx(8, rel=0.1)


@pytest.mark.parametrize("tokens", [3, 4, 5, 9, 13, 40])
def test_steps_and_answers_are_as_short_as_stated(tokens: int) -> None:
    text = SimTextSpec(step_tokens_mean=tokens, step_tokens_sigma=0, steps_mean=30, answer_tokens=tokens, step_accuracy=1)
    steps = thought(text)
    assert {len(step.ids) for step in steps} == {tokens}
    [answer] = write(DIALECT.generation(PROBLEM) + [token for step in steps for token in step.ids] + TOKENIZER.encode(DELIMITER), text)
    assert len(answer.ids) == max(tokens, len(sim_answer(PROBLEM)))
    assert sim_answer(PROBLEM) in answer.text
    assert ("\\boxed{" in answer.text) == (tokens >= 4 + len(sim_answer(PROBLEM)))


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_lengths_of_a_steps_candidates_have_the_stated_correlation(correlation: float) -> None:
    text = SimTextSpec(step_tokens_mean=400, step_correlation=correlation)
    pairs = []
    for number in range(600):
        one, other = write(DIALECT.generation(f"problem {number}"), text, seed=number, n=2, **STEP)
        pairs.append((math.log(len(one.ids)), math.log(len(other.ids))))
    assert np.corrcoef(np.array(pairs).T)[0, 1] == pytest.approx(correlation, abs=0.09)


def test_the_text_depends_on_seed_and_index_alone() -> None:
    prompt = DIALECT.generation(PROBLEM)
    three = write(prompt, n=3, seed=7, **STEP)
    assert write(prompt, n=3, seed=7, **STEP) == three
    assert write(prompt, n=1, seed=7, **STEP) == three[:1]
    assert len({written.ids for written in three}) == 3
    assert write(prompt, seed=8, **STEP)[0].ids != three[0].ids
    assert write(prompt, seed=8, temperature=0.0, **STEP) == write(prompt, seed=9, temperature=0.0, **STEP)


def test_a_whole_response_ends_with_the_right_answer_when_all_steps_are_right() -> None:
    for number in range(20):
        problem = f"{PROBLEM} ({number})\nMore of it."
        [response] = write(DIALECT.generation(problem), SimTextSpec(step_accuracy=1))
        text = TOKENIZER.decode(response.ids)
        assert (response.finish_reason, response.stop_reason) == ("stop", None)
        assert boxed(text) == sim_answer(problem)
        assert "</think>\n\n" in text


def test_one_wrong_step_spoils_the_answer() -> None:
    right = SimTextSpec(step_accuracy=1)
    prompt = DIALECT.generation(PROBLEM)
    prompt += write(prompt, SimTextSpec(step_accuracy=0), **STEP)[0].ids
    prompt += write(prompt, right, stop_ids=(CLOSE,))[0].ids
    [answer] = write(prompt + DIALECT.tokenizer.encode(DELIMITER), right)
    assert boxed(TOKENIZER.decode(answer.ids)) not in ("", sim_answer(PROBLEM))
    assert len(answer.ids) == right.answer_tokens
    assert answer.ended


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


def test_guidance_starts_a_step_that_the_next_one_finishes() -> None:
    prompt = DIALECT.generation(PROBLEM)
    [guidance] = write(prompt, limit=8)
    assert (len(guidance.ids), guidance.finish_reason) == (8, "length")
    [step] = write([*prompt, *guidance.ids], **STEP)
    assert TextModel("m", DEFAULT).read([*prompt, *guidance.ids, *step.ids]).done == 1


def test_text_is_the_text_of_its_tokens() -> None:
    for step in thought(SimTextSpec(steps_mean=6)):
        assert tuple(TOKENIZER.encode(TOKENIZER.decode(step.ids))) == step.ids


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


def choices(draft: TextModel, target: TextModel, candidates: int, problems: int = 200) -> Iterator[tuple[int, list[bool]]]:
    """The target's choices for the first step of many problems, with which candidates were right."""
    for number in range(problems):
        context = DIALECT.generation(f"{PROBLEM} ({number})")
        asked = Request(request_id="r", prompt_ids=context, max_tokens=512, n=candidates, temperature=1.0, seed=number, **STEP)
        shown = [written.ids for written in draft.write(asked, tuple(context), 512)]
        prompt = DIALECT.choose(context, shown)
        request = Request(
            request_id="r", prompt_ids=prompt.ids, max_tokens=1, option_ids=prompt.option_ids, content=Content("", prompt.judged)
        )
        chosen, logprobs = target.choose(request, tuple(prompt.ids))
        assert max(logprobs) == logprobs[chosen]
        assert len(logprobs) == candidates + 1
        yield chosen, [" no" not in TOKENIZER.decode(ids) for ids in shown]


def verified(accuracy: float, candidates: int, draft_accuracy: float) -> Iterator[tuple[int, list[bool]]]:
    """Choices of a verifier of this accuracy."""
    draft, target = SimTextSpec(step_accuracy=draft_accuracy), SimTextSpec(verifier_accuracy=accuracy)
    return choices(TextModel("m", draft), TextModel("t", target), candidates)


def test_a_perfect_verifier_chooses_the_first_right_candidate() -> None:
    for chosen, right in verified(accuracy=1, candidates=5, draft_accuracy=0.5):
        assert chosen == (right.index(True) + 1 if any(right) else 0)


def test_acceptance_follows_the_accuracies() -> None:
    accepted = [chosen > 0 for chosen, _ in verified(accuracy=0.9, candidates=1, draft_accuracy=0.8)]
    # 0.8 x 0.9 + 0.2 x 0.1
    assert sum(accepted) / len(accepted) == pytest.approx(0.74, abs=0.08)


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


def test_where_the_draw_is_shared_a_better_engine_is_right_wherever_a_worse_one_is() -> None:
    worse, better = (drafted(1.0, accuracy, candidates=1, steps=200) for accuracy in (0.6, 0.9))
    assert all(above >= below for below, above in zip(worse, better, strict=True))
    assert worse != better


@pytest.mark.slow
def test_more_candidates_are_rejected_less_often_but_some_steps_always_are() -> None:
    """With the figures of sim-2xh100.yaml; SpecCoT: figure 4b, and in section 4.4.2 about 8 % on GSM8K with 5."""
    specs: Any = load_engines(ENGINES / "sim-2xh100.yaml")
    rates = {}
    for candidates in (1, 2, 5, 10):
        draft, target = TextModel("d", specs["draft"].text), TextModel("t", specs["target"].text)
        chosen = [choice for choice, _ in choices(draft, target, candidates, problems=1000)]
        rates[candidates] = chosen.count(0) / len(chosen)
    assert rates[1] > rates[2] > rates[5] >= rates[10]
    assert 0.05 < rates[5] < 0.25
    assert rates[10] > 0.03


@pytest.mark.parametrize(("accuracy", "digits"), [(1.0, range(7, 10)), (0.0, range(7))])
def test_a_score_is_high_for_a_right_step(accuracy: float, digits: range) -> None:
    context = DIALECT.generation(PROBLEM)
    [step] = write(context, SimTextSpec(step_accuracy=accuracy), **STEP)
    prompt = DIALECT.score(context, step.ids)
    request = verification(prompt)
    chosen, _ = TextModel("t", SimTextSpec(verifier_accuracy=1)).choose(request, tuple(prompt.ids))
    assert chosen in digits


def test_whole_thoughts_can_be_chosen_from() -> None:
    context = DIALECT.generation(PROBLEM)
    wrong, right = (write(context, SimTextSpec(step_accuracy=accuracy), stop_ids=(CLOSE,))[0].ids for accuracy in (0, 1))
    prompt = DIALECT.choose(context, [wrong, right])
    request = verification(prompt)
    assert TextModel("t", SimTextSpec(verifier_accuracy=1)).choose(request, tuple(prompt.ids))[0] == 2


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
        [glimpse] = model.write(msgspec.structs.replace(asked, max_tokens=1), tuple(prompt), 1)
        assert step.confidence is not None
        assert glimpse.confidence == step.confidence
        assert step.confidence.flaw is None
        found[" no" not in step.text].append(step.confidence)
    for measure, sign in (("mean", 1), ("min", 1), ("margin", 1), ("first_entropy", -1)):
        right, wrong = ([sign * getattr(each, measure) for each in found[side]] for side in (True, False))
        above = sum(one > other for one in right for other in wrong) / (len(right) * len(wrong))
        assert above == pytest.approx(GATE_AUC, abs=0.05)
