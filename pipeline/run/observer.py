"""What a caller may see of a run in progress: the live objects of its `Work`, and the functions of an `Observer` that are called."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from msgspec import Struct

from pipeline.engine import Engine
from pipeline.engines.startup import Listener
from pipeline.graph.spec import EngineSpec
from pipeline.run.prepare import Prepared
from pipeline.runtime.lane import Lane
from pipeline.runtime.progress import Progress
from pipeline.runtime.rows import RowSink


class Work(Protocol):
    """A run in progress, for a display: live objects that only the run changes. An executor, or replicas without lanes and engines here."""

    progress: Progress
    lanes: Mapping[str, Lane]
    engines: Mapping[str, Engine]


Starting = Callable[[Mapping[str, EngineSpec]], AbstractContextManager[Listener]]
"""Displays how the engines of these specs start, until its context manager ends; that gives what hears them."""


class Observer(Struct, frozen=True, kw_only=True):
    """Callbacks during a run; by default they do nothing."""

    starting: Starting = lambda specs: nullcontext(Listener())
    """Displays the start of the engines."""
    ready: Callable[[Prepared], object] = lambda ready: None
    """Is called with a run that was checked, before its engines are opened."""
    watch: Callable[[Prepared, Work], AbstractContextManager[Any]] = lambda run, work: nullcontext()
    """Displays the progress of the run until its context manager ends."""
    tell: Callable[[str], object] = lambda sentence: None
    """Gets the notices that the user should read."""
    sink: RowSink | None = None
    """Gets every row of the trace, besides the run folder."""
