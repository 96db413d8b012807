"""`draft`, `generate` and `answer`: what they ask, and what becomes of what an engine writes."""

from typing import Any

import pytest

from pipeline.data.problems import ChainSettings
from pipeline.engine import Candidate, Completion, Request, Usage
from pipeline.graph.spec import UntilSpec
from pipeline.reasoning.chain import Outcome
from pipeline.stages.answer import AnswerSpec, AnswerStage
from pipeline.stages.draft import DraftSpec, DraftStage
from pipeline.stages.generate import GenerateSpec, GenerateStage
from tests.support.chains import World, begun


def generate(here: Any, unit: Any, **fields: Any) -> Any:
    return GenerateStage("write", GenerateSpec(engine="target", unit=unit, max_tokens=32, **fields), here.builders)


def draft(here: Any, **fields: Any) -> Any:
    return DraftStage("draft", DraftSpec(engine="draft", max_tokens=32, **fields), here.builders)


def answer(here: Any, **fields: Any) -> Any:
    return AnswerStage("answer", AnswerSpec(engine="target", **{"max_tokens": 32, **fields}), here.builders)


def written(here: Any, unit: Any, text: str, chain: Any = None, **how: Any) -> Any:
    return generate(here, unit).apply(chain or here.chain(), [here.said(text, role="target", **how)])


def close_id(here: Any, role: str = "target") -> int:
    return int(here.tokenizers[role].special_ids["</think>"])


@pytest.mark.parametrize("role", ["draft", "target"])
@pytest.mark.parametrize(
    ("before", "text", "step"),
    [
        ("It is\n", "\nSo 5.\n\n", "\n"),
        ("It is\n", "\n\n", "\n\n"),
        ("It is\n", "so 5.\n\n", "so 5.\n\n"),
        ("It is\n\n", "\nSo 5.", "\nSo 5."),
    ],
)
def test_what_completes_a_delimiter_that_was_cut_ends_the_step(role: str, before: str, text: str, step: str) -> None:
    here, chain = begun()
    here.write(chain, before)
    if role == "target":
        span = written(here, "step", text, chain).step
    else:
        [span] = draft(here).apply(chain, [here.said(text)]).candidates
    assert span == here.span(role, step)


def test_a_step_ends_at_any_of_several_delimiters_also_where_the_one_before_was_cut_in_it() -> None:
    here, chain = begun(delimiter=("\n\n", "\n2."))
    [request] = generate(here, "step").requests(chain)
    assert request.stop == ("\n\n", "\n2.")
    here.write(chain, "It is\n")
    spans = draft(here).apply(chain, [here.said("\nSo 5.\n\n", "2. So 5.\n\n", "2 So 5.\n\n")]).candidates
    assert [span.text for span in spans] == ["\n", "2.", "2 So 5.\n\n"]


def test_no_text_ends_within_a_character_wherever_it_is_cut() -> None:
    """Steps, candidates, responses and answers: whoever goes on writes the character anew."""
    here, text = World("tiny", "tiny"), "It is 5\u20ac \u2212 \\boxed{√π°} 汉𝒙"
    decode, ids = here.tokenizers["draft"].decode, here.tokenizers["draft"].encode(text)
    cuts = [tuple(ids[:size]) for size in range(1, len(ids) + 1)]
    assert sum("\ufffd" in decode(cut) for cut in cuts) > 5
    for cut in cuts:
        candidate = Candidate(ids=cut, text=decode(cut), cumulative_logprob=None, finish_reason="length")
        said = [Completion(candidates=(candidate,), usage=Usage(input_tokens=1))]
        chain = here.chain()
        spans = [
            draft(here).apply(chain, said).candidates[0],
            generate(here, "tokens").apply(chain, said).step,
            generate(here, "response", answer_tokens=4).apply(chain, said).step,
            answer(here).apply(chain, said).answer,
        ]
        assert {(span.ids, span.text) for span in spans} == {(spans[0].ids, decode(spans[0].ids).removesuffix("\ufffd"))}
        assert text.startswith(spans[0].text)
        assert len(cut) - len(spans[0].ids) < 4


@pytest.mark.parametrize("target", ["tiny", "shifted"])
def test_a_character_that_is_written_token_by_token_has_its_text_once(target: str) -> None:
    """By a draft and a target in turns, of which one of another vocabulary writes the character anew."""
    here, text = World("tiny", target), "5 \u20ac \u2212 √π° 汉𝒙."
    chain = here.chain()
    for id_ in here.tokenizers["draft"].encode(text):
        candidate = Candidate(ids=(id_,), text=here.tokenizers["draft"].decode([id_]), cumulative_logprob=None, finish_reason="length")
        said = [Completion(candidates=(candidate,), usage=Usage(input_tokens=1))]
        writer = generate(here, "tokens") if target == "tiny" and len(chain.thought) % 2 else draft(here)
        outcome = writer.apply(chain, said)
        chain.apply("write", outcome if outcome.step else Outcome(step=outcome.candidates[0], decision="written"))
    assert "".join(span.text for span in chain.thought) == text
    assert sum(not span.text for span in chain.thought) > 5


@pytest.mark.parametrize(
    ("text", "how", "closes"),
    [
        ("a\n\n", {"stop": "\n\n"}, False),
        ("a", {"finish": "length", "stop": None}, False),
        ("a</think>", {"stop": 1}, True),
        ("a</think>", {"finish": "length", "stop": None}, True),
        ("a", {"stop": None}, True),
        ("", {"stop": None}, True),
    ],
)
def test_a_candidate_closes_the_thought_by_its_mark_or_by_the_end_of_sequence(text: str, how: Any, closes: bool) -> None:
    here = World()
    [candidate] = draft(here).apply(here.chain(), [here.said(text, **how)]).candidates
    assert (candidate.text, candidate.role, candidate.closes) == (text, "draft", closes)
    step = written(here, "step", text, **how).step
    assert step.closes == closes


def test_a_draft_continues_the_context() -> None:
    here, chain = begun(draft="shifted")
    chain.enter(UntilSpec(token_budget=20))
    for unit, stop in (("step", ("\n\n",)), ("thought", ())):
        [request] = draft(here, unit=unit, candidates=3, temperature=0.5, top_p=0.9).requests(chain)
        known: Any = {"request_id": "p#0/0/draft", "prompt_ids": chain.contexts["draft"], "seed": chain.seed("draft"), "affinity": "p#0"}
        own: Any = {"max_tokens": 20, "n": 3, "temperature": 0.5, "top_p": 0.9, "content": chain.content}
        assert request == Request(**known, **own, stop=stop, stop_ids=(close_id(here, "draft"),))


@pytest.mark.parametrize("unit", ["tokens", "step", "thought", "response"])
def test_each_unit_stops_where_it_ends_and_within_the_budget(unit: Any) -> None:
    here, chain = begun()
    chain.enter(UntilSpec(token_budget=10))
    here.write(chain, "1234")
    [request] = generate(here, unit).requests(chain)
    assert request.stop == (("\n\n",) if unit == "step" else ())
    assert request.stop_ids == (() if unit == "response" else (close_id(here),))
    assert request.max_tokens == 6
    idle = GenerateStage("guidance", GenerateSpec(engine="target", unit=unit, max_tokens=0), here.builders)
    assert idle.requests(chain) == []
    assert chain.apply("guidance", idle.apply(chain, [])) is None


def test_the_budget_of_a_response_is_for_thought_and_answer_together() -> None:
    here, both = World(), {"budget": "response", "token_budget": 6}
    chain = here.chain()
    here.write(chain, "1234", closes=False)
    assert answer(here, **both).requests(chain) == []  # an unfinished thought is not closed
    here.write(chain, "5", closes=True)
    [request] = answer(here, **both).requests(chain)
    assert request.max_tokens == 1
    here.write(chain, "6", closes=True)
    stage = answer(here, **both)
    assert stage.requests(chain) == []
    chain.apply("answer", stage.apply(chain, []))
    assert chain.answer is None


def test_an_answer_that_is_cut_goes_on_within_its_tokens() -> None:
    here, chain = begun()
    chain.apply("response", written(here, "response", "So 3.</think>\n\nIt is", chain, finish="length", stop=None))
    written_ids = here.tokenizers["target"].encode("\n\nIt is")
    [request] = answer(here).requests(chain)
    assert (request.max_tokens, list(request.prompt_ids[-len(written_ids) :])) == (32 - len(written_ids), written_ids)
    assert answer(here, max_tokens=len(written_ids)).requests(chain) == []


@pytest.mark.parametrize(
    ("target", "text", "asked"), [("plain", "so \\boxed{5}", False), ("plain", "so 5", True), ("sim", "so \\boxed{5}", True)]
)
def test_an_answer_is_asked_for_unless_a_model_without_thoughts_has_boxed_it(target: str, text: str, asked: bool) -> None:
    here, chain = begun(target=target)
    here.write(chain, "One.\n\n", text)
    stage = answer(here)
    assert stage.requests(chain), "the thought is not over"
    here.write(chain, "", closes=True)
    assert bool(stage.requests(chain)) == asked
    if not asked:
        chain.apply("answer", stage.apply(chain, []))
        assert (chain.answer.text, chain.answer.ids, chain.stated_answer()) == (text, (), "5")


def test_how_a_step_came_about() -> None:
    here, chain = begun()
    assert written(here, "tokens", "Well", chain).decision == "guidance"
    assert written(here, "step", "a\n\n", chain).decision == "written"
    said = [here.said("a\n\n", role="target")]
    assert generate(here, "step", first_steps=2).apply(chain, said).decision == "first_steps"
    here.write(chain, "Well", decision="guidance")
    assert written(here, "tokens", "more", chain).decision == "written"
    here.draft(chain, "b\n\n")
    assert generate(here, "step", first_steps=2).apply(chain, said).decision == "fallback"


@pytest.mark.parametrize("target", ["sim", "shifted", "tiny"])
def test_a_response_is_split_at_the_end_of_its_thought(target: str) -> None:
    here = World(target=target)
    outcome = written(here, "response", "It is 5.</think>\n\n\\boxed{5} </think>", stop=None)
    step, said = outcome.step, outcome.answer
    assert (step.text, step.closes, said.text) == ("It is 5.</think>", True, "\n\n\\boxed{5} </think>")
    decode = here.tokenizers["target"].decode
    assert (decode(step.ids), decode(said.ids)) == (step.text, said.text)


@pytest.mark.parametrize(("finish", "cut"), [("stop", False), ("length", True)])
def test_an_answer_that_is_cut_is_marked(finish: Any, cut: bool) -> None:
    here, text = World(), "so</think>It is 5"
    plain = answer(here).apply(here.chain(), [here.said("It is 5", role="target", finish=finish, stop=None)]).answer
    whole = written(here, "response", text, finish=finish, stop=None).answer
    short = generate(here, "response", answer_tokens=2).apply(here.chain(), [here.said(text, role="target", stop=None)]).answer
    assert (plain.cut, whole.cut, short.cut) == (cut, cut, True)


def test_a_response_that_never_closed_its_thought_has_an_answer_only_where_the_model_has_no_thoughts() -> None:
    for target, finish in (("sim", "length"), ("sim", "stop"), ("plain", "length"), ("plain", "stop")):
        outcome = written(World(target=target), "response", "It is \\boxed{5}", finish=finish, stop=None)
        assert outcome.step.closes == (finish == "stop")
        assert (outcome.answer is not None) == ((target, finish) == ("plain", "stop"))


@pytest.mark.parametrize("target", ["sim", "shifted", "tiny"])
@pytest.mark.parametrize(("text", "closes"), [("So 5.\n\n", False), ("So 5.", True), ("", True), ("So 5.</think>", True)])
def test_the_thought_is_closed_before_the_answer_unless_it_closed_itself(target: str, text: str, closes: bool) -> None:
    here, chain = begun(target=target)
    here.write(chain, "One.\n\n", text, role="draft", closes=closes)
    [request] = answer(here).requests(chain)
    context = chain.contexts["target"]
    appended = "" if text.endswith("</think>") else "</think>\n\n"
    assert tuple(request.prompt_ids) == (*context, *here.tokenizers["target"].encode(appended))
    assert (request.stop, request.stop_ids) == ((), ())


def test_a_response_that_spells_out_the_end_of_its_thought_is_split_where_it_ends() -> None:
    here = World(target="tiny")
    tokenizer = here.tokenizers["target"]
    ids = (
        *tokenizer.encode_parts(["", "I write </think> and "]),
        *tokenizer.encode("</think>5 "),
        *tokenizer.encode_parts(["", "</think>"]),
    )
    text = tokenizer.decode(ids)
    candidate = Candidate(ids=ids, text=text, cumulative_logprob=None, finish_reason="stop")
    completion = Completion(candidates=(candidate,), usage=Usage(input_tokens=1))
    outcome = generate(here, "response").apply(here.chain(), [completion])
    assert (outcome.step.text, outcome.answer.text) == ("I write </think> and </think>", "5 </think>")
    assert tokenizer.decode(outcome.step.ids) == outcome.step.text


def test_what_a_problem_says_of_its_chains_takes_the_place_of_what_the_stages_say() -> None:
    here = World()
    chain = here.chain(own=ChainSettings(max_tokens=20, temperature=0.2, top_k=3, stop=("!", "\n")))
    stages = (draft(here, temperature=0.9, top_p=0.5), generate(here, "thought"), answer(here))
    asked = [request for stage in stages for request in stage.requests(chain)]
    assert [(each.temperature, each.top_p, each.top_k) for each in asked] == [(0.2, 0.5, 3), (0.2, 1.0, 3), (0.2, 1.0, 3)]
    assert [each.max_tokens for each in asked] == [20, 20, 20]
    assert [each.stop for each in asked] == [("\n\n",), (), ("!",)]
    here.write(chain, "0123456789")
    assert answer(here).requests(chain)[0].max_tokens == 10
    here.write(chain, "0123456789")
    assert [stage.requests(chain) for stage in stages] == [[], [], []]
    assert answer(here).apply(chain, []) == Outcome()
