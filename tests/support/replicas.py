"""Runs of several replicas for tests: simulated runs over parts of an input, put together as replicas of one run with overlapping times;
and runs on a simulated cluster."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from pipeline.cluster.merge import merged_run
from pipeline.engines.sim.text import sim_answer
from pipeline.session.options import RunOptions
from pipeline.store.columns import schema_of
from pipeline.store.events import ROWS
from pipeline.store.read import read_table
from pipeline.store.run_file import Replica, RunFile
from pipeline.store.run_store import RunStore
from tests.support.fated_replicas import WELL, Fate, on_replicas
from tests.support.paths import ROOT, SIM
from tests.support.runs import solve, write_problems

TABLES = ("chains", "steps", "calls", "problems")
EACH = 12
"""Problems of a replica that is not slow."""
SLOW = 4
"""How many times as long everything takes on a slow replica, which is given a fourth of the problems."""
LIFE_S = 8.0
"""How long a replica lives that is lost."""
LOSS = "it died as it was told to"


def replica_run(folder: Path, replicas: int, *, slow: int | None = None, **options: Any) -> Path:
    """The folder of a finished run of so many replicas, each on a node `node-N`; the replica `slow` was lost once, with `LOSS`.

    `options` are those of `solve`.
    """
    counts = [EACH // SLOW if number == slow else EACH for number in range(replicas)]
    parts, first = [], 0
    for number, count in enumerate(counts):
        part = folder / f"part-{number}"
        part.mkdir(parents=True)
        parts.append(solve(part, input=_problems(part, first, count), **{"batch_size": 4} | options).folder)
        first += count
    return as_replicas(folder / "run", parts, {slow: SLOW} if slow is not None else {})


def as_replicas(folder: Path, parts: Sequence[Path], stretched: dict[int, int]) -> Path:
    """One run in `folder` whose replicas did what the runs `parts` say, all from the same moment on; `stretched` says how many times as
    long it took on some of them."""
    files = [RunFile.read(part) for part in parts]
    origin = files[0].started_unix_ns
    folder.mkdir(parents=True, exist_ok=True)
    _run_file(files, folder.name, stretched).write(folder)
    store = RunStore(folder, {name: ROWS[name] for name in TABLES})
    for name in TABLES:
        tables, rows = [], 0
        for number, (part, file) in enumerate(zip(parts, files, strict=True)):
            table = _moved(read_table(part, ROWS[name], name), file.started_unix_ns, origin, stretched.get(number, 1))
            tables.append(_marked(table, folder.name, number, rows))
            rows += file.input.rows
        whole = pa.concat_tables(tables)
        ordered = whole.sort_by("end_unix_ns") if "end_unix_ns" in whole.column_names else whole
        for batch in ordered.cast(schema_of(ROWS[name])).combine_chunks().to_batches():
            store.append_batch(name, batch)
    store.close()
    return folder


def _problems(folder: Path, first: int, count: int) -> Path:
    path = folder / "problems.jsonl"
    texts = [f"Problem number {number}?" for number in range(first, first + count)]
    rows = [{"problem_id": f"p{first + i}", "problem": text, "answer": sim_answer(text)} for i, text in enumerate(texts)]
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return path


def _moved(table: pa.Table, started: int, origin: int, times: int) -> pa.Table:
    """The rows as if the run had begun at `origin` and taken so many `times` as long."""
    for place, field in enumerate(table.schema):
        if field.name.endswith("_unix_ns"):
            moved = pc.add(pc.multiply(pc.subtract(table.column(place), started), times), origin)
            table = table.set_column(place, field, moved)
        elif field.name.endswith(("_s", "_token")) and pa.types.is_floating(field.type):
            table = table.set_column(place, field, pc.multiply(table.column(place), float(times)))
    return table


def _marked(table: pa.Table, run_id: str, number: int, rows: int) -> pa.Table:
    """The rows as those of one run on the replica `number`; `rows` of the input come before those of this replica."""
    for place, field in enumerate(table.schema):
        if field.name == "input_row":
            table = table.set_column(place, field, pc.add(table.column(place), rows))
        values = {"run_id": run_id, "replica": number, "node": f"node-{number}"}
        if field.name in values:
            table = table.set_column(place, field, pa.array([values[field.name]] * table.num_rows, field.type))
    return table


def _run_file(files: Sequence[RunFile], run_id: str, stretched: dict[int, int]) -> RunFile:
    merged = merged_run(files, run_id)
    times = [round((file.wall_time_s or 0.0) * 1e9) * stretched.get(number, 1) for number, file in enumerate(files)]
    replicas = [
        Replica(
            node=f"node-{number}",
            starts=2 if number in stretched else 1,
            losses=[LOSS] if number in stretched else [],
            chains=file.totals.chains,
        )
        for number, file in enumerate(files)
    ]
    started = files[0].started_unix_ns
    session = structs.replace(
        merged.sessions[-1], started_unix_ns=started, ended_unix_ns=started + max(times), wall_time_s=max(times) / 1e9, replicas=replicas
    )
    return structs.replace(merged, sessions=(session,)).with_session(session)


def cluster_run(folder: Path, replicas: int, *, slow: int, lost: int) -> Path:
    """The folder of a run on a simulated cluster: the replica `slow` is, and `lost` was lost after a while."""
    given = RunOptions(
        graph=ROOT / "graphs/speccot.yaml",
        engines=SIM,
        input=write_problems(folder, 30 * replicas),
        output=folder / "run",
        batch_size=8,
        replicas=replicas,
    )

    fates = {slow: Fate(rates=1 / SLOW)}
    result = on_replicas(given, lambda number, start: Fate(at_s=LIFE_S) if (number, start) == (lost, 0) else fates.get(number, WELL))
    assert result.exit_code == 0, result.error
    return folder / "run"
