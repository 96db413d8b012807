"""The metrics that Prometheus asks for while a run goes on; the guide lists them all."""

import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from pipeline.cli.metrics import RequestMetrics, RunMetrics, metrics_served
from pipeline.options import RunOptions
from pipeline.run.observer import Observer
from pipeline.run.prepare import Prepared
from pipeline.run.run import run
from pipeline.runtime.admission.feed import Arrivals
from pipeline.runtime.executor import Executor
from pipeline.serve.desk import Desk, ServeLimits
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems

GUIDE = ROOT / "docs/pages/guides/observability.md"


def test_the_guide_lists_every_metric(tmp_path: Path) -> None:
    found: list[Metric] = [*RequestMetrics(Desk(Arrivals(), ServeLimits(), "</think>")).collect()]

    class Watch:
        """Collects the metrics of the run at its end."""

        def __init__(self, run: Prepared, work: Executor) -> None:
            self._metrics = RunMetrics(run.plan, run.record.input.chains, work)

        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            found.extend(self._metrics.collect())

    options = RunOptions(
        graph=ROOT / "graphs/speccot.yaml", engines=SIM, input=(str(write_problems(tmp_path, 2)),), output=tmp_path / "run"
    )
    run(options, Observer(watch=Watch))
    names = {f"{metric.name}_total" if metric.type == "counter" else metric.name for metric in found}
    assert set(re.findall(r"`(pipeline:[a-z_]+)(?:\{\w+\})?`", GUIDE.read_text())) == names


@pytest.mark.slow
def test_metrics_of_a_run_that_goes_on(tmp_path: Path) -> None:
    pages: list[str] = []

    class Watch:
        """Asks for the metrics when the run has begun and when it ends."""

        def __init__(self, run: Prepared, work: Executor) -> None:
            pass

        def __enter__(self) -> None:
            pages.append(asked())

        def __exit__(self, *error: object) -> None:
            pages.append(asked())

    def asked() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            text: str = reply.read().decode()
        return text

    port = free_port()
    with metrics_served("127.0.0.1", port, Observer(watch=Watch)) as observer:
        options = RunOptions(
            graph=ROOT / "graphs/speccot.yaml", engines=SIM, input=(str(write_problems(tmp_path)),), output=tmp_path / "run"
        )
        result = run(options, observer)
    before, after = pages
    assert "pipeline:chains 12.0" in before
    assert 'pipeline:chains_ended_total{outcome="done"} 0.0' in before
    assert 'pipeline:chains_ended_total{outcome="done"} 12.0' in after
    assert f"pipeline:chains_correct_total {float(result.run.totals.correct)}" in after
    tokens = result.run.engine_statistics["target"].output_tokens
    assert f'pipeline:generation_tokens_total{{engine="target",model_name="QwQ-32B"}} {float(tokens)}' in after
    with pytest.raises(OSError, match="refused"):
        asked()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
