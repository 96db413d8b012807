"""Which params of the bundled graphs can be tuned, and which wishes are refused."""

from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.session.prepare import load_plan
from pipeline.sweep.knobs import knobs_of
from tests.support.paths import ROOT, SIM


def graph(name: str) -> Path:
    return ROOT / f"graphs/{name}.yaml"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gated", [("sure", "gate", 0.0), ("threshold", "judge", 9.0), ("answer_confident", "end", 1.0)]),
        ("routed", [("entropy", "gate", 0.0), ("answer_confident", "end", 1.0)]),
        ("triggered", [("overconfident", "gate", -1000.0), ("answer_confident", "end", 1.0)]),
        ("specreason", [("threshold", "judge", 9.0), ("answer_confident", "end", 1.0)]),
        ("likelihood", [("min_logprob", "judge", 0.0), ("answer_confident", "end", 1.0)]),
        ("speccot", [("candidates", "candidates", 5), ("min_probability", "judge", 1.0), ("answer_confident", "end", 1.0)]),
        ("scot", [("candidates", "candidates", 5), ("min_probability", "judge", 1.0)]),
    ],
)
def test_params_and_their_most_careful_values(name: str, expected: list[tuple[str, str, object]]) -> None:
    found = knobs_of(graph(name), load_plan(graph(name), SIM))
    assert [(knob.param, knob.kind, knob.careful) for knob in found] == expected


def test_a_gate_whose_drafts_are_no_steps_has_a_value_that_lets_all_pass() -> None:
    [route, *_] = knobs_of(graph("routed"), load_plan(graph("routed"), SIM))
    assert (route.careful, route.careless, route.commits) == (0.0, 1000.0, False)
    [calm, *_] = knobs_of(graph("triggered"), load_plan(graph("triggered"), SIM))
    assert (calm.careless, calm.commits) == (None, True)


def test_candidates_of_the_grid_are_each_a_run() -> None:
    [knob] = knobs_of(graph("speccot"), load_plan(graph("speccot"), SIM), ("candidates",))
    assert knob.values == (1, 3, 5)


def test_a_wish_names_values() -> None:
    [knob] = knobs_of(graph("gated"), load_plan(graph("gated"), SIM), ("threshold=5,7",))
    assert (knob.param, knob.values, knob.careful) == ("threshold", (5, 7), 7.0)


@pytest.mark.parametrize(
    ("name", "wish", "message"),
    [
        ("target", "", "target: has no stage that verifies drafts and no gate: nothing of it can be tuned"),
        ("gated", "treshold", "--tune treshold: gated has nothing to tune of that name; did you mean `threshold`"),
        ("gated", "threshold=", "expected NAME or NAME=VALUE"),
        ("gated", "threshold=5,,7", "expected NAME or NAME=VALUE"),
        ("gated", "threshold=5,5", "a value is named twice"),
        ("gated", "sure={", "--tune sure={: '{' is not a YAML value"),
    ],
)
def test_what_cannot_be_tuned_is_one_sentence(name: str, wish: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        knobs_of(graph(name), load_plan(graph(name), SIM), (wish,) if wish else ())


def test_a_param_is_named_once() -> None:
    with pytest.raises(UsageError, match="--tune sure: is given twice; give all values at once: --tune sure=VALUE,VALUE"):
        knobs_of(graph("gated"), load_plan(graph("gated"), SIM), ("sure=-0.1", "threshold", "sure=-0.3"))


@pytest.mark.parametrize(
    ("name", "settings", "wish", "message"),
    [
        ("speccot", ("candidates=1",), "candidates=3", "`candidates` of draft is 1, .* set it to more, with --set candidates=5"),
        ("speccot", ("answer_stable=3",), "answer_confident", "`answer_stable` ends the thoughts .* leave it out, or set it to null"),
        ("triggered", (), "loops", "does not tell what another count of `repeats` would do in loop; choose one with --set loops=NUMBER"),
    ],
)
def test_what_keeps_a_param_from_being_tuned_is_said(name: str, settings: tuple[str, ...], wish: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"--tune {wish.partition('=')[0]}: .*{message}"):
        knobs_of(graph(name), load_plan(graph(name), SIM, settings), (wish,))


def test_a_graph_whose_thresholds_are_no_params_has_nothing_to_tune(tmp_path: Path) -> None:
    text = graph("gated").read_text()
    names = ("  sure:", "  threshold:", "  answer_confident:")
    fixed = "\n".join(line for line in text.splitlines() if not line.startswith(names))
    file = tmp_path / "gated.yaml"
    file.write_text(fixed.replace("$sure", "-0.7").replace("$threshold", "7").replace("$answer_confident", "null"))
    with pytest.raises(UsageError, match="gated: nothing to tune: no param fills in a threshold"):
        knobs_of(file, load_plan(file, SIM))


def test_several_judges_are_tuned_one_at_a_time(tmp_path: Path) -> None:
    text = graph("gated").read_text().replace("  threshold: 7 ", "  threshold: 7\n  again: 8 ")
    first = "      fallback:"
    second = "      check: {kind: score, engine: target, after: verify, when: verify.rejected, threshold: $again}\n"
    file = tmp_path / "gated.yaml"
    file.write_text(
        text.replace(first, second + first).replace("after: verify, when: verify.rejected, max", "after: check, when: check.rejected, max")
    )
    plan = load_plan(file, SIM)
    with pytest.raises(UsageError, match="has several of one kind, threshold and again; name the one to tune: --tune threshold"):
        knobs_of(file, plan)
    assert [knob.param for knob in knobs_of(file, plan, ("again",))] == ["again"]
