"""Graph and engines files: every flaw has a file of its own whose first comment is what the error must say."""

import math
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.bundled import bundled_files
from pipeline.engines.sim.spec import SimSpec
from pipeline.engines.torch.spec import TorchSpec
from pipeline.errors import GraphError
from pipeline.graph.loader import load_engines, load_preset
from pipeline.graph.plan import LoopNode, StageNode
from pipeline.graph.plugins import engine_specs
from pipeline.graph.spec import SamplingSpec
from pipeline.graph.yaml_file import MAX_BYTES, parse
from pipeline.session.prepare import load_plan
from pipeline.stages.draft import DraftSpec
from tests.support.paths import ROOT, SIM

BAD = sorted((ROOT / "tests/bad_graphs").glob("*.yaml"))
GRAPHS = sorted((ROOT / "graphs").glob("*.yaml"))
ENGINES = sorted((ROOT / "graphs/engines").glob("*.yaml"))


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.stem)
def test_a_flaw_is_named_with_file_place_and_remedy(path: Path) -> None:
    expected = path.read_text().splitlines()[0].removeprefix("# ")
    with pytest.raises(GraphError) as caught:
        load_plan(path)
    message = str(caught.value)
    assert expected in message
    assert all(path.name in line or "nowhere.yaml" in line for line in message.splitlines())


def test_a_file_of_5_mb_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("name: x # " + "y" * 5_000_000)
    assert path.stat().st_size > MAX_BYTES
    with pytest.raises(GraphError, match="is larger than 1 MiB"):
        load_plan(path)


@pytest.mark.slow
def test_a_file_of_too_many_values_is_dropped_early(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text("name: [" + "a," * (MAX_BYTES // 2 - 10) + "]")
    with pytest.raises(GraphError, match=r"holds more than 20,000 values$"):
        load_plan(path)


def test_a_graph_cannot_name_an_engines_file_that_never_ends(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "graph.yaml").write_text("name: x\nengines: pipe.yaml\n")
    with pytest.raises(GraphError, match=r"\$\.engines: .*pipe\.yaml is not a regular file"):
        load_plan(tmp_path / "graph.yaml")


def test_a_param_that_is_no_number_is_said_to_be_none_once() -> None:
    with pytest.raises(GraphError) as caught:
        load_plan(Path("gated"), SIM, ("sure=.nan",))
    assert str(caught.value) == "--set sure=.nan: is nan; expected a finite number"


@pytest.mark.parametrize(
    "value", ["{", "[" * 3000, "*a", "&a [*a]", "!!timestamp 2024-99-99", "!!python/name:os.system", "!!int [1]", "9" * 5000]
)
def test_a_setting_that_is_no_value(value: str) -> None:
    with pytest.raises(GraphError, match="is not a YAML value"):
        load_plan(ROOT / "graphs/speccot.yaml", None, (f"candidates={value}",))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(
            ("010000", 10000),
            ("08", 8),
            ("0o17", 15),
            ("0x10", 16),
            ("+5", 5),
            (".5", 0.5),
            ("1.", 1.0),
            ("1e3", 1000.0),
            ("-.inf", -math.inf),
        ),
        *(("true", True), ("FALSE", False), ("~", None), ("", None), ("null", None)),
        *((text, text) for text in ("on", "off", "yes", "no", "1_000", "1:30", "2024-01-01", "0b1", "=", "nan")),
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
    assert load_engines(path, engine_specs()).keys() == {"draft", "target"}
    assert load_plan(Path("scot"), Path("tiny-scot")).params["adapter"] == "selection"


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ("{scot: {candidatez: 3}}", r"engines.yaml, line 1: \$.params.scot.candidatez: the graph has no such param; did you mean `cand"),
        ("{adapter: selection}", r"\$.params.adapter: expected the params of a graph named `adapter`, such as scot: {adapter: selection}"),
        ("3", r"\$.params: expected a mapping, got `int`"),
    ],
)
def test_params_of_an_engines_file_that_are_wrong(tmp_path: Path, params: str, said: str) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text(f"params: {params}\n{SIM.read_text()}")
    with pytest.raises(GraphError, match=said):
        load_plan(Path("scot"), path)


def test_names_of_roles_and_what_they_hold_are_checked_in_a_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    for content, message in (
        ("../x: {}", r"'../x' is not a valid name of a role"),
        ("draft: 5", r"\$\.draft: expected a mapping, got `int`"),
    ):
        path.write_text(content)
        with pytest.raises(GraphError, match=message):
            load_engines(path, engine_specs(), ("engines.draft.model=x",))


def test_a_setting_of_all_roles(tmp_path: Path) -> None:
    for name in ("engines.*", "engines.*.", "engines.**.model", "engines.d*.model"):
        with pytest.raises(GraphError, match=r"expected engines.ROLE.NAME=VALUE"):
            load_plan(ROOT / "graphs/speccot.yaml", ROOT / "graphs/engines/sim-2xh100.yaml", (f"{name}=x",))
    settings = ("engines.*.device.name=here", "engines.*.text.answer_tokens=7", "engines.draft.text.answer_tokens=9")
    found = load_plan(ROOT / "graphs/speccot.yaml", ROOT / "graphs/engines/sim-2xh100.yaml", settings).engines
    specs = [(role, spec.device.name, spec.text.answer_tokens) for role, spec in found.items() if isinstance(spec, SimSpec)]
    assert sorted(specs) == [("draft", "here", 9), ("target", "here", 7)]


def test_bytes_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"name: caf\xe9\n")
    with pytest.raises(GraphError, match="is not UTF-8 text: byte 9"):
        load_plan(path)


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="cannot be read: no such file"):
        load_plan(tmp_path / "none.yaml")
    with pytest.raises(GraphError, match=r"cannot be read: is a directory"):
        load_plan(tmp_path)


@pytest.mark.parametrize("path", GRAPHS, ids=lambda p: p.stem)
def test_every_checked_in_graph_compiles(path: Path) -> None:
    plan = load_plan(path)
    assert plan.name == path.stem
    assert list(plan.stages())


@pytest.mark.parametrize("path", ENGINES, ids=lambda p: p.stem)
def test_every_checked_in_engines_file_serves_speccot(path: Path) -> None:
    assert load_engines(path, engine_specs())
    assert set(load_plan(ROOT / "graphs/speccot.yaml", path).engines) == {"draft", "target"}


def test_the_plan_of_speccot() -> None:
    plan = load_plan(ROOT / "graphs/speccot.yaml")
    assert [stage.name for stage in plan.stages()] == ["guidance", "draft", "verify", "fallback", "answer"]
    assert [stage.rank for stage in plan.stages()] == [0, 1, 2, 3, 4]
    [loop] = plan.block.levels[1]
    assert isinstance(loop, LoopNode)
    fallback = loop.body.levels[2][0]
    assert isinstance(fallback, StageNode)
    assert fallback.condition is not None
    assert (fallback.condition.stage, fallback.condition.accepted) == ("verify", False)


def test_equal_files_give_equal_plans_and_a_setting_changes_the_digest() -> None:
    path = ROOT / "graphs/speccot.yaml"
    assert load_plan(path) == load_plan(path)
    assert load_plan(path).digest != load_plan(path, settings=("candidates=2",)).digest


def test_settings_reach_params_and_engine_fields() -> None:
    plan = load_plan(ROOT / "graphs/speccot.yaml", settings=("candidates=2", "engines.target.max_in_flight=7", "temperature=1e-1"))
    drafts = [stage.spec for stage in plan.stages() if isinstance(stage.spec, DraftSpec)]
    target = plan.engines["target"]
    assert [(spec.candidates, spec.temperature) for spec in drafts] == [(2, 0.1)]
    assert isinstance(target, TorchSpec)
    assert target.max_in_flight == 7


@pytest.mark.parametrize("preset", bundled_files("preset"))
@pytest.mark.parametrize("graph", bundled_files("graph"))
def test_every_preset_suits_every_graph(graph: str, preset: str) -> None:
    assert load_plan(Path(graph), settings=(f"preset={preset}",)).params["token_budget"] == load_preset(preset).set["token_budget"]


def test_a_setting_of_a_stage_may_stand_where_the_graph_names_a_param() -> None:
    plan = load_plan(ROOT / "graphs/specreason.yaml", settings=("stages.verify.threshold=5", "stages.reason.until.max_steps=3"))
    [verify] = [node.spec for node in plan.stages() if node.name == "verify"]
    [loop] = [node for level in plan.block.levels for node in level if isinstance(node, LoopNode)]
    assert (plan.params["threshold"], verify.threshold, loop.until.max_steps) == (7, 5, 3)  # type: ignore[attr-defined]


def test_a_sampling_key_that_is_null_is_the_default_of_its_stage() -> None:
    plan = load_plan(ROOT / "graphs/specreason.yaml", settings=("temperature=null",))
    assert {node.spec.temperature for node in plan.stages() if isinstance(node.spec, SamplingSpec)} == {0.6}
