"""Graph and engines files, settings and presets: what they become, and what is said of their flaws."""

import math
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pipeline.api import load_graph
from pipeline.engines.sim.spec import SimSpec
from pipeline.errors import GraphError, UsageError
from pipeline.graph.files import bundled_files, parse, read_file
from pipeline.graph.load import Keys, load_engines, load_preset, load_reward_model, place_of
from pipeline.graph.plan import Condition, LoopNode, StageNode
from pipeline.graph.spec import SamplingSpec
from pipeline.run.prepare import load_plan
from tests.support.commands import pipeline
from tests.support.paths import ROOT, SIM

ENGINES = sorted((ROOT / "graphs/engines").glob("*.yaml"))


BAD = [block.rsplit("\n=> ", 1) for block in Path(__file__).with_name("bad_graphs.txt").read_text().strip().split("\n\n")[1:]]
SOUND = """name: bad
params: {temperature: 0.6}
sampling: {temperature: $temperature}
engines: engines.yaml
stages:
  guidance: {kind: generate, engine: target, unit: tokens, max_tokens: 8}
  reason:
    kind: repeat
    after: guidance
    until: {thought_closed: true, max_steps: 9}
    stages:
      draft: {kind: draft, engine: draft, candidates: 1, max_tokens: 64}
      verify: {kind: choose, engine: target, after: draft}
      fallback: {kind: generate, engine: target, unit: step, after: verify, when: verify.rejected, max_tokens: 64}
  answer: {kind: answer, engine: target, after: reason}
"""
ROLES = "target: {backend: torch, model: a}\ndraft: {backend: torch, model: b}\n"
WHOLE = "engines: engines.yaml\nname: bad\nstages:\n  write: {}\n"


def spoiled(flaw: str) -> str:
    """The sound graph, or one of a single stage `write`, with the lines of a flaw."""
    text = WHOLE if flaw.startswith("write:") else SOUND
    keys = "|".join(re.findall(r"(?m)^ *(\w+):", text))
    for line in re.split(rf"\n(?=(?:{keys}):)", flaw):
        text = re.sub(rf"(?m)^( *){line.partition(':')[0]}:.*$", lambda found, line=line: found[1] + line, text, count=1)  # type: ignore[misc]
    return text


def load(folder: Path, kind: str, text: str) -> object:
    """What a block of bad_graphs.txt is tried with."""
    path = folder / f"{kind}.yaml"
    path.write_text(text)
    (folder / "engines.yaml").write_text(text if kind == "engines" else ROLES)
    match kind.split():
        case ["set", graph]:
            return load_plan(Path(graph), settings=(text,))
        case ["engines"]:
            return load_plan(Path("speccot"), path)
        case ["prompts"]:
            return load_plan(Path("speccot"), settings=(f"prompts={path}",))
        case ["reward"]:
            return load_reward_model(path)
    path.write_text(spoiled(text))
    return load_plan(path)


@pytest.mark.parametrize(("flaw", "says"), BAD, ids=lambda text: text[:50])
def test_a_flaw_is_named_with_file_line_path_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flaw: str, says: str) -> None:
    monkeypatch.chdir(ROOT)
    marked = re.fullmatch(r"(?s)\[(.+?)\]\n(.*)", flaw)
    with pytest.raises(UsageError) as caught:
        load(tmp_path, *(marked.groups() if marked else ("graph", flaw)))
    message = str(caught.value)
    assert says in message
    assert re.match(rf"{tmp_path}/\w+\.yaml(, line \d+)?: |--set |graphs/|no preset is named", message)
    assert ": $" not in message or ", line " in message
    assert "\n" not in message


def test_the_sound_graph_is_sound(tmp_path: Path) -> None:
    assert load(tmp_path, "graph", "name: sound")


@pytest.mark.parametrize("value", ["[" * 3000, "9" * 5000], ids=["deep", "long"])
def test_a_value_that_no_parser_takes_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match=r"^--set candidates=.*invalid YAML: "):
        load_plan(Path("speccot"), settings=(f"candidates={value}",))


def test_a_value_of_a_preset_is_blamed_on_it_and_the_command_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("set:\n  candidates: 0\n")
    done = pipeline("graph", "check", "speccot", "--set", f"preset={tmp_path / 'mine.yaml'}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path / 'mine.yaml'}, line 2: $.stages.reason.stages.draft.candidates: expected `int` >= 1")


def test_a_mapping_is_told_from_a_file() -> None:
    graph: Any = {"name": "odd", "stages": {"s": {}}}
    with pytest.raises(GraphError, match=r"^--engines: unknown key `modle`; did you mean `model`"):
        load_graph(graph, engines={"target": {"backend": "torch", "modle": "m"}})
    with pytest.raises(GraphError, match=r"^--engines: the key `3` is not text"):
        load_graph(graph, engines={3: {}})  # type: ignore[dict-item]


def test_places(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("a: 1\nb:\n  c: 2\n  d:\n    - 1\n    - f: 1\n      e: 2\n")
    values = read_file(file, "graph")
    lines: list[tuple[Keys, int]] = [(("a",), 1), (("b", "c"), 3), (("b", "d", 1), 4), (("b", "d", 1, "e"), 7), (("b", "nothing"), 2)]
    for keys, line in [*lines, (("nothing",), 1)]:
        assert place_of(values, keys) == f"{file}, line {line}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("010000", 10000), ("08", 8), ("+5", 5), (".5", 0.5), ("1e3", 1000.0), ("-.inf", -math.inf)),
        *(("true", True), ("FALSE", False), ("~", None), ("", None), ("null", None)),
        *((text, text) for text in ("on", "off", "yes", "no", "1_000", "1:30", "2024-01-01", "0x10", "0o17", "=", "nan")),
    ],
)
def test_plain_scalars_are_those_of_the_core_schema_of_yaml_1_2(text: str, value: Any) -> None:
    found = parse(text)
    assert (type(found), found) == (type(value), value)


def test_params_of_an_engines_file_hold_where_set_says_nothing_and_for_that_graph_alone(tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text(f"params: {{scot: {{candidates: 3}}}}\n{SIM.read_text()}")
    assert load_plan(Path("scot"), path).params["candidates"] == 3
    assert load_plan(Path("scot"), path, ("candidates=4",)).params["candidates"] == 4
    assert load_plan(Path("best-of-n"), path).params["candidates"] == 5
    assert load_engines(path).keys() == {"draft", "target"}
    assert load_plan(Path("scot"), Path("tiny-scot")).params["adapter"] == "selection"


def test_a_setting_of_all_roles() -> None:
    settings = ("engines.*.device.name=here", "engines.*.text.answer_tokens=7", "engines.draft.text.answer_tokens=9")
    found = load_plan(ROOT / "graphs/speccot.yaml", ROOT / "graphs/engines/sim-2xh100.yaml", settings).engines
    specs = [(role, spec.device.name, spec.text.answer_tokens) for role, spec in found.items() if isinstance(spec, SimSpec)]
    assert sorted(specs) == [("draft", "here", 9), ("target", "here", 7)]


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="cannot be read: no such file"):
        load_plan(tmp_path / "none.yaml")
    with pytest.raises(GraphError, match=r"cannot be read: is a directory"):
        load_plan(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(GraphError, match="cannot be read: 'utf-8' codec"):
        load_plan(tmp_path / "latin.yaml")


@pytest.mark.parametrize("path", ENGINES, ids=lambda p: p.stem)
def test_every_checked_in_engines_file_serves_speccot(path: Path) -> None:
    assert load_engines(path)
    assert set(load_plan(ROOT / "graphs/speccot.yaml", path).engines) == {"draft", "target"}


def test_the_plan_of_speccot() -> None:
    plan = load_plan(ROOT / "graphs/speccot.yaml")
    assert [stage.name for stage in plan.stages()] == ["guidance", "draft", "verify", "fallback", "answer"]
    assert [stage.rank for stage in plan.stages()] == [0, 1, 2, 3, 4]
    [loop] = plan.block.levels[1]
    assert isinstance(loop, LoopNode)
    fallback = loop.body.levels[2][0]
    assert isinstance(fallback, StageNode)
    assert fallback.condition == Condition("verify", "rejected")


@pytest.mark.parametrize("preset", bundled_files("preset"))
@pytest.mark.parametrize("graph", bundled_files("graph"))
def test_every_preset_suits_every_graph(graph: str, preset: str) -> None:
    plan = load_plan(Path(graph), settings=(f"preset={preset}",))
    assert (plan.name, plan.params["token_budget"]) == (graph, load_preset(preset).set["token_budget"])


def test_a_setting_of_a_stage_may_stand_where_the_graph_names_a_param() -> None:
    plan = load_plan(ROOT / "graphs/specreason.yaml", settings=("stages.verify.threshold=5", "stages.reason.until.max_steps=3"))
    [verify] = [node.spec for node in plan.stages() if node.name == "verify"]
    [loop] = [node for level in plan.block.levels for node in level if isinstance(node, LoopNode)]
    assert (plan.params["threshold"], verify.threshold, loop.until.max_steps) == (7, 5, 3)  # type: ignore[attr-defined]


def test_what_the_user_sets_is_stronger_than_a_preset(tmp_path: Path) -> None:
    preset = tmp_path / "mine.yaml"
    preset.write_text(
        "set: {temperature: 0.5, stages.fallback.temperature: 0.0, stages.verify.threshold: 0.25, stages.answer.max_tokens: 7}"
    )
    params, stages = ("temperature=0.75", "min_probability=0.5"), ("stages.answer.max_tokens=9", "stages.answer.temperature=1")
    cases = [((), (0.5, 0.0, 0.25, 7, 0.5)), (params, (0.75, 0.75, 0.5, 7, 0.75)), (stages, (0.5, 0.0, 0.25, 9, 1.0))]
    for (given, expected), after in product(cases, (False, True)):
        settings = (*given, f"preset={preset}") if after else (f"preset={preset}", *given)
        spec: dict[str, Any] = dict(load_plan(Path("scot"), settings=settings).graph.stages)
        answer = spec["answer"]
        found = (spec["draft"].temperature, spec["fallback"].temperature, spec["verify"].threshold, answer.max_tokens, answer.temperature)
        assert found == expected


def test_a_sampling_key_that_is_null_is_the_default_of_its_stage() -> None:
    plan = load_plan(ROOT / "graphs/specreason.yaml", settings=("temperature=null",))
    assert {node.spec.temperature for node in plan.stages() if isinstance(node.spec, SamplingSpec)} == {0.6}
