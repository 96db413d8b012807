"""`pipeline merge`: the run folders of all shards of an input enter, one run folder leaves, as if one process had solved them all.

Nothing is solved, and the folders of the shards stay as they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from pipeline.engine import EngineStatistics
from pipeline.errors import UsageError
from pipeline.run.prepare import drift
from pipeline.store.folder import hold, hold_output
from pipeline.store.run_file import RunFile, Session, Totals
from pipeline.store.store import RunStore


def merge(runs: Sequence[Path], output: Path) -> RunFile:
    """Make one run in the folder `output` of `runs`, one of each shard of the same input; its `run.json`.

    Raises `UsageError` where they are not the shards of one run, one is there twice or not at all, one is not finished, or a folder is in
    use; `InputError` where one cannot be read, `RunFolderError` where `output` cannot be written.
    """
    found = {run: RunFile.read(run) for run in runs}
    ordered = in_order(found)
    with ExitStack() as stack:
        stack.enter_context(hold_output(output))
        for run in ordered:
            stack.enter_context(hold(run))
        store = RunStore(output)
        store.merge(ordered, output.name)
        merged = structs.replace(merged_run([found[run] for run in ordered], output.name), folder_id=store.id)
        merged.write(output)
    return merged


def in_order(found: Mapping[Path, RunFile]) -> list[Path]:
    """The folders in the order of their shards; raises `UsageError` unless they are all shards of one run, each once, and finished."""
    (first, about), *others = found.items()
    for run, file in found.items():
        if file.input.shard is None:
            raise UsageError(f"{run}: is not a shard: it was not run with --shard")
        if file.status != "finished":
            raise UsageError(f"{run}: is {file.status}; `pipeline resume {run}` first")
    for run, file in others:
        differences = [clause for name, clause in drift(about, file) if name != "shard"]
        if differences:
            raise UsageError(f"{run} and {first}: are not shards of one run: {'; '.join(differences)}")
    places = {run: file.input.shard for run, file in found.items() if file.input.shard is not None}
    count, by_index = min(each.count for each in places.values()), dict[int, Path]()
    for run, shard in places.items():
        if shard.count != count:
            raise UsageError(f"{run}: is the shard {shard}, and others are of {count}; expected all shards of one number")
        if shard.index in by_index:
            raise UsageError(f"{run} and {by_index[shard.index]}: are both shard {shard}")
        by_index[shard.index] = run
    if missing := [f"{index}/{count}" for index in range(count) if index not in by_index]:
        named = ", ".join(missing[:20]) + (", ..." if len(missing) > 20 else "")
        raise UsageError(f"shard{'s' if len(missing) > 1 else ''} {named} missing; name the folders of all {count} shards")
    return [by_index[index] for index in range(count)]


def merged_run(files: Sequence[RunFile], run_id: str) -> RunFile:
    """The `run.json` of the run that these shards are, in their order."""
    first = files[0]
    sessions = tuple(_sessions([session for file in files for session in file.sessions]))
    rows, bad, chains = (sum(each) for each in zip(*((file.input.rows, file.input.bad_rows, file.chains) for file in files), strict=True))
    return structs.replace(
        first,
        run_id=run_id,
        samples=max(file.samples for file in files),
        input=structs.replace(first.input, shard=None, rows=rows, bad_rows=bad, chains=chains),
        options={name: value for name, value in first.options.items() if name != "shard"},
        totals=total_of([file.totals for file in files]),
        command=[],
        sessions=sessions,
    )


def _sessions(sessions: Sequence[Session]) -> Iterator[Session]:
    """The times in which any shard was at work, as sessions one after the other: those that overlap become one."""
    together: list[Session] = []
    for session in sorted(sessions, key=lambda each: each.started_unix_ns):
        if together and session.started_unix_ns > max(each.ended_unix_ns or each.started_unix_ns for each in together):
            yield _session(together)
            together = []
        together.append(session)
    yield _session(together)


def _session(sessions: Sequence[Session]) -> Session:
    started, ended = sessions[0].started_unix_ns, max(each.ended_unix_ns or each.started_unix_ns for each in sessions)
    roles = dict.fromkeys(role for each in sessions for role in each.engine_statistics)
    return Session(
        started_unix_ns=started,
        status="finished",
        ended_unix_ns=ended,
        startup_s=max(each.startup_s for each in sessions),
        orchestrator_cpu_s=sum(each.orchestrator_cpu_s or 0.0 for each in sessions),
        engine_statistics={
            role: reduce(EngineStatistics.plus, [each.engine_statistics[role] for each in sessions])
            for role in roles
            if all(role in each.engine_statistics for each in sessions)
        },
    )


def total_of(totals: Sequence[Totals]) -> Totals:
    """The sums of all counts."""
    return msgspec.convert(_added([msgspec.to_builtins(each) for each in (Totals(), *totals)]), Totals)


def _added(values: Sequence[Any]) -> Any:
    """The sum of numbers, without those that are not known, or of mappings key by key."""
    known = [value for value in values if value is not None]
    if known and isinstance(known[0], dict):
        keys = dict.fromkeys(key for value in known for key in value)
        return {key: _added([value[key] for value in known if key in value]) for key in keys}
    return sum(known) if known else None
