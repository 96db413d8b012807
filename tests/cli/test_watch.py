"""`pipeline watch`: how far a run is, from its folder alone; and the metrics that Prometheus asks for while it goes on."""

import json
import socket
import urllib.request
from pathlib import Path

import pytest

from pipeline.analysis.progress import run_progress
from pipeline.cli.metrics import metrics_served
from pipeline.session.observer import Observer, View
from pipeline.session.options import RunOptions
from pipeline.session.run import run as start
from tests.support.commands import pipeline
from tests.support.paths import ROOT, SIM
from tests.support.runs import rows, solve_short, write_problems


def test_counts_are_those_of_the_tables(tmp_path: Path) -> None:
    result = solve_short(tmp_path, input=write_problems(tmp_path, 12, (b'{"problem_id": "bad"}',)))
    found = run_progress(result.folder)
    assert (found.state, found.chains, found.done, found.failed, found.over) == ("finished", 13, 12, 1, 13)
    assert (found.steps, found.calls) == (len(rows(result, "steps")), len(rows(result, "calls")))
    assert (found.graded, found.correct) == (result.run.totals.graded, result.run.totals.correct)


def test_one_look(tmp_path: Path) -> None:
    folder = solve_short(tmp_path).folder
    done = pipeline("watch", folder)
    assert done.returncode == 0
    assert done.stdout.startswith("run: finished, 12/12 chains · 0 failed · ")
    assert json.loads(pipeline("watch", folder, "--json").stdout)["done"] == 12
    assert "no such directory; expected a run folder" in pipeline("watch", tmp_path / "nothing").stderr


@pytest.mark.slow
def test_metrics_of_a_run_that_goes_on(tmp_path: Path) -> None:
    pages: list[str] = []

    class Watch:
        """Asks for the metrics when the run has begun and when it ends."""

        def __init__(self, view: View) -> None:
            self._ended = view.progress

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
        options = RunOptions(graph=ROOT / "graphs/speccot.yaml", engines=SIM, input=write_problems(tmp_path), output=tmp_path / "run")
        result = start(options, observer)
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
