"""`pipeline merge`: the run folders of all shards of an input enter, one run folder leaves, as if one process had solved them all.

Nothing is solved, and the folders of the shards stay as they are.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from pathlib import Path

from msgspec import structs

from pipeline.engine import added
from pipeline.errors import UsageError
from pipeline.options import Shard, shard_of
from pipeline.run.prepare import drift
from pipeline.store.folder import hold, hold_output
from pipeline.store.run_file import RunFile, Session
from pipeline.store.store import RunStore


def merge(runs: Sequence[Path], output: Path) -> RunFile:
    """Make one run in the folder `output` of `runs`, one of each shard of the same input; its `run.json`.

    Raises `UsageError` where they are not the shards of one run, one is there twice or not at all, one is not finished, or a folder is in
    use; `InputError` where one cannot be read, `RunFolderError` where `output` cannot be written.
    """
    found = {run: RunFile.read(run) for run in runs}
    ordered = in_order(found)
    files = [found[run] for run in ordered]
    with hold_output(output), ExitStack() as held:
        for run in ordered:
            held.enter_context(hold(run))
        store = RunStore(output)
        store.merge(ordered, output.name)
        merged = structs.replace(
            files[0],
            folder_id=store.id,
            run_id=output.name,
            options=structs.replace(files[0].options, shard=None),
            input=structs.replace(
                files[0].input,
                rows=sum(file.input.rows for file in files),
                chains=sum(file.input.chains for file in files),
                samples=max(file.input.samples for file in files),
            ),
            totals=reduce(added, [file.totals for file in files]),
            command=[],
            sessions=merged_sessions(files),
        )
        merged.write(output)
    return merged


def in_order(found: Mapping[Path, RunFile]) -> list[Path]:
    """The folders in the order of their shards; raises `UsageError` unless they are all shards of one run, each once, and finished."""
    first, about = next(iter(found.items()))
    for run, file in found.items():
        if file.options.shard is None:
            raise UsageError(f"{run}: is not a shard: it was not run with --shard")
        if file.status != "finished":
            raise UsageError(f"{run}: is {file.status}; `pipeline resume {run}` first")
        if differences := [clause for name, clause in drift(about, file) if name != "shard"]:
            raise UsageError(f"{run} and {first}: are not shards of one run: {'; '.join(differences)}")
    shards = {run: shard_of(str(file.options.shard)) for run, file in found.items()}
    ordered = sorted(shards, key=lambda run: (shards[run].index, shards[run].count))
    given = [shards[run] for run in ordered]
    if given != [Shard(index, given[0].count) for index in range(given[0].count)]:
        raise UsageError(f"expected the folders of all shards of one number, each once; these are {', '.join(map(str, given))}")
    return ordered


def merged_sessions(files: Sequence[RunFile]) -> tuple[Session, ...]:
    """The times in which any shard was at work, as sessions one after the other: those that overlap become one."""
    merged: list[Session] = []
    for session in sorted((session for file in files for session in file.sessions), key=lambda each: each.started_unix_ns):
        if not merged or session.started_unix_ns > _end(merged[-1]):
            merged.append(session)
            continue
        one, last = merged[-1], max(merged[-1], session, key=_end)
        merged[-1] = structs.replace(
            one,
            status=last.status,
            ended_unix_ns=_end(last),
            orchestrator_cpu_s=added(one.orchestrator_cpu_s, session.orchestrator_cpu_s),
            engine_statistics=added(one.engine_statistics, session.engine_statistics),
        )
    return tuple(merged)


def _end(session: Session) -> int:
    return session.ended_unix_ns or session.started_unix_ns
