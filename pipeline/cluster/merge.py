"""`pipeline merge`: the run folders of all shards of an input enter, one run folder leaves, as if one process had solved them all.

Nothing is solved, and the folders of the shards stay as they are.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from pipeline.engine import EngineStatistics
from pipeline.errors import UsageError
from pipeline.session.prepare import drift
from pipeline.store.check import check_chains
from pipeline.store.folder import hold, hold_output
from pipeline.store.read import read_batches
from pipeline.store.run_file import RunFile, Session, Totals
from pipeline.store.run_store import RunStore


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
            check_chains(run)
        _check_chains({run: found[run] for run in ordered})
        name = RunStore(output).merge(ordered, output.name)
        merged = structs.replace(merged_run([found[run] for run in ordered], output.name), folder_id=name)
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
        differences = [each for name, clauses in drift(about, file).items() if name != "shard" for each in clauses]
        if differences:
            raise UsageError(f"{run} and {first}: are not shards of one run: {'; '.join(differences)}")
    by_index: dict[int, Path] = {}
    count = 0
    for run, file in found.items():
        assert file.input.shard is not None
        index, of = file.input.shard.index, file.input.shard.count
        if count not in (0, of):
            raise UsageError(f"{run} and {first}: are shards of {of} and of {count}; expected all shards of one number")
        if index in by_index:
            raise UsageError(f"{run} and {by_index[index]}: are both shard {index}/{of}")
        by_index[index], count = run, of
    if missing := sorted(set(range(count)) - by_index.keys()):
        named = ", ".join(f"{index}/{count}" for index in missing[:20]) + (", ..." if len(missing) > 20 else "")
        raise UsageError(f"shard{'s' if len(missing) > 1 else ''} {named} missing; name the folders of all {count} shards")
    return [by_index[index] for index in range(count)]


def _check_chains(found: Mapping[Path, RunFile]) -> None:
    """Raise `UsageError` where a chain of an input row is missing in its shard, or is there twice."""
    everywhere = []
    samples = max(file.samples for file in found.values())
    for run, file in found.items():
        there, expected = _places(run, samples), file.chains
        if len(np.unique(there)) < expected:
            lacking = expected - len(np.unique(there))
            raise UsageError(f"{run}: {lacking:,} of its {expected:,} chains are missing")
        everywhere.append(there)
    rows, counts = np.unique(np.concatenate(everywhere), return_counts=True)
    if counts.max(initial=0) > 1:
        row = int(rows[counts.argmax()]) // samples + 1
        raise UsageError(f"input row {row} is in more than one shard")


def _places(folder: Path, samples: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The places in the input of all chains of a run folder."""
    found = [np.empty(0, np.int64)]
    for batch in read_batches(folder, "chains", ["input_row", "sample_index"]):
        row, sample = (batch.column(name).to_numpy(zero_copy_only=False) for name in ("input_row", "sample_index"))
        found.append((row.astype(np.int64) - 1) * samples + sample)
    return np.concatenate(found)


def merged_run(files: Sequence[RunFile], run_id: str) -> RunFile:
    """The `run.json` of the run that these shards are, in their order."""
    first = files[0]
    sessions = tuple(_sessions([session for file in files for session in file.sessions]))
    rows, bad, chains = (sum(each) for each in zip(*((file.input.rows, file.input.bad_rows, file.chains) for file in files), strict=True))
    record = structs.replace(
        first,
        run_id=run_id,
        samples=max(file.samples for file in files),
        input=structs.replace(first.input, shard=None, rows=rows, bad_rows=bad, chains=chains),
        options={name: value for name, value in first.options.items() if name != "shard"},
        totals=_totals([file.totals for file in files]),
        command=[],
        sessions=sessions,
    )
    return record.with_session(sessions[-1])


def _sessions(sessions: Sequence[Session]) -> Iterator[Session]:
    """The times in which any shard was at work, as sessions one after the other: those that overlap become one."""
    together: list[Session] = []
    for session in sorted(sessions, key=lambda each: each.started_unix_ns):
        if together and session.started_unix_ns > max(each.ended_unix_ns or 0 for each in together):
            yield _session(together)
            together = []
        together.append(session)
    yield _session(together)


def _session(sessions: Sequence[Session]) -> Session:
    started, ended = sessions[0].started_unix_ns, max(each.ended_unix_ns or 0 for each in sessions)
    roles = dict.fromkeys(role for each in sessions for role in each.engine_statistics)
    return Session(
        started_unix_ns=started,
        status="finished",
        ended_unix_ns=ended,
        startup_s=max(each.startup_s for each in sessions),
        wall_time_s=(ended - started) / 1e9,
        orchestrator_cpu_s=sum(each.orchestrator_cpu_s or 0.0 for each in sessions),
        rewritten_bytes=sum(each.rewritten_bytes for each in sessions),
        versions=sessions[0].versions,
        engine_statistics={
            role: EngineStatistics.together([each.engine_statistics[role] for each in sessions if role in each.engine_statistics])
            for role in roles
        },
    )


def _totals(totals: Sequence[Totals]) -> Totals:
    counts = ("chains_done", "chains_failed", "chains_cancelled", "graded", "correct", "steps")
    sums = {name: sum(getattr(each, name) for each in totals) for name in counts}
    pauses = [each.pauses for each in totals if each.pauses is not None]
    errors: dict[str, Counter[str]] = {}
    for each in totals:
        for error, stages in each.errors.items():
            errors.setdefault(error, Counter()).update(stages)
    return Totals(
        **sums,
        pauses=sum(pauses) if pauses else None,
        errors={error: dict(stages) for error, stages in errors.items()},
        decisions=dict(sum((Counter(each.decisions) for each in totals), Counter())),
        output_tokens=dict(sum((Counter(each.output_tokens) for each in totals), Counter())),
    )
