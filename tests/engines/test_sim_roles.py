"""Who writes decides how long a simulated thought becomes and whether errors last, and how a judge by score chooses."""

from collections.abc import Iterator
from statistics import NormalDist, fmean
from typing import Any

import pytest

from pipeline.engine import Content, Request
from pipeline.engines.sim.spec import SimTextSpec
from pipeline.engines.sim.text import TextModel, sim_answer
from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.graph.prompts import DELIMITER
from pipeline.reasoning.prompts import OptionPrompt, PromptBuilder

TOKENIZER = SimTokenizer()
DIALECT = PromptBuilder(TOKENIZER)
CLOSE = TOKENIZER.special_ids["</think>"]
STEP: dict[str, Any] = {"stop": (DELIMITER,), "stop_ids": (CLOSE,)}
FIVE: dict[str, Any] = {"steps_mean": 5, "steps_sigma": 0}
NORMAL = NormalDist()


def problem(number: int) -> str:
    return f"Problem number {number}?"


def write(model: TextModel, prompt: list[int], seed: int = 0, n: int = 1, **stops: Any) -> list[list[int]]:
    request = Request(request_id="r", prompt_ids=prompt, max_tokens=1 << 16, temperature=1.0, seed=seed, n=n, **stops)
    return [list(each.ids) for each in model.write(request, tuple(prompt), 1 << 16)]


def thought(model: TextModel, number: int, seed: int = 0) -> list[int]:
    [ids] = write(model, DIALECT.generation(problem(number)), seed, stop_ids=(CLOSE,))
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


def boxed(ids: list[int]) -> str:
    return TOKENIZER.decode(ids).partition("\\boxed{")[2].partition("}")[0]


@pytest.mark.parametrize("verbosity", [1.0, 1.5, 4.0])
def test_a_thought_has_as_many_times_more_steps(verbosity: float) -> None:
    model = TextModel("m", SimTextSpec(verbosity=verbosity, step_tokens_mean=12, **FIVE))
    lengths = [len(marks(thought(model, number))) for number in range(300)]
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
            [step] = write(writer, prompt, seed=number, **STEP)
            prompt += step
            after = terse.read(prompt)
            assert after.done == before.done + 1
            covered = (before.total - before.done) - (after.total - after.done)
            assert covered == 1 or (covered == 0 and writer is wordy)
            seen.add((writer is wordy, covered))
    assert seen == {(False, 1), (True, 1), (True, 0)}


def test_a_thought_is_gone_on_with_in_the_same_words_wherever_it_is_cut() -> None:
    model = TextModel("m", SimTextSpec(verbosity=2, repair=0.5, step_accuracy=0.6, **FIVE))
    for number in range(10):
        prompt, whole = DIALECT.generation(problem(number)), thought(model, number)
        for cut in range(1, len(whole), 17):
            [rest] = write(model, [*prompt, *whole[:cut]], stop_ids=(CLOSE,))
            assert whole[:cut] + rest == whole


def test_a_verbose_thought_that_is_cut_off_is_right_as_often_as_ground_is_covered() -> None:
    model = TextModel("m", SimTextSpec(verbosity=3, step_accuracy=1, **FIVE))
    right, covered = 0, []
    for number in range(400):
        prompt = DIALECT.generation(problem(number))
        for seed in range(4):
            prompt += write(model, prompt, seed=seed, **STEP)[0]
        state = model.read(prompt)
        covered.append(1 - (state.total - state.done) / 5)
        if prompt[-1] != CLOSE:
            prompt += DIALECT.close_thought_ids
        right += boxed(write(model, prompt)[0]) == sim_answer(problem(number))
    assert fmean(covered) == pytest.approx(4 / 15, abs=0.04)
    assert right / 400 == pytest.approx(fmean(covered), abs=0.07)


@pytest.mark.parametrize("repair", [0.0, 0.4, 1.0])
def test_a_right_step_mends_what_was_wrong_as_often_as_stated(repair: float) -> None:
    wrong, right = TextModel("w", SimTextSpec(step_accuracy=0)), TextModel("r", SimTextSpec(step_accuracy=1, repair=repair))
    words = []
    for number in range(300):
        prompt = DIALECT.generation(problem(number))
        prompt += write(wrong, prompt, seed=number, **STEP)[0]
        [(_, _, word)] = marks(write(right, prompt, seed=number, **STEP)[0])
        words.append(word)
    assert set(words) <= {"ok", "eh"}
    assert words.count("ok") / 300 == pytest.approx(repair, abs=0.12 if 0 < repair < 1 else 0)


def test_the_answer_is_right_where_no_error_stands_at_the_end() -> None:
    model = TextModel("m", SimTextSpec(step_accuracy=0.7, repair=0.5, **FIVE))
    ends = set()
    for number in range(60):
        ids = thought(model, number)
        words = [word for _, _, word in marks(ids)]
        [answer] = write(model, [*DIALECT.generation(problem(number)), *ids])
        assert (boxed(answer) == sim_answer(problem(number))) == (words[-1] == "ok")
        ends.add(("no" in words, words[-1]))
    assert ends >= {(False, "ok"), (True, "ok"), (True, "no"), (True, "eh")}


# Judges.


def asked(prompt: OptionPrompt, number: int = 0) -> Request:
    content = Content(problem(number), tuple(prompt.judged))
    return Request(request_id="r", prompt_ids=prompt.ids, max_tokens=1, option_ids=prompt.option_ids, content=content)


def choose(judge: TextModel, context: list[int], shown: list[list[int]], number: int = 0, unit: Any = "step") -> int:
    prompt = DIALECT.choose(context, shown, unit=unit)
    return judge.choose(asked(prompt, number), tuple(prompt.ids))[0]


PERFECT = TextModel("j", SimTextSpec(verifier_accuracy=1))


def test_of_right_candidates_the_first_that_covers_ground_is_taken() -> None:
    draft = TextModel("d", SimTextSpec(verbosity=3, step_accuracy=0.8, **FIVE))
    idle = 0
    for number in range(100):
        context = DIALECT.generation(problem(number))
        shown = write(draft, context, seed=number, n=4, **STEP)
        found = [mark for [mark] in map(marks, shown)]
        right = [place for place, (_, _, word) in enumerate(found, 1) if word == "ok"]
        covers = [place for place in right if found[place - 1][1] == 5]
        idle += bool(right) and not covers
        assert choose(PERFECT, context, shown, number) == (covers or right or [0])[0]
    assert 5 < idle < 40  # (2 / 3)^4 of the steps or more


def test_a_candidate_that_mends_an_error_is_taken_before_one_that_covers_ground() -> None:
    """Written by hand: after an error, one that goes on, one that covers ground, one that mends without, and a wrong one."""
    context = [*DIALECT.generation(problem(0)), *TOKENIZER.encode(f"; step 1 of 5 no{DELIMITER}")]
    words = ["; step 2 of 6 eh", "; step 2 of 5 eh", "; step 2 of 6 ok", "; step 2 of 5 no"]
    shown = [TOKENIZER.encode(f"so {word}{DELIMITER}") for word in words]
    assert choose(PERFECT, context, shown) == 3
    assert choose(PERFECT, context, [shown[0], shown[1], shown[3]]) == 2


def test_a_thought_that_mends_its_error_is_right() -> None:
    def text(*words: str) -> list[int]:
        return TOKENIZER.encode("".join(f"so; step {place} of 3 {word}{DELIMITER}" for place, word in enumerate(words, 1)))

    context = DIALECT.generation(problem(0))
    shown = [text("ok", "no", "eh"), text("no", "ok", "ok"), text("ok", "ok", "ok")]
    assert choose(PERFECT, context, shown, unit="thought") == 2


def drafts(count: int, accuracy: float, problems: int) -> Iterator[tuple[int, list[int], list[list[int]]]]:
    """Steps, all with the same difficulty for all candidates: a context with `count` candidates of each of many problems."""
    model = TextModel("d", SimTextSpec(step_accuracy=accuracy, step_correlation=0))
    for number in range(problems):
        context = DIALECT.generation(problem(number))
        yield number, context, write(model, context, seed=number, n=count, **STEP)


@pytest.mark.parametrize("auc", [0.8, 0.99])
@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_a_judge_by_score_judges_one_candidate_rightly_as_often_as_its_auc_says(auc: float, accuracy: float) -> None:
    judge = TextModel("j", SimTextSpec(judge_auc=auc))
    rightly, above = 0, 0
    for number, context, shown in drafts(1, accuracy, 400):
        rightly += (choose(judge, context, shown, number) == 1) == (accuracy == 1)
        prompt = DIALECT.score(context, shown[0])
        above += (judge.choose(asked(prompt, number), tuple(prompt.ids))[0] >= 7) == (accuracy == 1)
    expected = NORMAL.cdf(2**0.5 * NORMAL.inv_cdf(auc) / 2)
    assert (rightly / 400, above / 400) == pytest.approx((expected, expected), abs=0.09)


def test_of_more_wrong_candidates_a_judge_by_score_accepts_fewer_where_their_scores_have_more_in_common() -> None:
    """And each of them more than of one alone; a judge that scores them all alike accepts no more."""
    accepted = {}
    for correlation in (0.0, 0.5, 1.0):
        judge = TextModel("j", SimTextSpec(judge_auc=0.9, step_correlation=correlation))
        accepted[correlation] = fmean(choose(judge, context, shown, number) > 0 for number, context, shown in drafts(5, 0, 400))
    one = 1 - NORMAL.cdf(2**0.5 * NORMAL.inv_cdf(0.9) / 2)
    assert accepted[0.0] == pytest.approx(1 - (1 - one) ** 5, abs=0.1)
    assert accepted[1.0] == pytest.approx(one, abs=0.08)
    assert accepted[0.0] > accepted[0.5] > accepted[1.0]


def test_a_judge_by_score_takes_a_wrong_candidate_before_a_right_one_more_seldom_than_one_that_takes_the_first() -> None:
    def errs(text: SimTextSpec) -> float:
        judge = TextModel("j", text)
        chosen = [(choose(judge, context, shown, number), shown) for number, context, shown in drafts(5, 0.5, 400)]
        return fmean(place > 0 and marks(shown[place - 1])[0][2] == "no" for place, shown in chosen)

    single = NORMAL.cdf(2**0.5 * NORMAL.inv_cdf(0.95) / 2)
    assert errs(SimTextSpec(judge_auc=0.95)) < 0.7 * errs(SimTextSpec(verifier_accuracy=single))


def test_how_well_it_judges_has_one_source() -> None:
    with pytest.raises(ValueError, match="`judge_auc` and `verifier_accuracy` both say how well it judges; drop one, or set it to null"):
        SimTextSpec(judge_auc=0.9, verifier_accuracy=0.95)
    assert (SimTextSpec().verifier_accuracy, SimTextSpec(judge_auc=0.9).verifier_accuracy) == (0.95, None)
