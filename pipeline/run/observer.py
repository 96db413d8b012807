"""What a caller may see of a run in progress: a `View` of live objects, and the functions of an `Observer` that are called."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct

from pipeline.engine import Engine
from pipeline.engines.startup import Listener
from pipeline.graph.plan import Plan
from pipeline.graph.spec import EngineSpec
from pipeline.run.prepare import Prepared
from pipeline.runtime.admission.admission import Admission
from pipeline.runtime.lane import Lane
from pipeline.runtime.progress import Progress
from pipeline.runtime.rows import RowSink
from pipeline.store.run_file import Totals


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
    lanes: dict[str, Lane] = {}
    """Those of this process; none where replicas solve, and so with `engines`."""
    engines: Mapping[str, Engine] = {}
    admission: Admission | None = None
    """What lets chains pause; None: nothing does."""
    totals: Callable[[], Totals]
    """Counts up to now, earlier sessions included."""
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
