"""All that is wrong with a graph is told at once, each flaw with its line."""

from pathlib import Path

import pytest

from pipeline.api import load_graph
from pipeline.errors import GraphError, GraphErrors, nearest
from pipeline.graph.yaml_file import read_lines
from pipeline.session.prepare import load_plan
from tests.support.commands import pipeline
from tests.support.paths import ROOT, SIM

TARGET = "kind: generate, engine: target"


def flaws(text: str, tmp_path: Path, *settings: str, engines: Path | None = SIM) -> list[str]:
    graph = tmp_path / "graph.yaml"
    graph.write_text(text)
    with pytest.raises(GraphError) as caught:
        load_plan(graph, engines, settings)
    errors = caught.value.errors if isinstance(caught.value, GraphErrors) else (caught.value,)
    return [str(error).removeprefix(f"{graph}, ") for error in errors]


def places(found: list[str]) -> list[str]:
    return [": ".join(each.split(": ", 2)[:2]) for each in found]


def test_names_values_and_structure_of_all_parts_are_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
name: Odd Name
params: {candidates: 5, unused: 1}
engines: {draft: {backend: torch, modle: a}, target: {backend: torch, model: m, max_in_flight: many}}
prompts: {problem: "x", option: "{{option}}", choose: {turn: "{{cand}}"}}
stages:
  guidance: {kind: choose, engine: target, stop: x}
  reason:
    kind: repeat
    after: guidanse
    until: {max_steps: 0}
    stages:
      draft: {kind: draft, engine: draft, candidates: $candidatez, max_tokens: many}
      verify: {kind: chose, engine: targett, after: draft}
  left: {kind: draft, engine: draft, max_tokens: 8, after: right}
  right: {kind: draft, engine: draft, max_tokens: 8, after: left}
"""
    found = flaws(text, tmp_path, engines=None)
    assert places(found) == [
        "line 1: $.name",
        "line 2: $.params.candidates",
        "line 2: $.params.unused",
        "line 3: $.engines.draft",
        "line 3: $.engines.target.max_in_flight",
        "line 4: $.prompts.problem",
        "line 4: $.prompts.option",
        "line 4: $.prompts.choose.turn",
        "line 4: $.prompts.choose.turn",
        "line 5: $.stages",
        "line 6: $.stages.guidance",
        "line 9: $.stages.reason.after",
        "line 10: $.stages.reason.until.max_steps",
        "line 12: $.stages.reason.stages.draft.candidates",
        "line 12: $.stages.reason.stages.draft.max_tokens",
        "line 13: $.stages.reason.stages.verify.kind",
        "line 13: $.stages.reason.stages.verify.engine",
        "line 14: $.stages.left.after",
    ]
    said = "\n".join(found)
    for flaw in ("unknown kind `chose`; did you mean `choose`?", "in a cycle: left -> right -> left;", "no stage finishes the chain"):
        assert flaw in said


def test_what_depends_on_a_flaw_is_not_told(tmp_path: Path) -> None:
    text = f"""\
name: odd
params: {{tokens: 8}}
engines: sim
prompts: {{systm: x}}
sampling: {{temperature: $warmth, top_p: 7}}
stages:
  think: {{{TARGET}, unit: thought, max_tokens: $tokens, prompts: specreason}}
  draft: {{kind: draft, engine: draft, max_tokens: 8, candidatez: 3, after: think}}
  verify: {{kind: chose, engine: target, after: draft}}
  answer: {{kind: answer, engine: target, after: verify}}
"""
    assert places(flaws(text, tmp_path)) == [
        "line 4: $.prompts",
        "line 5: $.sampling.temperature",
        "line 5: $.sampling.top_p",
        "line 8: $.stages.draft",
        "line 9: $.stages.verify.kind",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("params: 7", "line 3: $.params: expected a mapping, got `int`"),
        ("sampling: 0.7", "line 3: $.sampling: expected a mapping, got `float`"),
        ("engines: nowhere", "line 3: $.engines: no engines file is named `nowhere`"),
        ("engines: 7", "line 3: $.engines: no engines file is named `7`"),
        ("stage: {}", "line 3: $: unknown key `stage`; did you mean `stages`?"),
    ],
)
def test_a_part_that_is_wrong_as_a_whole(tmp_path: Path, text: str, says: str) -> None:
    rest = f"name: odd\nstages: {{r: {{{TARGET}, unit: response, max_tokens: {'$n' if 'params' in text else 8}}}}}\n"
    found = flaws(f"{rest}{text}\n", tmp_path, engines=None if "engines" in text else SIM)
    assert len(found) == 1
    assert says in found[0]


def test_several_flaws_of_one_engine_and_the_command_prints_a_line_for_each(tmp_path: Path) -> None:
    engines = tmp_path / "engines.yaml"
    engines.write_text("draft: {backend: torch, modell: x, max_in_flight: 0}\ntarget: {backend: tosh}\n")
    done = pipeline("graph", "check", "speccot", "--engines", engines)
    assert done.returncode == 2
    said = done.stderr.splitlines()
    assert [each.partition(": $")[0] for each in said] == [f"error: {engines}, line {number}" for number in (1, 1, 2)]


def test_lines(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("a: 1\nb:\n  c: 2\n  d:\n    - 1\n    - f: 1\n      e: 2\n")
    lines = read_lines(file)
    for keys, line in (
        (("a",), 1),
        (("b", "c"), 3),
        (("b", "d", 1), 6),
        (("b", "d", 1, "e"), 7),
        (("b", "nothing"), 2),
        (("nothing",), 1),
    ):
        assert lines.line(keys) == line, keys


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("candidates=abc", "--set candidates=abc: expected `int`, got `str`"),
        ("candidates=0", "--set candidates=0: expected `int` >= 1, got 0"),
        ("candidate=2", "has no param `candidate`; did you mean `candidates`?"),
        ("candidates", "--set candidates: expected NAME=VALUE"),
        ("temperature=[", "is not a YAML value"),
        ("engines.targt.model=x", "expected engines.ROLE.NAME=VALUE; did you mean `target`?"),
        ("engines.target.modle=x", "--set engines.target.modle=x: unknown key `modle`; did you mean `model`?"),
        ("stages.verfy.unit=step", "expected stages.STAGE.NAME=VALUE; did you mean `verify`?"),
        ("stages.verify.unit.x=1", "--set stages.verify.unit.x=1: expected a mapping, got `str`"),
        ("stages.reason.until.max_steps=0", "--set stages.reason.until.max_steps=0: expected `int` >= 1, got 0"),
        ("prompts=specrason", "--set prompts=specrason: no prompts file is named `specrason`"),
        ("speculate=maybe", "--set speculate=maybe: unknown value `maybe`; known are `always`, `never`"),
    ],
)
def test_a_value_of_a_setting_is_blamed_on_it(setting: str, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        load_plan(ROOT / "graphs/speccot.yaml", settings=(setting,))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("graph", "setting", "message"),
    [
        ("gated", "statistic=[mean,min]", "expected one value, got a list"),
        ("gated", "prompts={like: short}", "expected one value, got a mapping"),
        ("gated", "prompts=SHORT", "no prompts file is named `SHORT` and there is no such file; known are `auto`, `default`"),
        ("rsd", "prm=nix", "no reward model is named `nix` and there is no such file; known are `prm-math-shepherd`"),
        ("rsd", "prm=[prm-tiny]", "expected one value, got a list"),
        ("rsd", "prm=7", "expected `str`, got `int`"),
        ("rsd", "stages.verify.prm=nix", "no reward model is named `nix`"),
    ],
)
def test_a_value_that_is_none_of_a_param_is_one_flaw(graph: str, setting: str, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        load_plan(ROOT / f"graphs/{graph}.yaml", settings=(setting,))
    assert str(caught.value).startswith(f"--set {setting}: {message}")
    assert "\n" not in str(caught.value)


def test_a_value_of_a_preset_and_of_an_engines_file_is_blamed_on_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("set:\n  candidates: 0\n  stages.verify.unit: word\n")
    (tmp_path / "engines.yaml").write_text(f"params: {{speccot: {{max_steps: 0}}}}\n{SIM.read_text()}")
    with pytest.raises(GraphErrors) as caught:
        load_plan(Path("speccot"), tmp_path / "engines.yaml", (f"preset={tmp_path / 'mine.yaml'}",))
    assert [str(each).partition(": expected")[0].partition(": unknown")[0] for each in caught.value.errors] == [
        f"{tmp_path / 'engines.yaml'}, line 1: $.params.speccot.max_steps",
        f"{tmp_path / 'mine.yaml'}, line 2: $.set.candidates",
        f"{tmp_path / 'mine.yaml'}, line 3: $.set.stages.verify.unit",
    ]


def test_settings_of_a_part_that_is_wrong_as_a_whole_are_no_further_flaws(tmp_path: Path) -> None:
    [found] = flaws("name: odd\nstages: []\n", tmp_path, "stages.answer.max_tokens=7", "engines.target.max_in_flight=7")
    assert found == "line 2: $.stages: expected a mapping, got `list`"


def test_a_mapping_with_keys_that_are_no_text() -> None:
    with pytest.raises(GraphError, match=r"graph: \$: unknown key `1`") as caught:
        load_graph({1: 2, "name": "odd", "engines": {3: {"backend": "torch", "model": "m"}}, "stages": {5: {"kind": "answer"}}})  # type: ignore[dict-item]
    assert "graph: $.stages: 5 is not a valid name of a stage" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("rum", ["rm", "run", "runs"], "run"),
        ("stop", ["top_p", "unit", "when"], None),
        ("nmae", ["name", "main"], "name"),
        ("tosh", ["torch", "vllm"], "torch"),
        ("specot", ["scot", "speccot"], "speccot"),
    ],
)
def test_the_nearest_name(name: str, known: list[str], near: str | None) -> None:
    assert nearest(name, known) == near
