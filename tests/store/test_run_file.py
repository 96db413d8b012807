"""`run.json`: what is written comes back, of packages that are not here too."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec import structs

from pipeline.engine import EngineStatistics
from pipeline.engines.sim.spec import SimSpec
from pipeline.errors import InputError
from pipeline.graph.loader import load_graph
from pipeline.graph.plan import LoopNode, Plan, RecordedPlan, UnknownEngine, UnknownStage, decode_plan, encode_plan, settings_of
from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.graph.spec import EngineSpec, StageSpec
from pipeline.store.folder import folder_id
from pipeline.store.run_file import RunFile, Session, host
from tests.support.patience import HANGS_S
from tests.support.run_files import RUN_JSON, SIM, STAGE, write_run_json

ROOT = Path(__file__).parent.parent.parent
GRAPHS = sorted((ROOT / "graphs").glob("*.yaml"))
STATISTICS = EngineStatistics(
    running=0, waiting=0, kv_cache_usage=0.5, requests=2, input_tokens=3, cached_input_tokens=1, output_tokens=4, busy_s=1.5
)


EMPTY = RunFile.decode(RUN_JSON)


def plan_of(graph: Path, engines: str = "sim-2xh100") -> Plan:
    return load_graph(graph, stage_specs(), engine_specs(), engines=ROOT / f"graphs/engines/{engines}.yaml")


def run_of(plan: Plan, **fields: Any) -> RunFile:
    return structs.replace(RunFile.decode(RUN_JSON), plan=plan, **fields)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda path: path.stem)
@pytest.mark.parametrize("engines", ["sim-2xh100", "sim-instant", "tiny"])
def test_a_run_comes_back_as_it_was_written(tmp_path: Path, graph: Path, engines: str) -> None:
    """`sim-instant` has rates without bounds, which JSON cannot hold."""
    session = Session(started_unix_ns=5, ended_unix_ns=7, command=["pipeline"], engine_statistics={"target": STATISTICS})
    run = run_of(plan_of(graph, engines), host=host()).with_session(session)
    run.write(tmp_path)
    assert RunFile.read(tmp_path) == run
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_rates_without_bounds_are_infinite_again() -> None:
    plan = plan_of(ROOT / "graphs/target.yaml", "sim-instant")
    raw = json.loads(run_of(plan).encode())
    assert raw["engines"]["target"]["device"]["flops_per_s"] is None
    engine = RunFile.decode(raw).plan.engines["target"]
    assert isinstance(engine, SimSpec)
    assert engine.device.flops_per_s == math.inf
    assert raw["engines"].keys() == {"target"}
    assert RunFile.decode(raw).engines["target"]["device"]["flops_per_s"] == math.inf


def test_every_stage_is_kept_with_its_capabilities() -> None:
    [[guidance], [loop], [answer]] = encode_plan(plan_of(ROOT / "graphs/speccot.yaml"))["graph"]["levels"]
    [[draft], [verify], [fallback]] = loop["body"]["levels"]
    names = ("purpose", "drafted", "may_reject", "finishes")
    assert [[node[name] for name in names] for node in (guidance, draft, verify, fallback, answer)] == [
        ["guide", 0, False, False],
        ["draft", 5, False, False],
        ["judge", 0, True, False],
        ["write", 0, False, False],
        ["answer", 0, False, True],
    ]


class Coin(StageSpec, frozen=True, kw_only=True, tag="coin"):
    """A verifier of another package."""

    engine: str
    sides: int = 2
    judges: ClassVar[bool] = True


class Cloud(EngineSpec, frozen=True, kw_only=True, tag="cloud"):
    """An engine of another package."""

    model: str
    region: str = "north"


def of_others() -> Plan:
    """The plan of specreason with a verifier and an engine of another package."""
    plan = plan_of(ROOT / "graphs/specreason.yaml")

    def changed(block: Any) -> Any:
        return structs.replace(block, levels=tuple(tuple(map(changed_node, level)) for level in block.levels))

    def changed_node(node: Any) -> Any:
        if isinstance(node, LoopNode):
            return structs.replace(node, body=changed(node.body))
        return structs.replace(node, spec=Coin(engine="target", after="draft")) if node.name == "verify" else node

    engines = plan.engines | {"target": Cloud(model="large", max_in_flight=7)}
    return structs.replace(plan, block=changed(plan.block), engines=engines)


def test_a_package_that_is_not_here_leaves_its_stages_capabilities(tmp_path: Path) -> None:
    """And with the package the very plan comes back."""
    plan = of_others()
    run_of(plan).write(tmp_path)
    found = RunFile.read(tmp_path).plan
    spec = next(stage.spec for stage in found.stages() if stage.name == "verify")
    assert isinstance(spec, UnknownStage)
    assert (spec.kind, spec.role, spec.purpose, spec.judges, spec.may_reject) == ("coin", "target", "judge", True, True)
    assert (spec.drafts, spec.writes, spec.answers, spec.finishes, spec.drafted) == (False, False, False, False, 0)
    assert (settings_of(spec)["sides"], spec.flaw) == (2, "`coin` is not installed here")
    engine = found.engines["target"]
    assert isinstance(engine, UnknownEngine)
    assert (engine.backend, engine.model, engine.max_in_flight, engine.timeout_s) == ("cloud", "large", 7, None)
    assert (settings_of(engine)["region"], engine.flaw) == ("north", "`cloud` is not installed here")
    recorded = msgspec.convert(encode_plan(plan), RecordedPlan)
    kinds, backends = stage_specs() | {"coin": Coin}, engine_specs() | {"cloud": Cloud}
    assert decode_plan(recorded, kinds, backends) == plan
    assert encode_plan(found)["engines"] == encode_plan(plan)["engines"]


def test_settings_that_this_version_does_not_know_are_kept(tmp_path: Path) -> None:
    stage = STAGE | {"spec": STAGE["spec"] | {"surprise": 1}, "purpose": "write", "finishes": True}
    write_run_json(tmp_path, graph={"levels": [[stage]]}, engines={"target": SIM | {"max_retries": "many"}})
    plan = RunFile.read(tmp_path).plan
    [response], engine = plan.stages(), plan.engines["target"]
    assert isinstance(response.spec, UnknownStage)
    assert (response.spec.kind, response.spec.writes, response.spec.finishes) == ("generate", True, True)
    assert "surprise" in response.spec.flaw
    assert isinstance(engine, UnknownEngine)
    assert (engine.backend, engine.max_retries) == ("sim", 0)
    assert "max_retries" in engine.flaw


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: no such file or directory; expected a run folder"),
        ("", "is not a run.json of this program: Input data was truncated"),
        ("[1]", "is not a run.json of this program: Expected `object`, got `array`"),
        ("\udcff", "is not a run.json of this program: JSON is malformed: invalid character (byte 0)"),
        ("{}", "names no format, and this version reads format 1; read it with the version that wrote it, or run it again"),
        ('{"format": 1}', "is not a run.json of this program: Object missing required field `graph`"),
        (RUN_JSON | {"graph": {"levels": 3}}, "is not a run.json of this program: its graph is not one that this program writes"),
        (RUN_JSON | {"engines": ["target"]}, "is not a run.json of this program: Expected `object`, got `array`"),
        (RUN_JSON | {"status": "odd"}, "is not a run.json of this program: Invalid enum value 'odd'"),
        (RUN_JSON | {"sessions": [{"status": "finished"}]}, "missing required field `started_unix_ns`"),
    ],
)
def test_what_is_no_run_file_is_refused(tmp_path: Path, content: str | dict[str, Any] | None, said: str) -> None:
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "run.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError) as caught:
        RunFile.read(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/run.json: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(("make", "said"), [(Path.mkdir, "is a directory"), (os.mkfifo, "it is a named pipe")])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make: Any, said: str) -> None:
    make(tmp_path / "run.json")
    for read in (RunFile.read, folder_id):
        with pytest.raises(InputError, match=rf"run\.json: cannot be read: {said}; expected a run folder"):
            read(tmp_path)


def sessions(*times: tuple[int, int | None], **fields: Any) -> tuple[Session, ...]:
    return tuple(Session(started_unix_ns=start, ended_unix_ns=end, **fields) for start, end in times)


@pytest.mark.parametrize(
    ("times", "pauses", "ended"),
    [
        ([(5, 7)], (), 7),
        ([(5, 7), (9, 12), (20, None)], ((7, 9), (12, 20)), None),
        ([(5, None), (9, 12)], (), 12),
        ([(5, 9), (9, 12), (11, 13)], (), 13),
    ],
)
def test_nobody_was_at_work_between_sessions(times: Any, pauses: Any, ended: int | None) -> None:
    run = structs.replace(EMPTY, sessions=sessions(*times))
    assert (run.started, run.pauses, run.ended) == (5, pauses, ended)


def test_statistics_are_known_where_every_session_left_them() -> None:
    both = sessions((5, 7), (8, 9), engine_statistics={"target": STATISTICS})
    assert structs.replace(EMPTY, sessions=both).statistics("target") == [STATISTICS, STATISTICS]
    assert structs.replace(EMPTY, sessions=(*both, *sessions((10, None)))).statistics("target") is None
    assert structs.replace(EMPTY, sessions=both).statistics("draft") is None
    assert EMPTY.statistics("target") is None


def test_the_name_is_made_durable_too(tmp_path: Path) -> None:
    """The folder is opened, to be flushed, after the file has got its name."""
    program = """if True:
        import sys
        from pathlib import Path
        from pipeline.store.run_file import RunFile
        from tests.support.run_files import RUN_JSON
        folder, seen = Path(sys.argv[1]), []
        sys.addaudithook(lambda event, args: seen.append((event, str(args[0]))) if event in ("open", "os.rename") else None)
        RunFile.decode(RUN_JSON).write(folder)
        [renamed] = [i for i, (event, name) in enumerate(seen) if event == "os.rename" and Path(name).parent == folder]
        sys.exit(("open", str(folder)) not in seen[renamed:])
    """
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, timeout=HANGS_S).returncode == 0
