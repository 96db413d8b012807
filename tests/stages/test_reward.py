"""`reward`: what a reward model is shown of a thought, and which candidate its answers accept."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.graph.rewards import TextPrompt
from pipeline.stages.base import TOO_LONG, ShowingStage, StagePlace
from pipeline.stages.draft import DraftSpec, DraftStage
from pipeline.stages.reward import RewardJudgeSpec, RewardStage
from tests.support.chains import World, begun

PROMPT = TextPrompt(begin="{problem}\n", step="{step} so:", between="\n", thought_end="</think>")
NO_END = TextPrompt(begin="{problem}\n", step="{step} so:")


def stage(here: Any, prompt: TextPrompt = PROMPT, **fields: Any) -> Any:
    spec = RewardJudgeSpec(engine="target", prm="prm.yaml", prompt=prompt, **fields)
    return RewardStage("verify", spec, here.builders)


def test_each_distinct_candidate_is_shown_behind_the_whole_thought() -> None:
    here, chain = begun(draft="shifted")
    here.write(chain, "Well, ", decision="guidance")
    here.write(chain, "2 and 3.\n\n")
    here.draft(chain, "So 5.\n\n", "So 6.\n\n", "So 5.\n\n")
    judge = stage(here)
    requests = judge.requests(chain)
    decode = here.tokenizers["target"].decode
    problem = chain.problem.told(here.builders["target"].prompts)
    assert [decode(request.prompt_ids) for request in requests] == [f"{problem}\nWell, 2 and 3. so:\nSo {number}. so:" for number in (5, 6)]
    plus, minus = (here.tokenizers["target"].encode(word)[0] for word in "+-")
    assert {(request.option_ids, request.max_tokens) for request in requests} == {((plus, minus), 1)}
    assert [request.request_id for request in requests] == ["p#0/2/verify/0.0", "p#0/2/verify/1.0"]
    assert judge.spec.needs == {"options": True}


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=3), st.integers(0, 9))
@example([[7]], 7)
def test_the_best_candidate_is_accepted_where_its_reward_reaches_the_threshold(tenths: list[list[int]], threshold: int) -> None:
    """A candidate of several steps has the least of their rewards."""
    here, chain = begun()
    here.draft(chain, *("\n\n".join(f"So {place}, {step}." for step, _ in enumerate(each)) for place, each in enumerate(tenths)))
    judge = stage(here, threshold=threshold / 10)
    answers = [here.weighed(reward / 20, (10 - reward) / 20) for each in tenths for reward in each]
    assert len(judge.requests(chain)) == len(answers)
    verdict = judge.apply(chain, answers).verdict
    least = [min(each) for each in tenths]
    assert (verdict.value, verdict.mass, verdict.distinct) == (pytest.approx(max(least) / 10), pytest.approx(0.5), len(tenths))
    assert verdict.chosen == (least.index(max(least)) if verdict.value >= threshold / 10 else None)


@pytest.mark.parametrize(("prompt", "shown"), [(PROMPT, ["2 and 3. so:\n</think> so:"]), (NO_END, ["2 and 3. so:"])])
def test_a_step_that_closes_the_thought_is_shown_and_a_blank_one_never_accepted(prompt: TextPrompt, shown: list[str]) -> None:
    here, chain = begun()
    judge = stage(here, prompt, threshold=0.0)
    assert judge.requests(chain) == []
    assert judge.apply(chain, []).verdict is None
    here.draft(chain, "\n\n")
    assert judge.requests(chain) == []
    assert not judge.apply(chain, []).verdict.accepted
    here.write(chain, "2 and 3.\n\n")
    here.draft(chain, "</think>")
    problem = chain.problem.told(here.builders["target"].prompts)
    assert [here.tokenizers["target"].decode(each.prompt_ids).removeprefix(f"{problem}\n") for each in judge.requests(chain)] == shown
    assert judge.apply(chain, [here.weighed(0.9, 0.1)]).verdict.accepted


TAGGED = TextPrompt(begin="{problem} ", step="Step {number}: {step} so", between="\n")


@pytest.mark.parametrize("draft", ["sim", "tiny"])
@pytest.mark.parametrize("steps", [0, 1, 12])
def test_a_candidate_that_takes_the_room_there_is_still_fits(draft: str, steps: int) -> None:
    here, chain = begun(draft=draft, target=draft, limit=4000)
    for number in range(steps):
        here.write(chain, f"Then {number} and {number}.\n\n")
    judge = stage(here, TAGGED)
    room = judge.room_for(chain, candidates=4)
    here.draft(chain, "and 7")
    [request] = judge.requests(chain)
    asked = len(request.prompt_ids) - len(here.tokenizers["target"].encode("and 7"))
    slack = chain.left("target", asked) - 1 - room
    assert 0 <= slack <= 3
    far = World(draft=draft, target=draft, limit=100_000)
    chain = far.chain()
    far.write(chain, *(f"Then {number} and {number}.\n\n" for number in range(steps)))
    assert 4096 < stage(far, TAGGED).room_for(chain, 4) <= room + 96_000, "told by bytes, which are no fewer than tokens"


def test_what_its_reward_model_cannot_be_shown_is_not_drafted() -> None:
    here, chain = begun(limit=1000)
    judge = stage(here, TAGGED)
    spec = DraftSpec(engine="draft", candidates=2, max_tokens=64)
    while judge.room_for(chain, 2) >= chain.mean_step:
        here.write(chain, "Then 23 and 42.\n\n")
    assert DraftStage("draft", spec, here.builders).requests(chain), "its own context has room"
    assert isinstance(judge, ShowingStage)
    drafter = DraftStage("draft", spec, here.builders, StagePlace(judges=(judge,)))
    assert drafter.requests(chain) == []
    chain.apply("draft", drafter.apply(chain, []))
    verdict = judge.apply(chain, []).verdict
    assert (verdict.accepted, verdict.label) == (False, TOO_LONG)
