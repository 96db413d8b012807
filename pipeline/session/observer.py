"""What a caller may see of a run in progress: a `View` of live objects, and the functions of an `Observer` that are called."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct

from pipeline.engine import Engine, EngineStatistics
from pipeline.engines.startup import Listener
from pipeline.graph.plan import Plan
from pipeline.graph.spec import EngineSpec
from pipeline.runtime.admission.admission import Admission
from pipeline.runtime.clock import Clock
from pipeline.runtime.lane import Lane
from pipeline.runtime.progress import Progress
from pipeline.runtime.rows import RowSink
from pipeline.session.prepare import Prepared

SOLVING = "solving"
"""`ReplicaState.what` of a replica whose engines are open."""


class ReplicaState(Struct, frozen=True, kw_only=True):
    """How one replica of a run is at this moment."""

    number: int
    """From 0."""
    node: str
    """The cluster's id of its node; empty where it is on none."""
    what: str
    """`starting` or what its engines do while they start, `solving`, or `lost` or `dropped` and why."""
    live: int = 0
    """Chains in flight on it."""
    done: int = 0
    """Chains that ended on it."""
    output_tokens: dict[str, int] = {}
    """Tokens that its engines sampled, by role."""
    statistics: dict[str, EngineStatistics] = {}
    """What each of its engines was doing when it reported last, and its totals since it was opened last, by role."""


class View(Struct, frozen=True, kw_only=True):
    """A run in progress, for a display: live objects that only the run changes."""

    plan: Plan
    folder: Path | None
    chains: int
    """The number of chains, those that have not started included."""
    samples: int = 1
    """Chains of each problem."""
    schedule: str
    batch_size: int
    virtual_time: bool
    simulated: bool = False
    """True if engines make their answers up, so that being right means nothing."""
    progress: Progress
    lanes: dict[str, Lane]
    engines: Mapping[str, Engine]
    clock: Clock
    admission: Admission | None = None
    """What lets chains pause; None: nothing does."""
    graded: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """The number of chains that are graded so far, and of those that are right."""
    replicas: Callable[[], Sequence[ReplicaState]] = lambda: ()
    """How each replica is, where the run is carried out by several; `lanes` and `engines` are empty then."""
    setbacks: Callable[[], Sequence[str]] = lambda: ()
    """Why engines answer nothing, a sentence for each that does so now."""


Watch = Callable[[View], AbstractContextManager[Any]]
"""Displays a run until its context manager ends."""
Tell = Callable[[str], object]
"""Shows a message to the user."""
Attend = Callable[..., Coroutine[Any, Any, Any]]
"""`attend(stop, task_status=...)`: a task alongside a run that may stop it; it is cancelled when the run is over."""
Starting = Callable[[Mapping[str, EngineSpec]], AbstractContextManager[Listener]]
"""Displays how the engines of these specs start, until its context manager ends; that gives what hears them."""


class Observer(Struct, frozen=True, kw_only=True):
    """Callbacks during a run; by default they do nothing."""

    starting: Starting = lambda specs: nullcontext(Listener())
    """Displays the start of the engines."""
    ready: Callable[[Prepared], object] = lambda ready: None
    """Is called with a run that was checked, before its engines are opened."""
    watch: Watch = lambda view: nullcontext()
    """Displays the progress of the run."""
    tell: Tell = lambda sentence: None
    """Gets the notices that the user should read before the run."""
    sink: RowSink | None = None
    """Gets every row of the trace, besides the run folder."""
