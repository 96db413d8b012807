"""A run whose folder is held: a checked run enters, what earlier sessions left in its folder leaves."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct, structs

from pipeline.runtime.resume_state import ResumeState
from pipeline.session.checks.toy_models import strange_problems
from pipeline.session.preflight import Preflight, new_record
from pipeline.session.resume import mend_chains, read_resume_state
from pipeline.store.checking.inventory import check_files
from pipeline.store.run_file import FILE, RunFile, Session
from pipeline.store.tables import recover


class Ready(Struct, frozen=True, kw_only=True):
    """A run whose folder is held by this process, and what earlier sessions left in it."""

    checked: Preflight
    record: RunFile
    """The content of `run.json`, with the earlier sessions."""
    resume_state: ResumeState
    """What earlier sessions left; empty for a new run."""
    rewritten_bytes: int = 0
    """Bytes of write-ahead files that were made parts, and of parts without rows that were not consistent."""
    remarks: tuple[str, ...] = ()
    """Notices for the user about what was found in the folder."""


@contextmanager
def announced(ready: Ready) -> Iterator[None]:
    """Let a new run be in its folder, as `starting`, while the body opens its engines; where it never begins it is gone again."""
    folder = ready.checked.folder
    if folder is None or ready.checked.old is not None:
        yield
        return
    structs.replace(ready.record, status="starting").write(folder)
    try:
        yield
    finally:
        if RunFile.read_known(folder).status == "starting":
            (folder / FILE).unlink(missing_ok=True)


def take_up(checked: Preflight, command: Sequence[str] = ()) -> Ready:
    """Read what earlier sessions left in the run folder, which this process holds; write-ahead files are made parts first."""
    record = new_record(checked, command)
    remarks = [*checked.problems.remarks, *strange_problems(checked.plan, checked.problems)]
    if checked.folder is None or checked.old is None:
        return Ready(checked=checked, record=record, resume_state=ResumeState(), remarks=tuple(remarks))
    remarks += check_files(checked.folder)
    rewritten = recover(checked.folder)
    taken_back = mend_chains(checked.folder, checked.old)
    options = checked.options
    state = read_resume_state(checked.folder, options.samples, options.retry_failed)
    sessions = _ended_sessions(checked.old, state.last_call_unix_ns)
    record = structs.replace(record, sessions=sessions, mode_changes=checked.old.mode_changes)
    remarks += [taken_back.sentence] if taken_back.sentence else []
    rewritten += taken_back.written_bytes
    return Ready(checked=checked, record=record, resume_state=state, rewritten_bytes=rewritten, remarks=tuple(remarks))


def _ended_sessions(old: RunFile, last_ns: int | None) -> tuple[Session, ...]:
    """The sessions of `old`; a session that was killed gets the end of the last call in the trace as its own."""
    *before, last = old.sessions
    if last.status == "running":
        ended = max(last.started_unix_ns, last_ns or 0)
        last = structs.replace(last, status="killed", ended_unix_ns=ended, wall_time_s=(ended - last.started_unix_ns) / 1e9)
    return (*before, last)
