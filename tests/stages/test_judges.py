"""`choose` and `score`: what they ask and how probabilities become a verdict."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.graph.prompts import CHOOSE_ASKED, CHOOSE_INTRO, CHOOSE_QUESTION, CHOOSE_THOUGHT_INTRO
from pipeline.stages.choose import ChooseSpec, ChooseStage
from pipeline.stages.score import ScoreSpec, ScoreStage
from tests.support.chains import begun


def choose(here: Any, **fields: Any) -> Any:
    return ChooseStage("verify", ChooseSpec(engine="target", **fields), here.builders)


def score(here: Any, **fields: Any) -> Any:
    return ScoreStage("verify", ScoreSpec(engine="target", **fields), here.builders)


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any), st.sampled_from([0.0, 0.4, 0.5, 1.0]))
def test_the_likeliest_option_decides_where_it_reaches_the_threshold(tenths: list[int], threshold: float) -> None:
    """SpecCoT eq. 4, SCoT eq. 3; an option stands for the first of identical candidates, and 0 for none of them."""
    here, chain = begun()
    weights = [each / 30 for each in tenths]
    here.draft(chain, "a\n\n", "a\n\n", "b\n\n")
    verdict = choose(here, threshold=threshold).apply(chain, [here.weighed(*weights)]).verdict
    best = int(verdict.label)
    assert verdict.probs == pytest.approx([weight / sum(weights) for weight in weights])
    assert (verdict.value, tenths[best], verdict.threshold) == (verdict.probs[best], max(tenths), threshold or None)
    assert verdict.mass == pytest.approx(sum(weights))
    assert (verdict.chosen, verdict.distinct) == ((None, 0, 2)[best] if verdict.value >= threshold else None, 2)


@pytest.mark.parametrize("target", ["sim", "shifted", "plain", "tiny"])
@pytest.mark.parametrize("reject", [True, False])
def test_a_choice_shows_distinct_candidates_behind_the_context_and_offers_0_only_where_it_may_reject(target: str, reject: bool) -> None:
    here, chain = begun(target=target)
    here.draft(chain, "One.\n\nIt is 5.</think>", "It is 6.</think>", "It is 6.</think>")
    decode, context = here.tokenizers["target"].decode, chain.contexts["target"]
    for unit, intro, shown in (
        ("step", CHOOSE_INTRO, "[1] One.\n\nIt is 5.</think>\n\n[2] It is 6.</think>\n\n"),
        ("thought", CHOOSE_THOUGHT_INTRO, "[1] One.\n\nIt is 5.\n\n[2] It is 6.\n\n"),
    ):
        [request] = choose(here, unit=unit, reject=reject).requests(chain)
        assert request.prompt_ids[: len(context)] == context
        asked = intro + shown + (CHOOSE_QUESTION if reject else CHOOSE_ASKED.replace("{{none}}", ""))
        assert asked in decode(request.prompt_ids[len(context) :])
        assert (request.max_tokens, request.temperature) == (1, 0.0)
    assert [decode([option]).strip() for option in request.option_ids] == ["0", "1", "2"][not reject :]


def test_thoughts_that_do_not_fit_together_are_all_rejected_without_a_call() -> None:
    here, chain = begun()
    here.draft(chain, *(f"{number} {'so ' * 400}It is 5.</think>" for number in range(5)))
    stage = choose(here, unit="thought")
    room = len(stage.requests(chain)[0].prompt_ids) + 1
    for limit, asked in ((room, 1), (room - 1, 0)):
        chain._limits = {**chain._limits, "target": limit}
        assert len(stage.requests(chain)) == asked
    verdict = stage.apply(chain, []).verdict
    assert (verdict.accepted, verdict.label, verdict.distinct) == (False, "too long", 5)
    assert len(choose(here, unit="thought", reject=False).requests(chain)) == 1  # what may not be rejected fails with its chain


@pytest.mark.parametrize("build", [choose, score])
def test_without_candidates_nothing_is_asked_and_options_of_no_probability_are_a_rejection(build: Any) -> None:
    here, chain = begun()
    stage = build(here)
    assert stage.requests(chain) == []
    assert stage.apply(chain, []).verdict is None
    here.draft(chain, "a\n\n")
    verdict = stage.apply(chain, [here.weighed(*[0.0] * 10)]).verdict
    assert (verdict.accepted, verdict.label, verdict.mass, set(verdict.probs)) == (False, "0", 0.0, {0.0})


@pytest.mark.parametrize("target", ["sim", "shifted", "tiny"])
def test_a_score_asks_as_if_the_candidate_were_committed(target: str) -> None:
    here, chain = begun(target=target)
    here.draft(chain, "It is 5.\n\n")
    [request] = score(here).requests(chain)
    here.write(chain, "It is 5.\n\n", role="draft")
    committed = chain.contexts["target"]
    assert request.prompt_ids[: len(committed)] == committed
    assert (request.max_tokens, len(request.option_ids)) == (1, 10)


@given(st.lists(st.integers(0, 9), min_size=10, max_size=10).filter(any), st.integers(0, 9), st.sampled_from(["greedy", "expected"]))
@example([0, 0, 0, 0, 0, 0, 5, 0, 5, 0], 7, "expected")
@example([0, 0, 0, 0, 0, 0, 0, 4, 3, 3], 7, "greedy")
def test_a_score_against_its_threshold(tenths: list[int], threshold: int, method: Any) -> None:
    """The likeliest digit, or the mean of the digits by their probabilities (SpecReason 4.1)."""
    here, chain = begun()
    here.draft(chain, "It is 5.\n\n")
    verdict = score(here, threshold=threshold, method=method).apply(chain, [here.weighed(*[each / 100 for each in tenths])]).verdict
    expected = sum(digit * each for digit, each in enumerate(tenths)) / sum(tenths)
    assert verdict.value == pytest.approx(expected if method == "expected" else float(verdict.label))
    assert tenths[int(verdict.label)] == max(tenths)
    assert verdict.accepted == (verdict.value >= threshold)
    assert (verdict.threshold, verdict.mass) == (threshold, pytest.approx(sum(tenths) / 100))
