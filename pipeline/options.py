"""The options of a run, each spelled once: its type, what it says in help, and what a change of it means for a run that is resumed.

The options of commands (`cli.options`), the keywords of `pipeline.solve`, `run.json` and the checks of resume derive from the fields of
`RunOptions`. A `RowSet` says which rows of the input they ask for.
"""

import hashlib
import heapq
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_type_hints

from msgspec import Meta, Struct

from pipeline.errors import UsageError

ScheduleName = Literal["pipelined", "lockstep", "sequential"]
AdmissionName = Literal["cache", "batch"]
Drift = Literal["allowed", "refused"]
"""What a change of an option means for a run that is resumed: it may be allowed, or it would be another run."""


class About(Struct, frozen=True, kw_only=True):
    """An option, but for its type."""

    help: str
    group: str
    """The heading under which commands list it."""
    metavar: str = ""
    drift: Drift | None = None
    """None: a change makes no difference to chains that are there already."""
    bounds: tuple[float, float] | None = None
    """The least and the greatest value."""


def about(help_: str, group: str, metavar: str = "", **more: Any) -> Meta:
    """The annotation of an option; `more` are further fields of `About`."""
    known = About(help=help_, group=group, metavar=metavar, **more)
    low, high = known.bounds or (None, None)
    return Meta(extra={"about": known}, ge=low, le=high)


COLUMN_HELP = "Read problem, answer, problem_id, options or grader from a column, or a path in one: problem=body.messages."
SHARD_HELP = "Only one shard of the problems, 0/COUNT to COUNT-1/COUNT; see `merge`."
BATCH_HELP = "Maximum number of chains (attempts at a problem) in progress at once."
REPLICAS_HELP = "Replicas of the engines, each with its GPUs or CPU cores of this machine and up to --batch-size chains in flight."
SCHEDULE_HELP = "pipelined: each chain advances by itself; lockstep: all take each step together; sequential: one chain at a time."
ADMISSION_HELP = (
    "cache: chains, or their calls, wait while they exceed the engines' KV caches; batch: only the batch size limits how many are"
    " in flight."
)
SHARE_HELP = "Exit with code 3 only if more than this share of the chains failed, 0 to 1."
CLUSTER_HELP = "Place the replicas on a Ray cluster: ray (RAY_ADDRESS, this machine's, or a new one) or ray://HOST:PORT."
BASELINE_HELP = "Then solve the problems with the target alone as well, on the same engines, and compare."

MAX_ROWS = 1_000_000_000_000
"""Maximum of a number of rows: far more than any file has, and far less than Python can count in a slice."""
Columns: TypeAlias = Annotated[dict[str, str], about(COLUMN_HELP, "Input", "FIELD=COLUMN", drift="refused")]
Limit: TypeAlias = Annotated[
    int, about("Solve only the first N problems; `resume` may solve more.", "Input", "N", drift="allowed", bounds=(1, MAX_ROWS))
]
Random: TypeAlias = Annotated[str, about("Only N problems at random; SEED is independent of --seed.", "Input", "N[:SEED]", drift="refused")]
ShardName: TypeAlias = Annotated[str, about(SHARD_HELP, "Input", "INDEX/COUNT", drift="refused")]
Samples: TypeAlias = Annotated[int, about("Samples per problem.", "Prompting", "K", drift="refused", bounds=(1, 10_000))]
Seed: TypeAlias = Annotated[int, about("Random seed.", "Prompting", "N", drift="refused")]
BatchSize: TypeAlias = Annotated[int, about(BATCH_HELP, "Scheduling", "N", drift="allowed", bounds=(1, 1_000_000))]
Schedule: TypeAlias = Annotated[ScheduleName, about(SCHEDULE_HELP, "Scheduling", "NAME", drift="allowed")]
AdmissionKind: TypeAlias = Annotated[AdmissionName, about(ADMISSION_HELP, "Scheduling", "NAME", drift="allowed")]
Output: TypeAlias = Annotated[Path, about("Run folder, or its s3:// or gs:// URL.", "Output", "DIR")]
Baseline: TypeAlias = Annotated[bool, about(BASELINE_HELP, "Output")]
FailedShare: TypeAlias = Annotated[float, about(SHARE_HELP, "Output", "SHARE", bounds=(0, 1))]
Resume: TypeAlias = Annotated[bool, about("Resume the run in --output, if there is one.", "Resume")]
RetryFailed: TypeAlias = Annotated[bool, about("Also solve the chains again that failed.", "Resume")]
Cluster: TypeAlias = Annotated[str, about(CLUSTER_HELP, "Replicas", "ray[://HOST:PORT]")]
Replicas: TypeAlias = Annotated[int, about(REPLICAS_HELP, "Replicas", "N", bounds=(1, 10_000))]


Row = TypeVar("Row")


class RowSample(Struct, frozen=True):
    """A number of rows, drawn without replacement: those with the least hashes of seed and row number. A smaller sample with the same seed
    is part of a larger one."""

    rows: int
    seed: int = 0

    def drawn(self, rows: Iterable[tuple[int, Row]]) -> list[tuple[int, Row]]:
        """The sample of numbered `rows`, in their order; of fewer rows, all."""
        return sorted(heapq.nsmallest(self.rows, rows, key=lambda each: self._rank(each[0])), key=lambda each: each[0])

    def __str__(self) -> str:
        return f"{self.rows}:{self.seed}"

    def _rank(self, row: int) -> bytes:
        return hashlib.blake2b(f"{self.seed}:{row}".encode(), digest_size=16).digest()


class Shard(Struct, frozen=True):
    """One of several parts of an input, of about the same size; a problem is in the same one however the rows are ordered."""

    index: int
    """From 0."""
    count: int

    def holds(self, name: str) -> bool:
        """Whether the problem with this name is in this shard."""
        return int.from_bytes(hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()) % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


class RowSet(Struct, frozen=True):
    """Which rows of an input a run solves."""

    limit: int | None = None
    """Only rows up to this number. They are the only ones solved; a run keeps the others, so that its limit can grow."""
    sample: RowSample | None = None
    """These, drawn at random; not together with a limit."""
    shard: Shard | None = None
    """Of the rows that the two above leave, those of this shard."""


ALL = RowSet()


def row_sample(text: str) -> RowSample:
    """The sample that `text` asks for; raises `UsageError`."""
    found = re.fullmatch(r"(\d{1,12})(?::(-?\d{1,18}))?", text, re.ASCII)
    if found is None or not 1 <= int(found[1]) <= MAX_ROWS:
        raise UsageError(f"--random {text}: expected N or N:SEED, with N at least 1")
    return RowSample(int(found[1]), int(found[2] or 0))


def shard_of(text: str) -> Shard:
    """The shard that `text` asks for; raises `UsageError`."""
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if found is None or not int(found[1]) < int(found[2]):
        raise UsageError(f"--shard {text}: expected INDEX/COUNT with an index from 0 to COUNT - 1, such as 0/8")
    return Shard(int(found[1]), int(found[2]))


class RunOptions(Struct, frozen=True, kw_only=True):
    """The options of a run, as the command line or the Python API gives them."""

    graph: Path
    """A graph file, or the name of a bundled graph."""
    input: tuple[str, ...]
    """Files of problems, folders of such files, patterns such as `data/*.jsonl`, URLs, names of data sets, or `-`; see `problem_files`."""
    engines: Path | None = None
    """An engines file, the name of a bundled one, or `replay:RUN`; None: the engines that the graph names."""
    planned_engines: dict[str, dict[str, Any]] = {}
    """By role the fields of engines that were chosen for the models which the user named; they go before `engines`."""
    settings: tuple[str, ...] = ()
    """`NAME=VALUE` for params, `engines.ROLE.NAME=VALUE` for engines."""
    columns: Columns = {}
    limit: Limit | None = None
    random: Random | None = None
    shard: ShardName | None = None
    samples: Samples = 1
    seed: Seed = 0
    batch_size: BatchSize = 64
    schedule: Schedule = "pipelined"
    admission: AdmissionKind = "cache"
    output: Output | None = None
    baseline: Baseline = False
    fail_on_error: FailedShare = 0.0
    resume: Resume = False
    retry_failed: RetryFailed = False
    cluster: Cluster | None = None
    replicas: Replicas = 1
    in_memory: tuple[str, ...] = ()
    """Which of `graph` and `engines` are in no file, because a caller of the Python API gave them as values."""
    grader: str | None = None
    """What grades the problems that name no grader."""
    served: bool = False
    """The problems are requests to a server; `input` only names them."""

    @property
    def bound_engines(self) -> Path | dict[str, dict[str, Any]] | None:
        """The engines in place of those that the graph names."""
        return self.planned_engines or self.engines

    @property
    def max_live(self) -> int:
        """The greatest number of chains that live at once on one set of engines."""
        return 1 if self.schedule == "sequential" else self.batch_size

    @property
    def part(self) -> RowSet:
        """Which rows of the input are asked for; raises `UsageError`."""
        if self.random is not None and self.limit is not None:
            raise UsageError(f"--random {self.random} and --limit {self.limit}: give only one of them")
        sample = None if self.random is None else row_sample(self.random)
        return RowSet(limit=self.limit, sample=sample, shard=None if self.shard is None else shard_of(self.shard))


def _known() -> dict[str, About]:
    found: dict[str, About] = {}
    for name, kind in get_type_hints(RunOptions, include_extras=True).items():
        for part in (kind, *getattr(kind, "__args__", ())):
            for meta in getattr(part, "__metadata__", ()):
                found[name] = meta.extra["about"]
    return found


ABOUT = _known()
"""The options that commands have, by their fields."""
MAY_DRIFT = ("engines", *(name for name, known in ABOUT.items() if known.drift == "allowed"))
"""What a resumed run may change; with other params, input or seed it would be another run."""
