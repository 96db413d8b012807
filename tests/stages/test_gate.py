"""`gate`: what it lets pass, what it flags, and what becomes of either."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from pipeline.analysis.summary import summarize
from pipeline.confidence import Confidence
from pipeline.reasoning.chain import Outcome
from pipeline.run.prepare import load_plan
from pipeline.stages.build import build_stages
from pipeline.stages.gate import Gate, GateSpec
from tests.support.chains import World, begun
from tests.support.paths import ROOT, SIM
from tests.support.runs import rows, solve

MIDDLE = Confidence(mean=-0.5, min=-2.0, first_entropy=1.0, margin=0.5)
SURE = Confidence(mean=-0.1, min=-0.4, first_entropy=0.2, margin=0.9)


def gate(threshold: float, statistic: Any = "mean", **fields: Any) -> Any:
    return Gate("gate", GateSpec(threshold=threshold, statistic=statistic, **fields), {})


def drafted(here: Any, *found: Confidence | None) -> Any:
    """A chain with a candidate for each of these confidences."""
    chain = here.chain()
    spans = tuple(structs.replace(here.span("draft", f"step {number}\n\n"), confidence=each) for number, each in enumerate(found))
    chain.apply("draft", Outcome(candidates=spans))
    return chain, spans


@given(st.sampled_from(["mean", "min", "first_entropy", "margin"]), st.floats(-3, 3), st.sampled_from(["unsure", "overconfident"]))
def test_a_value_beyond_the_threshold_is_flagged(statistic: str, threshold: float, flags: str) -> None:
    """Less log probability or margin, or more entropy, is unsure; the opposite is overconfident; an equal value passes."""
    chain, value = drafted(World(), MIDDLE)[0], getattr(MIDDLE, statistic)
    for limit in (threshold, value):
        outcome = gate(limit, statistic, flags=flags).apply(chain, [])
        flagged = value < limit if (statistic == "first_entropy") == (flags == "overconfident") else value > limit
        assert (outcome.reading.flagged, outcome.reading.value, outcome.reading.candidate) == (flagged, value, 0)
        assert (outcome.step is None) == flagged


def test_the_surest_candidate_becomes_a_step_that_nothing_verified() -> None:
    here = World()
    chain, spans = drafted(here, MIDDLE, SURE)
    step = chain.apply("gate", gate(-0.2).apply(chain, []))
    assert (step.span, step.decision, step.chosen, step.verdict, step.stage) == (spans[1], "unverified", 1, None, "gate")
    assert step.readings["gate"].value == SURE.mean
    assert chain.contexts["target"][-len(spans[1].ids) :].tolist() == list(spans[1].ids), "the target is shown it with its next prompt"
    assert chain.candidates == ()
    chain, spans = drafted(here, SURE)
    assert chain.apply("gate", gate(-0.2, accept=False).apply(chain, [])) is None
    assert (chain.candidates, chain.readings["gate"].flagged) == (spans, False), "it stays a candidate"


def test_a_candidate_without_log_probabilities_and_withheld_ones_are_flagged() -> None:
    here = World()
    chain, _ = drafted(here, None)
    reading = gate(-5.0).apply(chain, []).reading
    assert (reading.flagged, reading.value, reading.candidate) == (True, None, None)
    withheld = here.chain()
    assert gate(-5.0).apply(withheld, []) == Outcome()
    withheld.apply("draft", Outcome(withheld=True))
    assert gate(-5.0).apply(withheld, []).reading == reading


def test_a_step_that_the_thought_has_already_is_a_loop() -> None:
    here, chain = begun()
    here.write(chain, "so\n\n", "again\n\n", "again\n\n")
    for text, count in (("again\n\n", 2), ("again ", 2), ("so\n\n", 1), ("new\n\n", 0)):
        chain.begin_round()
        here.draft(chain, text)
        reading = gate(2, "repeats").apply(chain, []).reading
        assert (reading.value, reading.flagged) == (count, count == 2)


def built(here: Any, graph: str) -> dict[str, Any]:
    plan = load_plan(ROOT / f"graphs/{graph}.yaml", SIM)
    return build_stages(plan, here.builders, graph)


@pytest.mark.parametrize(("graph", "stage"), [("gated", "draft"), ("routed", "glimpse"), ("triggered", "draft")])
def test_log_probabilities_are_asked_for_where_a_gate_reads_them(graph: str, stage: str) -> None:
    here = World()
    assert [request.logprobs for request in built(here, graph)[stage].requests(here.chain())] == [True]


def test_a_routed_step_is_written_by_whom_the_gate_says_from_the_token_that_it_read() -> None:
    here = World()
    stages, chain = built(here, "routed"), here.chain()
    [glimpse], [small], [large] = (stages[name].requests(chain) for name in ("glimpse", "small", "large"))
    assert (small.seed, small.prompt_ids) == (glimpse.seed, glimpse.prompt_ids)
    assert large.seed != glimpse.seed
    for confidence, writer, decision, role in ((SURE, "small", "unverified", "draft"), (MIDDLE, "large", "written", "target")):
        chain, _ = drafted(here, confidence)
        assert chain.apply("route", stages["route"].apply(chain, [])) is None
        step = chain.apply(writer, stages[writer].apply(chain, [here.said("It is 5.\n\n", role=role)]))
        assert (step.decision, step.chosen, step.verdict) == (decision, None, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "settings"), [("gated", ("sure=-0.22",)), ("routed", ("entropy=0.4",)), ("triggered", ("overconfident=-0.15", "loops=1"))]
)
def test_the_target_is_called_where_a_gate_flags_and_computes_what_it_has_not_read(
    tmp_path: Path, graph: str, settings: tuple[str, ...]
) -> None:
    """The target's context lags behind by the steps that nobody read; its next call computes these, once, and none again."""
    result = solve(tmp_path, graph=graph, settings=settings)
    steps = rows(result, "steps")
    decisions = Counter(row["decision"] for row in steps)
    assert decisions["unverified"]
    assert decisions["fallback" if graph == "gated" else "written"]
    for row in steps:
        flagged = any(row["gate_flagged"])
        assert (row["decision"] == "unverified") == (bool(row["gate_stage"]) and not flagged)
        assert (row["verify_kind"] is not None) == (flagged and graph == "gated")
    of_target: dict[str, int] = {}
    for call in sorted(rows(result, "calls"), key=lambda each: (each["chain_id"], each["call_index"])):
        if call["engine"] == "target":
            known = of_target.get(call["chain_id"], 0)
            assert call["cached_input_tokens"] >= known - 1, "all that it read before"
            of_target[call["chain_id"]] = call["input_tokens"] if call["kind"] != "score" else known
    found = summarize(result.folder)
    assert found.unverified_steps == decisions["unverified"]
    assert found.verified_steps == decisions["accepted"] + decisions["fallback"]
