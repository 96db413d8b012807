"""`choose`, `score` and `likelihood`: what they ask and how probabilities become a verdict."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine import Completion, Request, Usage
from pipeline.graph.prompts import CHOOSE_ASKED, CHOOSE_QUESTION, CHOOSE_THOUGHT_INTRO
from pipeline.reasoning.chain import Verdict
from pipeline.stages.choose import ChooseSpec, ChooseStage, probabilities
from pipeline.stages.score import LikelihoodSpec, LikelihoodStage, ScoreSpec, ScoreStage

World = Callable[..., Any]


def choose(here: Any, **fields: Any) -> ChooseStage:
    return ChooseStage("verify", ChooseSpec(engine="target", **fields), here.builders)


def score(here: Any, **fields: Any) -> ScoreStage:
    return ScoreStage("verify", ScoreSpec(engine="target", **fields), here.builders)


def likelihood(here: Any, **fields: Any) -> LikelihoodStage:
    return LikelihoodStage("verify", LikelihoodSpec(engine="target", **fields), here.builders)


def scored(*logprobs: float) -> Completion:
    """The answer to a scoring."""
    return Completion(candidates=(), scored_logprobs=logprobs, usage=Usage(input_tokens=1))


@pytest.mark.parametrize("target", ["sim", "shifted", "plain", "tiny"])
def test_a_choice_shows_distinct_candidates_after_the_context(world: World, target: str) -> None:
    here = world(target=target)
    chain = here.chain()
    here.draft(chain, "It is 5.\n\n", "It is 6.\n\n", "It is 5.\n\n", "Done.</think>")
    [request] = choose(here).requests(chain)
    context = chain.contexts["target"]
    assert request.prompt_ids[: len(context)] == context
    turn = here.tokenizers["target"].decode(request.prompt_ids[len(context) :])
    assert "[1] It is 5.\n\n[2] It is 6.\n\n[3] Done.</think>\n\n" in turn
    assert (request.max_tokens, len(request.option_ids), request.temperature) == (1, 4, 0.0)


@pytest.mark.parametrize(
    ("weights", "chosen", "label"), [((0.1, 0.2, 0.6), 2, "2"), ((0.1, 0.5, 0.3), 0, "1"), ((0.5, 0.3, 0.1), None, "0")]
)
def test_the_likeliest_option_is_mapped_back_to_the_first_drafted(world: World, weights: Any, chosen: int | None, label: str) -> None:
    here = world()
    chain = here.chain()
    here.draft(chain, "a\n\n", "a\n\n", "b\n\n")
    verdict = choose(here).apply(chain, [here.weighed(*weights)]).verdict
    assert verdict is not None
    assert (verdict.chosen, verdict.label, verdict.distinct, verdict.accepted) == (chosen, label, 2, chosen is not None)
    assert verdict.probs == pytest.approx([w / 0.9 for w in weights])
    assert verdict.value == pytest.approx(max(weights) / 0.9)
    assert verdict.mass == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("weights", "threshold", "chosen", "label"),
    [
        ((0.2, 0.1, 0.7), 0.7, 2, "2"),  # reached
        ((0.2, 0.1, 0.7), 0.71, None, "2"),
        ((0.1, 0.1, 0.3), 0.59, 2, "2"),  # of the options alone
        ((0.9, 0.0, 0.1), 0.5, None, "0"),  # that none is right is no candidate
        ((0.2, 0.1, 0.7), 1.0, None, "2"),
    ],
)
def test_a_chosen_candidate_must_reach_the_threshold(world: World, weights: Any, threshold: float, chosen: int | None, label: str) -> None:
    here = world()
    chain = here.chain()
    here.draft(chain, "a\n\n", "a\n\n", "b\n\n")
    verdict = choose(here, threshold=threshold).apply(chain, [here.weighed(*weights)]).verdict
    assert (verdict.chosen, verdict.label, verdict.threshold) == (chosen, label, threshold)
    assert verdict.value == pytest.approx(max(weights) / sum(weights))
    assert choose(here).apply(chain, [here.weighed(*weights)]).verdict.threshold is None


@pytest.mark.parametrize("target", ["sim", "shifted", "plain", "tiny"])
@pytest.mark.parametrize("reject", [True, False])
def test_a_choice_of_thoughts_says_so_and_offers_0_only_where_it_may_reject(world: World, target: str, reject: bool) -> None:
    here = world(target=target)
    chain = here.chain()
    here.draft(chain, "One.\n\nIt is 5.</think>", "It is 6.</think>")
    [request] = choose(here, unit="thought", reject=reject).requests(chain)
    decode, context = here.tokenizers["target"].decode, chain.contexts["target"]
    assert request.prompt_ids[: len(context)] == context
    shown = "[1] One.\n\nIt is 5.\n\n[2] It is 6.\n\n"
    asked = CHOOSE_THOUGHT_INTRO + shown + (CHOOSE_QUESTION if reject else CHOOSE_ASKED.replace("{{none}}", ""))
    assert asked in decode(request.prompt_ids[len(context) :])
    assert [decode([option]).strip() for option in request.option_ids] == ["0", "1", "2"][not reject :]


def test_thoughts_that_do_not_fit_together_are_all_rejected_without_a_call(world: World) -> None:
    here = world()
    chain = here.chain()
    here.draft(chain, *(f"{number} {'so ' * 400}It is 5.</think>" for number in range(5)))
    stage = choose(here, unit="thought")
    room = len(stage.requests(chain)[0].prompt_ids) + 1
    for limit, asked in ((room, 1), (room - 1, 0)):
        chain._limits = {**chain._limits, "target": limit}
        assert len(stage.requests(chain)) == asked
    verdict = stage.apply(chain, []).verdict
    assert verdict is not None
    assert (verdict.accepted, verdict.label, verdict.distinct) == (False, "too long", 5)
    assert len(choose(here, unit="thought", reject=False).requests(chain)) == 1  # what may not be rejected fails with its chain


@pytest.mark.parametrize("build", [choose, score, likelihood])
def test_without_candidates_nothing_is_asked_and_nothing_judged(world: World, build: Callable[[Any], Any]) -> None:
    here = world()
    chain = here.chain()
    stage = build(here)
    assert stage.requests(chain) == []
    assert stage.apply(chain, []).verdict is None


@pytest.mark.parametrize("build", [choose, score])
def test_options_of_no_probability_are_a_rejection(world: World, build: Callable[[Any], Any]) -> None:
    here = world()
    chain = here.chain()
    here.draft(chain, "a\n\n")
    verdict = build(here).apply(chain, [here.weighed(*[0.0] * 10)]).verdict
    assert (verdict.accepted, verdict.label, verdict.mass, set(verdict.probs)) == (False, "0", 0.0, {0.0})


@given(st.lists(st.floats(min_value=-1e4, max_value=0.0) | st.just(-math.inf), min_size=1, max_size=36))
def test_probabilities_add_up(logprobs: list[float]) -> None:
    probs, mass = probabilities(logprobs)
    assert 0.0 <= mass <= 1.0
    assert sum(probs) == pytest.approx(0.0 if max(logprobs) == -math.inf else 1.0)
    assert probs.index(max(probs)) == logprobs.index(max(logprobs)) or max(probs) == pytest.approx(probs[logprobs.index(max(logprobs))])


@pytest.mark.parametrize("target", ["sim", "shifted", "tiny"])
def test_a_score_asks_as_if_the_candidate_were_committed(world: World, target: str) -> None:
    here = world(target=target)
    chain = here.chain()
    here.draft(chain, "It is 5.\n\n")
    [request] = score(here).requests(chain)
    here.write(chain, "It is 5.\n\n", role="draft")
    committed = chain.contexts["target"]
    assert request.prompt_ids[: len(committed)] == committed
    assert (request.max_tokens, len(request.option_ids)) == (1, 10)


def at(**weights: float) -> list[float]:
    return [weights.get(f"d{digit}", 0.0) for digit in range(10)]


@pytest.mark.parametrize(
    ("fields", "weights", "value", "accepted"),
    [
        ({"threshold": 7.0}, at(d7=0.4, d2=0.3, d1=0.3), 7.0, True),
        ({"threshold": 7.0}, at(d6=0.4, d9=0.3, d8=0.3), 6.0, False),
        ({"threshold": 7.0}, at(d6=0.5, d7=0.5), 6.0, False),
        ({"threshold": 0.0}, at(d0=1.0), 0.0, True),
        ({"threshold": 7.0, "method": "expected"}, at(d7=0.4, d2=0.3, d1=0.3), 3.7, False),
        ({"threshold": 7.0, "method": "expected"}, at(d6=0.5, d8=0.5), 7.0, True),
        ({"threshold": 7.0, "method": "expected"}, at(d6=0.51, d8=0.49), 6.98, False),
        ({"threshold": 7.0, "method": "expected"}, at(d9=0.05, d7=0.05), 8.0, True),
    ],
)
def test_a_score_against_its_threshold(world: World, fields: Any, weights: list[float], value: float, accepted: bool) -> None:
    here = world()
    chain = here.chain()
    here.draft(chain, "It is 5.\n\n")
    verdict = score(here, **fields).apply(chain, [here.weighed(*weights)]).verdict
    assert verdict is not None
    assert verdict.value == pytest.approx(value)
    assert verdict.accepted == accepted
    assert verdict.threshold == fields["threshold"]
    assert verdict.mass == pytest.approx(sum(weights))


@pytest.mark.parametrize("target", ["sim", "shifted", "tiny"])
def test_a_likelihood_scores_distinct_candidates_after_the_context_and_asks_nothing(world: World, target: str) -> None:
    here = world(target=target)
    chain = here.chain()
    here.draft(chain, "It is 5.\n\n", "", "It is 5.\n\n", "Done.</think>")
    encode = here.tokenizers["target"].encode
    assert likelihood(here).requests(chain) == [
        Request(
            request_id=f"p#0/0/verify/{index}",
            prompt_ids=chain.contexts["target"],
            max_tokens=1,
            seed=chain.seed("verify"),
            scored_ids=tuple(encode(text)),
            affinity="p#0",
            content=chain.content,
        )
        for index, text in ((0, "It is 5.\n\n"), (3, "Done.</think>"))
    ]


def judged(here: Any, texts: tuple[str, ...], logprobs: tuple[tuple[float, ...], ...], **fields: Any) -> Verdict:
    """The verdict on `texts`, whose tokens have these log probabilities."""
    chain = here.chain()
    here.draft(chain, *texts)
    verdict = likelihood(here, **fields).apply(chain, [scored(*each) for each in logprobs]).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.threshold) == ("likelihood", fields["threshold"])
    return verdict


LEAST: Any = {"statistic": "minimum"}


@pytest.mark.parametrize(
    ("fields", "logprobs", "value", "chosen"),
    [
        ({"threshold": -0.5}, ((-0.1, -0.9),), -0.5, 0),
        ({"threshold": -0.49}, ((-0.1, -0.9),), -0.5, None),
        ({"threshold": -1.0, **LEAST}, ((-0.1, -0.9),), -0.9, 0),
        ({"threshold": -0.8, **LEAST}, ((-0.1, -0.9),), -0.9, None),
        ({"threshold": 0.0}, ((0.0, 0.0),), 0.0, 0),
        ({"threshold": 0.0}, ((-1e-9,),), -1e-9, None),
        ({"threshold": -math.inf}, ((-math.inf,),), -math.inf, 0),
        ({"threshold": -1.0}, ((-0.4, -0.4), (-0.3,), (-0.35,)), -0.3, 2),
        ({"threshold": -1.0}, ((-0.3,), (-0.3,), (-0.4,)), -0.3, 0),
        ({"threshold": -0.2}, ((-0.4, -0.4), (-0.3,), (-0.35,)), -0.3, None),
        ({"threshold": -1.0}, ((-0.1,) * 9 + (-2.0,), (-0.5,), (-9.0,)), -0.29, 0),
        ({"threshold": -1.0, **LEAST}, ((-0.1,) * 9 + (-2.0,), (-0.5,), (-9.0,)), -0.5, 2),
    ],
)
def test_the_likeliest_candidate_against_its_threshold(world: World, fields: Any, logprobs: Any, value: float, chosen: int | None) -> None:
    texts = ("a\n\n",) if len(logprobs) == 1 else ("a\n\n", "a\n\n", "b\n\n", "c\n\n")
    verdict = judged(world(), texts, logprobs, **fields)
    assert verdict.value == pytest.approx(value)
    assert (verdict.chosen, verdict.accepted, verdict.distinct) == (chosen, chosen is not None, len(logprobs))
    assert verdict.label == ("0" if chosen is None else str(max(chosen, 1)))


@pytest.mark.parametrize(
    ("texts", "logprobs", "chosen"), [(("", "a\n\n"), ((-0.5,),), 1), (("", "a\n\n"), ((-2.0,),), None), (("",), (), None)]
)
def test_a_candidate_without_tokens_is_not_accepted(world: World, texts: Any, logprobs: Any, chosen: int | None) -> None:
    verdict = judged(world(), texts, logprobs, threshold=-1.0)
    assert (verdict.chosen, verdict.distinct) == (chosen, len(texts))
    assert verdict.probs[0] == 0
    assert judged(world(), ("",), (), threshold=-math.inf).chosen is None
