"""The metrics that Prometheus asks for while a run goes on; the guide lists them all."""

import re
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from pipeline.cli.metrics import RequestMetrics, RunMetrics, metrics_served
from pipeline.options import RunOptions
from pipeline.run.prepare import Prepared
from pipeline.run.run import Observer, run
from pipeline.runtime.admission.feed import Arrivals
from pipeline.runtime.executor import Executor
from pipeline.serve.desk import Desk, ServeLimits
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems

GUIDE = ROOT / "docs/pages/guides/observability.md"


@pytest.mark.slow
def test_metrics_of_a_run_that_goes_on(tmp_path: Path) -> None:
    found: list[Metric] = [*RequestMetrics(Desk(Arrivals(), ServeLimits(), "</think>")).collect()]
    pages: list[str] = []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]

    def asked() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            text: str = reply.read().decode()
        return text

    @contextmanager
    def watch(run: Prepared, work: Executor) -> Iterator[None]:
        """Ask when the run has begun and when it ends."""
        pages.append(asked())
        yield
        pages.append(asked())
        found.extend(RunMetrics(run.plan, run.record.input.chains, work).collect())

    with metrics_served("127.0.0.1", port, Observer(watch=watch)) as observer:
        problems = (str(write_problems(tmp_path)),)
        result = run(RunOptions(graph=ROOT / "graphs/speccot.yaml", engines=SIM, input=problems, output=tmp_path / "run"), observer)
    before, after = pages
    assert "pipeline:chains 12.0" in before
    assert 'pipeline:chains_ended_total{outcome="done"} 0.0' in before
    assert 'pipeline:chains_ended_total{outcome="done"} 12.0' in after
    assert f"pipeline:chains_correct_total {float(result.run.totals.correct)}" in after
    tokens = result.run.engine_statistics["target"].output_tokens
    assert f'pipeline:generation_tokens_total{{engine="target",model_name="QwQ-32B"}} {float(tokens)}' in after
    with pytest.raises(OSError, match="refused"):
        asked()
    names = {f"{metric.name}_total" if metric.type == "counter" else metric.name for metric in found}
    assert set(re.findall(r"`(pipeline:[a-z_]+)(?:\{\w+\})?`", GUIDE.read_text())) == names
