"""Fitting simulated engines to runs: rates that made a run are found again, lengths come back, the file is one that runs."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.analysis.facts import engine_facts
from pipeline.analysis.summary import summarize
from pipeline.calibration.calibrate import Calibration, calibrate, engines_file
from pipeline.calibration.fit import error_of, simulate
from pipeline.calibration.recorded import CORRELATION, TimedCall, accuracy_for, durations, read_calls, read_texts, undisturbed
from pipeline.engines.models import read_json
from pipeline.engines.sim.spec import SimDeviceSpec
from pipeline.errors import InputError, UsageError
from pipeline.run.prepare import load_plan
from pipeline.run.run import run
from pipeline.show.sections import notices
from pipeline.store.run_file import RunFile
from tests.support.paths import ROOT, SIM
from tests.support.replicas import options_of, replica_run
from tests.support.run_files import edit_engines
from tests.support.runs import solve, write_problems

pytestmark = pytest.mark.slow  # whole runs

SPECCOT = ROOT / "graphs/speccot.yaml"
OWN = {"flops_per_s": 6e14, "sequence_s": 3e-4}
SETTINGS = tuple(f"engines.*.device.{name}={rate}" for name, rate in OWN.items())
TORCH = {"backend": "torch", "max_in_flight": 4, "max_num_seqs": 4}
TRUE = SimDeviceSpec(name="h100-0+1", bytes_per_s=4.82e12, overhead_s=0.0032, **OWN)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run at batch size 1 and one at 16."""
    folder = tmp_path_factory.mktemp("recorded")
    given: dict[str, Any] = {"input": write_problems(folder, 24), "settings": SETTINGS}
    return [solve(folder, f"b{size}", batch_size=size, limit=limit, **given).folder for size, limit in ((1, 8), (16, 24))]


@pytest.fixture(scope="module")
def fitted(recorded: list[Path]) -> Calibration:
    """Fitted to 120 calls of each engine."""
    return calibrate(recorded, max_calls=120)


def test_the_rates_that_made_a_run_are_found_again_and_explain_it(recorded: list[Path], fitted: Calibration) -> None:
    """Calls of the target may change places where several come at once, and then those after them do."""
    [device] = {spec.device for spec in fitted.specs.values()}
    for name in ("flops_per_s", "bytes_per_s", "overhead_s", "sequence_s"):
        assert getattr(device, name) == pytest.approx(getattr(TRUE, name), rel=0.25), name
    assert device.fit_error is not None
    assert device.fit_error < 0.12
    assert fitted.specs.keys() == {"draft", "target"}
    calls, specs = read_calls(recorded[1], 10_000), load_plan(SPECCOT, SIM, SETTINGS).engines
    simulated = simulate(specs, calls)  # type: ignore[arg-type]
    assert np.median(np.abs(simulated["draft"] / durations(calls["draft"]) - 1)) < 1e-2
    assert error_of(specs, [calls]) < 0.1  # type: ignore[arg-type]
    slower = {role: msgspec.structs.replace(spec, device=msgspec.structs.replace(TRUE, overhead_s=0.0064)) for role, spec in specs.items()}
    assert error_of(slower, [calls]) > error_of(specs, [calls]) + 0.1  # type: ignore[arg-type]


def test_of_replicas_the_calls_of_one_are_read(tmp_path: Path) -> None:
    """They are those of the run that the shard is."""
    together = replica_run(tmp_path, 2)
    assert run(options_of(tmp_path, "shard", tmp_path / "problems.jsonl", shard="0/2")).exit_code == 0
    assert read_calls(together, 10_000) == read_calls(tmp_path / "shard", 10_000)


def test_the_file_gives_about_the_same_run_beside_which_its_error_stands(recorded: list[Path], fitted: Calibration, tmp_path: Path) -> None:
    (path := tmp_path / "calibration.yaml").write_text(engines_file(fitted))
    folder = solve(tmp_path, "again", input=write_problems(tmp_path, 24), engines=path, batch_size=16).folder
    again, first = summarize(folder), summarize(recorded[1])
    assert again.acceptance_rate == pytest.approx(first.acceptance_rate, abs=0.08)
    assert again.thought_tokens == pytest.approx(first.thought_tokens, rel=0.35)
    file = RunFile.read(folder)
    [error] = {facts.fit_error for facts in engine_facts(file).values()}
    assert error == pytest.approx(fitted.specs["draft"].device.fit_error, rel=1e-5)
    assert f"off by {error:.1%} on average" in notices(file, "finished")[1]
    assert {spec.parameters for spec in file.plan.engines.values()} == {3.28e10, 1.78e9}  # type: ignore[attr-defined]


def test_calls_are_read_up_to_the_moment_at_which_one_engine_has_enough(recorded: list[Path]) -> None:
    calls, whole = read_calls(recorded[1], 30), read_calls(recorded[1], 10_000)
    until = min(listed[29].submit_s for listed in calls.values() if len(listed) == 30)
    for role, listed in whole.items():
        assert len(calls[role]) in range(sum(call.submit_s < until for call in listed), 31)
    draft = whole["draft"][0]
    assert (len(draft.lengths), draft.cached_tokens < draft.input_tokens) == (5, True)


def test_texts_are_those_of_the_tables(recorded: list[Path]) -> None:
    summary = summarize(recorded[1])
    texts = read_texts(recorded[1], RunFile.read(recorded[1]).plan, ("draft", "target"))
    assert texts["draft"].answer_tokens == 42  # 40, a blank line before, the end of the sequence after
    assert texts["draft"].steps_mean == pytest.approx((summary.steps - 24) / 24)  # guidance is step 0
    assert texts["draft"].step_accuracy < texts["target"].step_accuracy == 1.0


def test_an_accuracy_gives_the_acceptance_that_it_is_for() -> None:
    for candidates in (1, 2.5, 5):
        accuracy = accuracy_for(0.9, candidates, CORRELATION)
        wrong = CORRELATION * (1 - accuracy) + (1 - CORRELATION) * (1 - accuracy) ** candidates
        assert wrong == pytest.approx(0.1, abs=1e-5)
    assert accuracy_for(1.0, 5, CORRELATION) == 1.0
    assert accuracy_for(0.0, 5, CORRELATION) == 0.0


def test_what_cannot_be_calibrated_with_is_refused(recorded: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = write_problems(tmp_path, 2)
    other = solve(tmp_path, "other", input=problems, settings=("engines.draft.max_in_flight=3",)).folder
    with pytest.raises(UsageError, match=r"other: its engine '(draft|target)' differs from .*b1; use runs on the same engines"):
        calibrate([recorded[0], other])
    instant = solve(tmp_path, "instant", input=problems, engines=ROOT / "graphs/engines/sim-instant.yaml").folder
    with pytest.raises(InputError, match=r"instant: no call of engine '\w+' took time, so there is nothing to calibrate with$"):
        calibrate([instant])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    edit_engines(other, target=TORCH | {"model": "nobody/nothing"})
    with pytest.raises(InputError, match=r"engine 'target': the size of 'nobody/nothing' is not known; calibrate where"):
        calibrate([other])


def test_sizes_and_layers_are_those_of_the_models_files(recorded: list[Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(recorded[1], tmp_path / "copy"))
    edit_engines(copy, **{role: TORCH | {"model": f"bundled:tiny-{role}"} for role in RunFile.read(copy).engines})
    for role, spec in calibrate([copy], max_calls=20).specs.items():
        assert spec.layers == read_json(ROOT / f"pipeline/models/tiny-{role}/config.json")["num_hidden_layers"]


def test_calls_count_that_took_time_were_undisturbed_and_of_which_is_known_what_they_computed() -> None:
    def counted(*calls: tuple[float, int | None]) -> list[bool]:
        timed = [TimedCall("s", float(start), took, 10, cached, (5,)) for start, (took, cached) in enumerate(calls)]
        return list(map(bool, undisturbed({"a": timed})["a"]))

    assert counted((0.0, 0), (0.5, 0), (0.5, None), (0.5, 3), (0.5, 0)) == [False, True, False, True, False]
    assert counted((0.5, None), (0.5, None), (0.5, 0)) == [False, False, True]
    assert counted((0.5, None), (0.0, None), (0.5, None)) == [True, False, True]
