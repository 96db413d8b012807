"""Metrics of a run for Prometheus, on a port of this machine: the `Executor` of the run is read whenever they are asked for.

Engines have the metrics that vLLM's server has, under the same names with `pipeline` for `vllm`, and with the label `engine`
next to `model_name` (https://docs.vllm.ai/en/stable/usage/metrics): a dashboard for vLLM fits once its prefix is changed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import structs
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.errors import UsageError, reason
from pipeline.graph.plan import Plan
from pipeline.run.prepare import Prepared
from pipeline.run.run import Observer
from pipeline.runtime.executor import Executor
from pipeline.serve.desk import Desk

COUNTERS = {
    "prompt_tokens": ("input_tokens", "Prompt tokens of answered requests."),
    "prefix_cache_hits": ("cached_input_tokens", "Prompt tokens from the prefix cache."),
    "generation_tokens": ("output_tokens", "Generated tokens of answered requests."),
    "request_success": ("requests", "Answered requests."),
    "engine_restarts": ("restarts", "Number of times the engine died and was restarted."),
}
"""Counts of engines: name, the field of `EngineStatistics`, and help."""
LABELS = ["engine", "model_name"]


class RunMetrics(Collector):
    """The metrics of a run."""

    def __init__(self, plan: Plan, chains: int, work: Executor) -> None:
        """`chains`: of the whole run."""
        self._plan, self._chains, self._work = plan, chains, work

    def collect(self) -> Iterator[Metric]:
        work, progress = self._work, self._work.progress
        yield GaugeMetricFamily("pipeline:chains", "Chains of the run.", self._chains)
        yield GaugeMetricFamily("pipeline:chains_in_flight", "Chains that have begun and have not ended.", progress.live)
        yield GaugeMetricFamily("pipeline:chains_paused", "Chains in flight that wait for room in a KV cache.", progress.paused)
        yield CounterMetricFamily("pipeline:chains_graded", "Chains whose answers were compared with their references.", progress.graded)
        yield CounterMetricFamily("pipeline:chains_correct", "Graded chains whose answers are right.", progress.correct)
        yield CounterMetricFamily("pipeline:kept_tokens", "Tokens kept since this process began.", progress.kept_tokens)
        ended = {("done",): progress.done, ("failed",): progress.failed}
        yield _filled(CounterMetricFamily("pipeline:chains_ended", "Ended chains, earlier sessions included.", labels=["outcome"]), ended)
        steps = {(decision,): count for decision, count in progress.decisions.items()}
        yield _filled(CounterMetricFamily("pipeline:steps", "Committed steps, by how they came about.", labels=["decision"]), steps)
        named = {role: (role, str(getattr(self._plan.engines[role], "model", role))) for role in work.engines}
        running, waiting = ({named[role]: getattr(work.lanes[role], count) for role in named} for count in ("in_flight", "waiting"))
        yield _filled(GaugeMetricFamily("pipeline:num_requests_running", "Requests that the engine has.", labels=LABELS), running)
        yield _filled(GaugeMetricFamily("pipeline:num_requests_waiting", "Requests that wait here, not yet sent.", labels=LABELS), waiting)
        statistics = {named[role]: engine.statistics() for role, engine in work.engines.items()}
        for name, (field, what) in COUNTERS.items():
            counts = {labels: getattr(each, field) for labels, each in statistics.items()}
            yield _filled(CounterMetricFamily(f"pipeline:{name}", what, labels=LABELS), counts)


def _filled(metric: GaugeMetricFamily | CounterMetricFamily, counts: Mapping[Any, float | None]) -> Metric:
    """The metric with those of the `counts`, by the values of its labels, that are known."""
    for labels, count in counts.items():
        if count is not None:
            metric.add_metric(labels, count)
    return metric


class RequestMetrics(Collector):
    """The metrics of the requests at a server's desk."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def collect(self) -> Iterator[Metric]:
        desk = self._desk
        yield GaugeMetricFamily("pipeline:requests_waiting", "Chains of requests that have not begun.", desk.waiting)
        yield CounterMetricFamily("pipeline:requests_taken", "Requests that were taken.", desk.taken)
        yield CounterMetricFamily("pipeline:requests_refused", "Requests that were refused because too many waited.", desk.refused)


def served_metrics(plan: Plan, work: Executor | None, desk: Desk) -> tuple[bytes, str]:
    """What Prometheus reads of a server of `plan`, and its media type; of the run nothing while its engines start."""
    registry = CollectorRegistry()
    registry.register(RequestMetrics(desk))
    if work is not None:
        registry.register(RunMetrics(plan, desk.chains, work))
    return generate_latest(registry), CONTENT_TYPE_LATEST


@contextmanager
def metrics_served(host: str, port: int, observer: Observer) -> Iterator[Observer]:
    """Serve the metrics of the run that the observer watches, at this address, until the block ends; gives the observer to run with.

    Raises `UsageError` where the address cannot be listened on.
    """
    registry = CollectorRegistry()
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise UsageError(f"--metrics-port {port}: cannot listen on {host}: {reason(error)}") from error

    @contextmanager
    def watch(run: Prepared, work: Executor) -> Iterator[None]:
        registry.register(metrics := RunMetrics(run.plan, run.record.input.chains, work))
        try:
            with observer.watch(run, work):
                yield
        finally:
            registry.unregister(metrics)

    try:
        yield structs.replace(observer, watch=watch)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
