"""Who writes decides how long a simulated thought becomes, and a judge prefers what covers ground."""

from statistics import fmean
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
    model = TextModel("m", SimTextSpec(verbosity=2, step_accuracy=0.6, **FIVE))
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


def test_the_answer_is_right_where_no_error_stands_at_the_end() -> None:
    model = TextModel("m", SimTextSpec(step_accuracy=0.7, **FIVE))
    ends = set()
    for number in range(60):
        ids = thought(model, number)
        words = [word for _, _, word in marks(ids)]
        [answer] = write(model, [*DIALECT.generation(problem(number)), *ids])
        assert (boxed(answer) == sim_answer(problem(number))) == (words[-1] == "ok")
        ends.add(("no" in words, words[-1]))
    assert ends == {(False, "ok"), (True, "no"), (True, "eh")}


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
