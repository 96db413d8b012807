"""`run.json`: what is written comes back."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.engine import EngineStatistics
from pipeline.errors import InputError
from pipeline.graph.load import load_graph, source_of
from pipeline.graph.plan import Plan
from pipeline.graph.spec import EngineSpec
from pipeline.store.folder import FORMAT
from pipeline.store.run_file import RunFile, Session, host
from tests.support.run_files import RUN, RUN_JSON, source, write_run_json

ROOT = Path(__file__).parent.parent.parent
GRAPHS = sorted((ROOT / "graphs").glob("*.yaml"))
STATISTICS = EngineStatistics(requests=2, input_tokens=3, cached_input_tokens=1, output_tokens=4, busy_s=1.5)


def plan_of(graph: Path, engines: str = "sim-2xh100") -> Plan:
    return load_graph(graph, engines=ROOT / f"graphs/engines/{engines}.yaml")


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda path: path.stem)
@pytest.mark.parametrize("engines", ["sim-2xh100", "sim-instant", "tiny"])
def test_a_run_comes_back_as_it_was_written(tmp_path: Path, graph: Path, engines: str) -> None:
    """`sim-instant` has rates without bounds."""
    session = Session(started_unix_ns=5, ended_unix_ns=7, engine_statistics={"target": STATISTICS})
    plan = plan_of(graph, engines)
    run = structs.replace(RUN, source=source_of(plan), host=host(), sessions=(session,))
    run.write(tmp_path)
    assert (RunFile.read(tmp_path), RunFile.read(tmp_path).plan) == (run, plan)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


class Cloud(EngineSpec, frozen=True, kw_only=True, tag="cloud"):
    """An engine of another package."""


def test_a_run_that_needs_a_package_which_is_not_here_is_refused_by_name(tmp_path: Path) -> None:
    plan = plan_of(ROOT / "graphs/speccot.yaml")
    write_run_json(tmp_path, source=source_of(structs.replace(plan, engines={"draft": Cloud(), "target": Cloud()})))
    with pytest.raises(InputError, match=r"run\.json: source.*: \$\.engines\.draft\.backend: unknown backend `cloud`; known are"):
        RunFile.read(tmp_path)
    write_run_json(tmp_path, stages={"verify": {"kind": "coin", "sides": 2}})
    with pytest.raises(InputError, match=r"run\.json: source.*: \$\.stages\.verify\.kind: unknown kind `coin`; known are"):
        RunFile.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: no such file or directory; expected a run folder"),
        ("\udcff", "is not a run.json of this program: JSON is malformed: invalid character (byte 0)"),
        ("{}", f"names no format, and this version reads format {FORMAT}; read it with the version that wrote it, or run it again"),
        (f'{{"format": {FORMAT}}}', "run.json: Object missing required field `run_id`"),
        (RUN_JSON | {"source": "{"}, "source, line 2: invalid YAML: did not find expected node content"),
        (
            RUN_JSON | {"source": source(engines={"target": {"max_retries": "many"}})},
            "$.engines.target.max_retries: expected `int`, got `str`",
        ),
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
    run = structs.replace(RUN, sessions=sessions(*times))
    assert (run.started_unix_ns, run.pauses, run.ended_unix_ns) == (5, pauses, ended)
