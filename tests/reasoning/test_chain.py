"""A chain without any engine: when it ends, what it commits, whose ids grow by what."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.data.problems import ChainSettings
from pipeline.graph.spec import UntilSpec
from pipeline.reasoning.chain import ANSWER_RESERVE, Chain, Outcome, Verdict
from tests.support.chains import World, begun


def verdict(chosen: int | None) -> Verdict:
    return Verdict(kind="choose", chosen=chosen, label="", value=1.0, probs=(1.0,), mass=1.0)


TEXTS = st.lists(st.sampled_from(["a\n\n", "a", "\\bo", "xed{5}\n\n", "\\boxed{}", "Answer:", "ANSWER:", "b</think>", ""]), max_size=6)
UNTIL = st.fixed_dictionaries(
    {},
    optional={
        "thought_closed": st.booleans(),
        "answer_boxed": st.booleans(),
        "repeated": st.integers(1, 3),
        "token_budget": st.integers(1, 20),
        "max_steps": st.integers(1, 4),
    },
)


@given(TEXTS, UNTIL, st.booleans())
@example(["a\n\n", "a"], {"repeated": 2}, False)
@example(["so", "a\n\n", "a"], {"repeated": 2}, False)
@example(["b</think>", ""], {"token_budget": 50}, False)
@example(["\\bo", "xed{5}\n\n"], {"answer_boxed": True, "max_steps": 2}, False)
def test_a_thought_ends_by_the_first_condition_that_holds(texts: list[str], until: dict[str, Any], overflows: bool) -> None:
    """In this order; one that is closed and says nothing more ends in any case, as does one whose prompt did not fit."""
    here, chain = begun()
    for text in texts:
        here.write(chain, text, closes=text.endswith("</think>"))
    if overflows:
        chain.ending.overflow()
    said, closed = [text.strip() for text in texts], "b</think>" in texts
    in_a_row = next((place for place, text in enumerate(reversed(said)) if text != said[-1]), len(said))
    holds = {
        "thought_closed": closed and (until.get("thought_closed") or not texts[-1]),
        "answer_boxed": until.get("answer_boxed") and any(mark in "".join(texts[-2:]) for mark in ("\\boxed{5}", "Answer:", "ANSWER:")),
        "repeated": in_a_row >= until.get("repeated", 99) and len(texts) > until["repeated"],
        "token_budget": chain.thought_tokens >= until.get("token_budget", 999),
        "max_steps": len(texts) >= until.get("max_steps", 99),
        "context_length": overflows,
    }
    assert chain.exit(UntilSpec(**until)) == next((name for name, held in holds.items() if held), None)
    default = "thought_closed" if closed else "context_length" if overflows else "max_tokens"
    assert chain.default_stop_reason() == default


def test_guidance_is_no_step() -> None:
    here, chain = begun()
    [guidance] = here.write(chain, "Well", decision="guidance")
    assert guidance.index == 0
    assert chain.exit(UntilSpec(max_steps=1)) is None
    [step] = here.write(chain, " then\n\n")
    assert step.index == 1
    assert chain.exit(UntilSpec(max_steps=1)) == "max_steps"


@pytest.mark.parametrize(("spare", "reason"), [(1, None), (0, "context_length")])
def test_a_thought_leaves_room_for_its_answer(spare: int, reason: str | None) -> None:
    prompt = len(World().chain().contexts["target"])
    assert World(limit=prompt + ANSWER_RESERVE + spare).chain().exit(UntilSpec()) == reason


def test_a_step_leaves_room_for_the_answer_in_every_context() -> None:
    """Also where an engine takes more tokens for the same text than the one that writes it."""
    prompt = len(World().chain().contexts["target"])
    chain = World(limit=prompt + ANSWER_RESERVE + 30).chain()
    assert (chain.room(20, "draft"), chain.room(50, "draft")) == (20, 30)
    here, chain = begun("sim", "tiny", limit=1000)
    here.write(chain, "Tom has 3 pens and buys 2 more. " * 3, role="draft")
    grown = {role: len(ids) - chain.begins[role] for role, ids in chain.contexts.items()}
    left = {role: 1000 - ANSWER_RESERVE - len(ids) for role, ids in chain.contexts.items()}
    writer, other = sorted(grown, key=grown.__getitem__)
    assert grown[writer] < grown[other]
    assert chain.room(1000, writer) == left[other] * grown[writer] // grown[other] < left[writer]
    assert chain.room(1000, other) == min(left.values())


@pytest.mark.parametrize(("closing", "closes"), [([0], False), ([1], False), ([0, 1, 2], True), ([1, 2, 4], True), ([0, 1], False)])
def test_identical_candidates_end_as_most_of_them_do(closing: list[int], closes: bool) -> None:
    here, chain = begun()
    many = 4 if closing == [0, 1] else 5
    same = [here.span("draft", "So it is 5.", closes=i in closing) for i in range(many)]
    chain.apply("draft", Outcome(candidates=(*same, here.span("draft", "Or 6."))))
    shown, other = chain.distinct_candidates()
    assert (chain.candidates[shown].closes, other) == (closes, many)


def test_room_is_what_the_budget_leaves() -> None:
    here, chain = begun()
    assert chain.room(8, "target") == 8
    chain.enter(UntilSpec(token_budget=10))
    assert chain.room(8, "target") == 8
    here.write(chain, "12345")
    assert (chain.thought_tokens, chain.room(8, "target")) == (5, 5)
    here.write(chain, "6789")
    assert chain.room(8, "target") == 1
    chain.enter(UntilSpec(max_steps=3))
    assert chain.room(8, "target") == 8


def test_seeds_depend_on_run_problem_sample_step_and_stage_and_on_nothing_else() -> None:
    here, other = World(), World(draft="tiny", target="plain", limit=77)
    base, own = here.chain(), ChainSettings(seed=7)
    chains = [
        base,
        here.chain(seed=1),
        here.chain("q"),
        here.chain("p", 1),
        here.chain("p1"),
        here.chain(own=own),
        here.chain("p", 1, own=own),
    ]
    seeds = {base.seed("verify"), *(chain.seed("draft") for chain in chains)}
    here.write(base, "step\n\n")
    seeds.add(base.seed("draft"))
    assert len(seeds) == 9
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert here.chain(own=own).seed("draft") == here.chain("q", seed=1, own=own).seed("draft"), "that of the problem takes their place"
    two = other.chain(order=99)
    other.write(two, "something else entirely\n\n")
    other.draft(two, "x", "y")
    assert base.seed("draft") == two.seed("draft")


def test_a_fallback_remembers_what_was_rejected() -> None:
    here, chain = begun()
    here.draft(chain, "a\n\n", "b\n\n")
    assert chain.apply("verify", Outcome(verdict=verdict(None))) is None
    [step] = here.write(chain, "c\n\n")
    assert (step.index, step.stage, chain.candidates) == (1, "write", ())
    assert (step.decision, [c.text for c in step.candidates]) == ("fallback", ["a\n\n", "b\n\n"])
    assert (step.verdict, step.verify_stage) == (verdict(None), "verify")
    [step] = here.write(chain, "d\n\n", decision="written")
    assert (step.verdict, step.verify_stage, step.candidates) == (None, None, ())


Moves = st.lists(st.tuples(st.sampled_from(["draft", "accept", "reject", "write", "close", "round"]), st.text("ab 1\n汉", max_size=6)))


@given(moves=Moves, target=st.sampled_from(["sim", "shifted", "plain", "tiny"]))
def test_a_context_only_grows_at_its_end(moves: list[tuple[str, str]], target: str) -> None:
    here, chain = begun(draft="sim", target=target)
    for move, text in moves:
        before, committed = {role: list(ids) for role, ids in chain.contexts.items()}, len(chain.thought)
        act(here, chain, move, text)
        said = "".join(span.text for span in chain.thought[committed:])
        for role, ids in chain.contexts.items():
            assert list(ids[: len(before[role])]) == before[role]
            assert here.tokenizers[role].decode(ids[len(before[role]) :]) == said
    assert chain.thought_tokens == sum(len(span.ids) for span in chain.thought)
    assert chain.next_index == len(chain.thought) + 1


def act(here: Any, chain: Chain, move: str, text: str) -> None:
    if move == "draft":
        here.draft(chain, text, f"{text}\n\n", text)
    elif move == "round":
        chain.begin_round()
    elif move in ("accept", "reject"):
        chain.apply("verify", Outcome(verdict=verdict(len(chain.candidates) - 1 if move == "accept" and chain.candidates else None)))
    else:
        here.write(chain, text, closes=move == "close")


@pytest.mark.parametrize(
    ("thought", "answer", "expected"),
    [
        (["\\boxed{1}"], "so \\boxed{2}", "2"),
        (["\\boxed{1}"], None, "1"),
        (["no box"], None, None),
    ],
)
def test_the_answer_is_boxed_in_the_answer_or_else_in_the_thought(thought: list[str], answer: str | None, expected: Any) -> None:
    here, chain = begun()
    here.write(chain, *thought)
    if answer is not None:
        chain.apply("answer", Outcome(answer=here.span("target", answer)))
    assert chain.stated_answer() == expected


def test_a_problem_with_a_limit_of_its_own_ends_when_it_is_spent() -> None:
    here = World()
    chain = here.chain(own=ChainSettings(max_tokens=5))
    chain.enter(UntilSpec(token_budget=9))
    assert (chain.room(32, "target"), chain.is_spent, chain.exit(UntilSpec())) == (5, False, None)
    here.write(chain, "123")
    assert (chain.room(32, "target"), chain.left_of_response(1)) == (2, 1)
    here.write(chain, "4567")
    assert (chain.left_of_response(32), chain.is_spent, chain.exit(UntilSpec(repeated=1))) == (0, True, "max_tokens")
    closed = here.chain(own=ChainSettings(max_tokens=1))
    here.write(closed, "so</think>", closes=True)
    assert closed.exit(UntilSpec(thought_closed=True)) == "thought_closed"
