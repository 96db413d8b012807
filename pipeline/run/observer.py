"""What a caller may see of a run in progress: functions of an `Observer` that are called."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from msgspec import Struct

from pipeline.engines.startup import Listener
from pipeline.run.prepare import Prepared
from pipeline.runtime.executor import Executor
from pipeline.runtime.rows import RowSink


class Observer(Struct, frozen=True, kw_only=True):
    """Callbacks during a run; by default they do nothing."""

    starting: Callable[[], Listener] = Listener
    """Gives what hears the engines that start."""
    ready: Callable[[Prepared], object] = lambda ready: None
    """Is called with a run that was checked, before its engines are opened."""
    watch: Callable[[Prepared, Executor], AbstractContextManager[Any]] = lambda run, work: nullcontext()
    """Displays the progress of the run, whose live objects the executor has, until its context manager ends; not on replicas."""
    tell: Callable[[str], object] = lambda sentence: None
    """Gets the notices that the user should read."""
    sink: RowSink | None = None
    """Gets every row of the trace, besides the run folder."""
