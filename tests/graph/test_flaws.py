"""All that is wrong with a graph is told at once, each flaw with its line."""

from pathlib import Path

import pytest

from pipeline.errors import GraphError, GraphErrors, nearest
from pipeline.graph.yaml_file import place_of
from pipeline.session.prepare import load_plan
from tests.support.commands import pipeline
from tests.support.paths import ROOT, SIM

BAD = """\
name: Odd Name
params: {candidates: 5, unused: 1}
engines: {engines}
stages:
  guidance: {{kind: generate, engine: target, unit: tokens, max_tokens: 8, stop: x}}
  reason:
    kind: repeat
    after: guidanse
    until: {{max_steps: 0}}
    stages:
      draft: {{kind: draft, engine: draft, candidates: $candidates, max_tokens: many}}
      verify: {{kind: chose, engine: target, after: draft}}
  answer: {{kind: answer, engine: target, after: reason, max_token: 10}}
"""


def flaws(text: str, tmp_path: Path) -> list[str]:
    graph = tmp_path / "graph.yaml"
    graph.write_text(text)
    with pytest.raises(GraphError) as caught:
        load_plan(graph, SIM)
    errors = caught.value.errors if isinstance(caught.value, GraphErrors) else (caught.value,)
    return [str(error).removeprefix(f"{graph}, ") for error in errors]


def test_names_params_keys_and_values_of_all_stages_at_once(tmp_path: Path) -> None:
    found = flaws(BAD.replace("{engines}", "engines.yaml").replace("{{", "{").replace("}}", "}"), tmp_path)
    assert found[:2] == [
        "line 1: $.name: 'Odd Name' is not a valid name of a graph; expected lower-case letters, digits, - and _, beginning with a letter",
        "line 2: $.params.unused: this param is unused; write `$unused` where it belongs, or drop it",
    ]
    assert [each.split(": ", 2)[:2] for each in found[2:]] == [
        ["line 5", "$.stages.guidance"],
        ["line 11", "$.stages.reason.stages.draft.max_tokens"],
        ["line 12", "$.stages.reason.stages.verify.kind"],
        ["line 9", "$.stages.reason.until.max_steps"],
        ["line 13", "$.stages.answer"],
        ["line 8", "$.stages.reason.after"],
    ]
    assert found[4].endswith("unknown kind `chose`; did you mean `choose`?")


@pytest.mark.parametrize("sampling", ["0.7", "greedy", "[1]"])
def test_sampling_that_is_no_mapping(tmp_path: Path, sampling: str) -> None:
    stage = "{kind: generate, engine: target, unit: response, max_tokens: 64}"
    [found] = flaws(f"name: odd\nengines: engines.yaml\nsampling: {sampling}\nstages:\n  response: {stage}\n", tmp_path)
    assert found.startswith("line 3: $.sampling: expected")


def test_prompts_of_a_stage_are_not_blamed_for_those_of_the_graph(tmp_path: Path) -> None:
    text = """\
name: odd
engines: engines.yaml
prompts: {systm: x}
stages:
  response: {kind: generate, engine: target, unit: response, max_tokens: 64, prompts: specreason}
"""
    [found] = flaws(text, tmp_path)
    assert "$.prompts" in found
    assert "systm" in found


def test_rules_of_all_stages_at_once(tmp_path: Path) -> None:
    text = """\
name: odd
engines: engines.yaml
stages:
  guidance: {kind: generate, engine: targett, unit: tokens, max_tokens: 8}
  reason:
    kind: repeat
    after: guidance
    until: {max_steps: 10}
    stages:
      draft: {kind: draft, engine: draft, candidates: 3, max_tokens: 64}
      verify: {kind: choose, engine: target, after: draft, when: draft.accepted}
  answer: {kind: answer, engine: target, after: reason, max_tokens: 10}
"""
    assert [each.partition(": ")[0] for each in flaws(text, tmp_path)] == ["line 11", "line 4"]


def test_several_flaws_of_one_engine(tmp_path: Path) -> None:
    engines = tmp_path / "engines.yaml"
    engines.write_text("draft: {backend: torch, modell: x, max_in_flight: 0}\ntarget: {backend: tosh}\n")
    with pytest.raises(GraphErrors) as caught:
        load_plan(ROOT / "graphs/speccot.yaml", engines)
    said = str(caught.value).splitlines()
    assert len(said) == 3, "that `model` is missing is no second flaw"
    assert all(line.startswith(f"{engines}, line ") for line in said)
    assert [f"line {number}" in line for line, number in zip(said, (1, 1, 2), strict=True)] == [True] * 3


def test_the_command_prints_a_line_for_each(tmp_path: Path) -> None:
    engines = tmp_path / "engines.yaml"
    engines.write_text("draft: {backend: torch, modell: x}\ntarget: {backend: tosh}\n")
    done = pipeline("graph", "check", "speccot", "--engines", engines)
    assert done.returncode == 2
    assert [line.startswith("error: ") for line in done.stderr.splitlines()] == [True] * 2


@pytest.mark.parametrize(
    ("path", "key", "line"),
    [
        (".a", None, 1),
        (".b.c", None, 3),
        (".b.d[1]", None, 6),
        (".b.d[1].e", None, 7),
        (".b", "c", 3),
        (".b.nothing", None, 2),
        ("", "b", 2),
        (".nothing", None, 1),
    ],
)
def test_lines(tmp_path: Path, path: str, key: str | None, line: int) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("a: 1\nb:\n  c: 2\n  d:\n    - 1\n    - f: 1\n      e: 2\n")
    place = place_of(str(file), path, key)
    assert place is not None
    assert place.line == line


def test_a_value_of_a_setting_is_blamed_on_it() -> None:
    with pytest.raises(GraphError) as caught:
        load_plan(ROOT / "graphs/speccot.yaml", settings=("candidates=abc",))
    assert str(caught.value) == "--set candidates=abc: expected `int`, got `str`"


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


def test_a_file_that_cannot_be_read_has_no_lines(tmp_path: Path) -> None:
    assert place_of(str(tmp_path / "nothing.yaml"), ".a") is None
    (tmp_path / "odd.yaml").write_text("a: [")
    assert place_of(str(tmp_path / "odd.yaml"), ".a") is None


def test_params_engines_stages_and_prompts_at_once(tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(
        "name: x\n"
        "engines: {draft: {backend: sim, modle: a}, target: {backend: sim, max_in_flight: many}}\n"
        "params: {n: 3}\n"
        'prompts: {problem: "x", option: "{{option}}", choose: {turn: "{{cand}}"}}\n'
        "stages:\n"
        "  d: {kind: draft, engine: draft, candidatez: 3}\n"
        "  v: {kind: chose, engine: target}\n"
    )
    with pytest.raises(GraphErrors) as caught:
        load_plan(tmp_path / "graph.yaml")
    text = str(caught.value)
    for flaw in (
        "$.params.n",
        "`modle`",
        "max_in_flight",
        "$.prompts.problem",
        "$.prompts.option",
        "$.prompts.choose.turn",
        "`candidatez`",
        "`chose`",
    ):
        assert flaw in text, flaw


def test_a_param_that_is_not_there_hides_no_other_flaw(tmp_path: Path) -> None:
    found = flaws(
        "name: x\n"
        "engines: {target: {backend: sim, model: m, max_in_flight: many}}\n"
        "params: {tokens: 8}\n"
        "sampling: {temperature: $warmth}\n"
        "stages:\n"
        "  think: {kind: generate, engine: target, unit: thought, max_tokens: $token}\n"
        "  answer: {kind: answer, engine: target, after: think, max_tokens: $tokens, top_q: 1}\n",
        tmp_path,
    )
    assert [each.split(": ", 2)[1:] for each in found] == [
        ["$.stages.think.max_tokens", "no param `$token`; did you mean `tokens`?"],
        ["$.sampling.temperature", "no param `$warmth`; known are `tokens`"],
        ["$.stages.answer", "unknown key `top_q`; did you mean `top_p`?"],
    ]
