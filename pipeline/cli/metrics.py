"""Metrics of a run for Prometheus, on a port of this machine: the `View` of the run is read whenever they are asked for.

Engines have the metrics that vLLM's server has, under the same names with `pipeline` in place of `vllm`, and with the label `engine`
next to `model_name` (https://docs.vllm.ai/en/stable/usage/metrics): a dashboard for vLLM fits once its prefix is changed.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec import structs
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.engine import EngineStatistics
from pipeline.errors import UsageError, reason
from pipeline.session.observer import SOLVING, Observer, View


class RunMetrics(Collector):
    """The metrics of the run of a view."""

    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterable[Metric]:
        yield from self._chains()
        yield from self._steps()
        yield from self._engines()
        yield from self._replicas()

    def _chains(self) -> Iterator[Metric]:
        view, progress = self._view, self._view.progress
        yield GaugeMetricFamily("pipeline:chains", "Chains of the run.", view.chains)
        yield GaugeMetricFamily("pipeline:chains_in_flight", "Chains that have begun and have not ended.", progress.live)
        paused = 0 if view.admission is None else view.admission.paused
        yield GaugeMetricFamily("pipeline:chains_paused", "Chains in flight that wait for room in a KV cache.", paused)
        ended = CounterMetricFamily("pipeline:chains_ended", "Chains that have ended, earlier sessions included.", labels=["outcome"])
        ended.add_metric(["done"], progress.done)
        ended.add_metric(["failed"], progress.failed)
        yield ended
        graded, correct = view.graded()
        yield CounterMetricFamily("pipeline:chains_graded", "Chains whose answers were compared with their references.", value=graded)
        yield CounterMetricFamily("pipeline:chains_correct", "Graded chains whose answers are right.", value=correct)

    def _steps(self) -> Iterator[Metric]:
        steps = CounterMetricFamily("pipeline:steps", "Committed steps, by how they came about.", labels=["decision"])
        for decision, count in dict(self._view.progress.decisions).items():
            steps.add_metric([decision], count)
        yield steps
        kept = self._view.progress.kept_tokens
        yield CounterMetricFamily("pipeline:kept_tokens", "Tokens of committed steps and answers, since this process began.", value=kept)

    def _engines(self) -> Iterator[Metric]:
        labels = ["engine", "model_name", *(["replica"] if self._view.replicas() else [])]
        running = GaugeMetricFamily("pipeline:num_requests_running", "Requests that the engine computes.", labels=labels)
        waiting = GaugeMetricFamily("pipeline:num_requests_waiting", "Requests in the engine's queue.", labels=labels)
        queued = GaugeMetricFamily("pipeline:num_requests_queued", "Requests in the client queue, not yet sent.", labels=labels)
        usage = GaugeMetricFamily("pipeline:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", labels=labels)
        prompt = CounterMetricFamily("pipeline:prompt_tokens", "Prompt tokens of answered requests.", labels=labels)
        cached = CounterMetricFamily("pipeline:prefix_cache_hits", "Prompt tokens from the prefix cache.", labels=labels)
        output = CounterMetricFamily("pipeline:generation_tokens", "Generated tokens of answered requests, kept or not.", labels=labels)
        requests = CounterMetricFamily("pipeline:request_success", "Answered requests.", labels=labels)
        restarts = CounterMetricFamily("pipeline:engine_restarts", "Number of times the engine died and was restarted.", labels=labels)
        for named, found, in_lane in self._statistics():
            running.add_metric(named, found.running)
            waiting.add_metric(named, found.waiting)
            if in_lane is not None:
                queued.add_metric(named, in_lane)
            if found.kv_cache_usage is not None:
                usage.add_metric(named, found.kv_cache_usage)
            prompt.add_metric(named, found.input_tokens)
            if found.cached_input_tokens is not None:
                cached.add_metric(named, found.cached_input_tokens)
            output.add_metric(named, found.output_tokens)
            requests.add_metric(named, found.requests)
            restarts.add_metric(named, found.restarts)
        yield from (running, waiting, queued, usage, prompt, cached, output, requests, restarts)

    def _statistics(self) -> Iterator[tuple[list[str], EngineStatistics, int | None]]:
        """The labels and the statistics of each engine, and how many requests wait here; None where they wait on its replica."""
        view = self._view
        models = {role: str(getattr(spec, "model", role)) for role, spec in view.plan.engines.items()}
        for role, engine in view.engines.items():
            yield [role, models[role]], engine.statistics(), view.lanes[role].waiting
        for state in view.replicas():
            for role, statistics in state.statistics.items():
                yield [role, models[role], str(state.number)], statistics, None

    def _replicas(self) -> Iterator[Metric]:
        states = self._view.replicas()
        if not states:
            return
        solving = GaugeMetricFamily("pipeline:replica_solving", "Whether the replica's engines are open.", labels=["replica", "node"])
        live = GaugeMetricFamily("pipeline:replica_chains_in_flight", "Chains in flight on the replica.", labels=["replica", "node"])
        ended = CounterMetricFamily("pipeline:replica_chains_ended", "Chains that ended on the replica.", labels=["replica", "node"])
        for state in states:
            named = [str(state.number), state.node]
            solving.add_metric(named, state.what == SOLVING)
            live.add_metric(named, state.live)
            ended.add_metric(named, state.done)
        yield from (solving, live, ended)


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
    def watch(view: View) -> Iterator[None]:
        metrics = RunMetrics(view)
        registry.register(metrics)
        try:
            with observer.watch(view):
                yield
        finally:
            registry.unregister(metrics)

    try:
        yield structs.replace(observer, watch=watch)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
