"""The chains of a run on its engines: a prepared run and open engines enter, an executor with all that decides for it leaves."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from pipeline.engine import Engine, EngineStatistics, Fact, Remote
from pipeline.engines.asks import asks_of
from pipeline.errors import GraphError
from pipeline.graph.rules import check_needs, unmet_needs
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.run.observer import Tell
from pipeline.run.prepare import Prepared
from pipeline.runtime.admission.admission import Admission
from pipeline.runtime.admission.cache import CacheLimit, cache_limits, call_tokens
from pipeline.runtime.clock import Clock
from pipeline.runtime.executor import Executor, Settings
from pipeline.runtime.rows import RowSink
from pipeline.runtime.schedule import SCHEDULES
from pipeline.stages.base import Stage
from pipeline.stages.build import build_stages, builders_of, cannot_of, flaw_in_contract
from pipeline.tasks import gather

Facts = Mapping[str, Mapping[str, Fact]]
"""What each engine states about itself, by role."""


class OpenEngines(Struct, frozen=True, kw_only=True):
    """Open engines that suit the graph of a run, with its stages for them."""

    engines: Mapping[str, Engine]
    builders: Mapping[str, PromptBuilder]
    stages: Mapping[str, Stage]
    notices: tuple[str, ...]
    """Notices for the user about these engines."""

    @property
    def facts(self) -> dict[str, dict[str, Fact]]:
        """What the engines state about themselves, by role."""
        return {
            role: {**engine.facts, "max_model_len": engine.max_model_len, "vocab_size": engine.vocab_size}
            for role, engine in self.engines.items()
        }


async def suited(run: Prepared, engines: Mapping[str, Engine], tell: Tell) -> OpenEngines:
    """The `engines` with the stages of the graph for them, about which `tell` gets notices.

    Raises `GraphError` where a tokenizer or a chat template fails, an engine does not suit the graph, or a server refuses what it asks.
    """
    plan = run.plan
    engines = {role: engines[role] for role in plan.engines}
    for role, engine in engines.items():
        if (flaw := flaw_in_contract(Engine, engine)) is not None:
            raise GraphError(f"engine {role!r}", flaw)
    cannot = {role: cannot_of(engine) for role, engine in engines.items()}
    check_needs(plan, cannot)
    await gather([partial(each.rehearse, asks_of(plan, role)) for role, each in engines.items() if isinstance(each, Remote)])
    # Without some needs a run works, but not as well; see also the fact `doubts`.
    said = [str(error) for error in unmet_needs(plan, cannot).values()]
    stated: list[tuple[str, Any]] = [(role, engine.facts.get("doubts", ())) for role, engine in engines.items()]
    said += [f"engine {role!r}: {sentence}" for role, sentences in stated for sentence in sentences]
    for sentence in said:
        tell(sentence)
    builders = builders_of(plan, {role: engine.tokenizer for role, engine in engines.items()})
    stages = build_stages(plan, builders, str(run.options.graph), cannot=cannot)
    return OpenEngines(engines=engines, builders=builders, stages=stages, notices=tuple(said))


def new_admission(run: Prepared, facts: Facts) -> Admission | None:
    """What decides which chains continue; None if only the batch size does."""
    limits = [limit for limit in _limits(run, facts).values() if limit is not None]
    return Admission(limits) if limits else None


def unknown_caches(run: Prepared, facts: Facts) -> list[str]:
    """A notice for each engine whose cache should limit the live chains but which does not report its size."""
    unknown = [role for role, limit in _limits(run, facts).items() if limit is None]
    return [f"engine {role!r} does not report the size of its cache: chains will not pause to make room in it" for role in unknown]


def _limits(run: Prepared, facts: Facts) -> dict[str, CacheLimit | None]:
    return {} if run.options.admission == "batch" else cache_limits(run.plan, facts)


class Chains:
    """The chains of a run on open engines: their executor, and the moment at which the last one was over."""

    def __init__(self, run: Prepared, opened: OpenEngines, rows: RowSink, clock: Clock) -> None:
        plan, options = run.plan, run.options
        self.engines, self.admission = opened.engines, new_admission(run, opened.facts)
        schedule = SCHEDULES[options.schedule](options.batch_size, self.admission)
        known = Settings(
            run_id=run.record.run_id,
            seed=options.seed,
            cache_tokens={} if options.admission == "batch" else call_tokens(plan, opened.facts),
            virtual_time=run.virtual_time,
        )
        self.executor = Executor(plan, opened.stages, opened.engines, opened.builders, schedule, rows, clock, known, run.resume_state)
        self.progress, self.lanes, self.drain = self.executor.progress, self.executor.lanes, self.executor.drain
        self.ended: float | None = None
        """When the last chain was over, by the run's clock; grading and writing that continue after it are not part of the run's time."""
        self._feed, self._clock = run.feed(), clock

    @property
    def exhausted(self) -> bool:
        """True if every chain of the feed was started."""
        return self.executor.exhausted

    @property
    def pauses(self) -> int | None:
        """How often a chain had to pause; None where the batch size alone decides."""
        return None if self.admission is None else self.admission.pauses

    async def run(self) -> None:
        """Run all chains; raises `RunError` when an engine is lost or rows cannot be kept."""
        try:
            await self.executor.run(self._feed)
        finally:
            self.ended = self._clock.now()


def statistics(engines: Mapping[str, Engine]) -> dict[str, EngineStatistics]:
    """What each engine is doing at this moment, and its totals since it opened, by role."""
    return {role: engine.statistics() for role, engine in engines.items()}
