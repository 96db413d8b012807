"""The metrics that a run and a server give out: the dashboard for Grafana asks for all of them and no others, and the guide lists them."""

import json
import re
from itertools import combinations
from typing import Any

import pytest
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
DASHBOARD: dict[str, Any] = json.loads((GUIDE.parent / "grafana.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
TARGETS = [target for panel in PANELS for target in panel.get("targets", ())]
NAME = re.compile(r"pipeline:[a-z_]+")
ADDED = {"job", "instance"}
"""Labels that Prometheus adds."""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of every metric that a run, one on replicas and a server give out, by its name in Prometheus."""
    folder = tmp_path_factory.mktemp("metrics")
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

    options = RunOptions(graph=ROOT / "graphs/speccot.yaml", engines=SIM, input=write_problems(folder, 2), output=folder / "run")
    run(options, Observer(watch=Watch))
    labels: dict[str, set[str]] = {}
    for metric in found:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels.setdefault(name, set()).update(label for sample in metric.samples for label in sample.labels)
    return labels


def test_the_dashboard_has_every_metric_and_no_other(given: dict[str, set[str]]) -> None:
    assert {name for target in TARGETS for name in NAME.findall(target["expr"])} == given.keys()
    asked = {name for variable in DASHBOARD["templating"]["list"] for name in NAME.findall(json.dumps(variable))}
    assert asked <= given.keys()
    assert asked


def test_the_dashboard_asks_for_labels_that_its_metrics_have(given: dict[str, set[str]]) -> None:
    for target in TARGETS:
        text = target["expr"]
        names = NAME.findall(text)
        for inside in re.findall(r"\{([^{}]*)\}", text):
            assert set(re.findall(r'(\w+)=~?"', inside)) - ADDED <= set.intersection(*(given[name] for name in names)), text
        by = {label for group in re.findall(r"by \(([^)]*)\)", text) for label in group.split(", ")}
        assert by <= set.intersection(*(given[name] for name in names)), text
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == by, text


def test_every_rate_is_of_a_counter(given: dict[str, set[str]]) -> None:
    counters = {name for name in given if name.endswith("_total")}
    rates = {name for target in TARGETS for name in re.findall(r"rate\((pipeline:[a-z_]+)", target["expr"])}
    assert rates
    assert rates <= counters


def test_panels_lie_side_by_side_and_ask_the_chosen_source() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    places = [panel["gridPos"] for panel in PANELS]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for a, b in combinations(places, 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart, (a, b)
    assert {panel["datasource"]["uid"] for panel in PANELS if panel["type"] != "row"} == {"${datasource}"}
    known = {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    used = {name for target in TARGETS for name in re.findall(r"\$\{?(\w+)", json.dumps(target))}
    assert used == known


def test_the_guide_lists_every_metric(given: dict[str, set[str]]) -> None:
    assert set(re.findall(r"`(pipeline:[a-z_]+)(?:\{\w+\})?`", GUIDE.read_text())) == given.keys()
