"""The guide lists the metrics that a run and a server give out."""

import re
from pathlib import Path

from msgspec import structs
from prometheus_client.core import Metric

from pipeline.cli.metrics import RequestMetrics, RunMetrics
from pipeline.runtime.admission.feed import Arrivals
from pipeline.serve.desk import Desk, ServeLimits
from pipeline.session.observer import SOLVING, Observer, ReplicaState, View
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems

GUIDE = ROOT / "docs/pages/guides/observability.md"


def test_the_guide_lists_every_metric(tmp_path: Path) -> None:
    found: list[Metric] = [*RequestMetrics(Desk(Arrivals(), ServeLimits(), "</think>")).collect()]

    class Watch:
        """Collects the metrics of the run at its end."""

        def __init__(self, view: View) -> None:
            self._view = view

        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            statistics = {role: engine.statistics() for role, engine in self._view.engines.items()}
            replica = ReplicaState(number=0, node="n", what=SOLVING, statistics=statistics)
            for view in (self._view, structs.replace(self._view, replicas=lambda: [replica])):
                found.extend(RunMetrics(view).collect())

    options = RunOptions(graph=ROOT / "graphs/speccot.yaml", engines=SIM, input=write_problems(tmp_path, 2), output=tmp_path / "run")
    run(options, Observer(watch=Watch))
    names = {f"{metric.name}_total" if metric.type == "counter" else metric.name for metric in found}
    assert set(re.findall(r"`(pipeline:[a-z_]+)(?:\{\w+\})?`", GUIDE.read_text())) == names
