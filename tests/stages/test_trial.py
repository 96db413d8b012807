"""`trial`: what is asked before the thought is over, what counts as an answer, and when the thought ends with it."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from pipeline.confidence import Confidence
from pipeline.engine import Completion, FinishReason
from pipeline.graph.spec import TrialSpec, UntilSpec
from pipeline.reasoning.chain import Outcome, Trial
from pipeline.stages.answer import MOST, STOPS, TrialStage
from tests.support.chains import World, begun


def trial(here: Any, *, confidence: bool = True) -> Any:
    return TrialStage("trial", TrialSpec(engine="target", confidence=confidence), here.builders)


def said(here: Any, text: str, probability: float | None, finish: FinishReason = "stop") -> Completion:
    """A trial answer whose tokens have that probability each; None: the engine was not asked."""
    whole = here.said(text, role="target", finish=finish)
    sure = None if probability is None else Confidence(mean=math.log(probability), min=-1.0, first_entropy=0.0, margin=1.0)
    return Completion(candidates=(structs.replace(whole.candidates[0], confidence=sure),), usage=whole.usage)


def test_it_asks_greedily_behind_a_closed_thought() -> None:
    here, chain = begun()
    here.write(chain, "So 5.\n\n")
    [request] = trial(here).requests(chain)
    context, tokenizer = chain.contexts["target"], here.tokenizers["target"]
    assert request.prompt_ids[: len(context)] == context
    assert tokenizer.decode(request.prompt_ids[len(context) :]) == "</think>\n\n\\boxed{"
    assert (request.request_id, request.max_tokens, request.stop, request.logprobs) == ("p#0/1/trial", MOST, STOPS, True)
    assert request.temperature == 0
    [unsure] = trial(here, confidence=False).requests(chain)
    assert not unsure.logprobs
    assert trial(here).spec.needs == {"continues": True, "logprobs": True}
    assert trial(here, confidence=False).spec.needs == {"continues": True}


def test_what_is_no_whole_box_is_no_answer_however_sure() -> None:
    here, half = World(), "\\frac{1}{2}"
    whole = {("5}.", "stop"): "5", (f"{half}}}$", "stop"): half, ("5} and so", "length"): "5"}
    for text, finish in (*whole, ("5 and then", "length"), ("5\n", "stop"), ("}.", "stop")):
        answer = whole.get((text, finish))
        found = trial(here).apply(here.chain(), [said(here, text, 0.97, finish)]).trial
        assert found == Trial(answer, pytest.approx(0.97) if answer else 0.0)


Trials = st.lists(st.tuples(st.sampled_from(["5", "6", None]), st.sampled_from([0.1, 0.9, 0.95, 0.99])), min_size=1, max_size=6)


@given(Trials, st.sampled_from([None, 0.95]), st.sampled_from([None, 2, 3]))
def test_the_thought_ends_where_its_answer_is_sure_or_stable(answers: list[Any], sure: float | None, stable: int | None) -> None:
    """Sure by the confidence of the last trial; stable where the last ones in a row gave the same answer."""
    here, chain = begun()
    for answer, confidence in answers:
        here.write(chain, "So.\n\n")
        assert chain.apply("trial", Outcome(trial=Trial(answer, confidence if answer else 0.0))) is None
    last, confidence = answers[-1]
    is_sure = sure is not None and last is not None and confidence >= sure
    is_stable = stable is not None and last is not None and [each for each, _ in answers[-stable:]] == [last] * stable
    expected = "answer_confident" if is_sure else "answer_stable" if is_stable else None
    assert chain.exit(UntilSpec(answer_confident=sure, answer_stable=stable)) == expected


def test_it_is_asked_after_every_so_many_steps_and_once_at_each() -> None:
    here = World()
    chain, until, asked = here.chain(), UntilSpec(answer_stable=2, every=2), []
    here.write(chain, "Well", decision="guidance")
    for _ in range(5):
        asked.append(chain.ending.tries(until, chain.steps))
        if asked[-1]:
            chain.apply("trial", Outcome(trial=Trial("5", 0.5)))
            assert not chain.ending.tries(until, chain.steps)
        here.write(chain, "So.\n\n")
    assert asked == [False, False, True, False, True]
    assert not chain.ending.tries(UntilSpec(thought_closed=True), chain.steps), "nothing needs it"


def test_a_model_without_a_closing_tag_is_refused() -> None:
    assert trial(World()).check(1) is None
    assert "closes none with '</think>'; set `answer_confident`" in str(trial(World(target="plain")).check(1))
