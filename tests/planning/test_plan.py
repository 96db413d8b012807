"""Plans on simulated engines: what is predicted from a pilot is what a run then takes, and nothing that is discarded would be the best."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.calibration.calibrate import calibrate
from pipeline.cli.main import run_command
from pipeline.cli.study.plan import write_choice
from pipeline.engines.placement.machines import machine_named
from pipeline.engines.sim.spec import SimSpec
from pipeline.errors import UsageError
from pipeline.graph.spec import Price
from pipeline.planning.chains import PilotChain, read_chains
from pipeline.planning.check import check
from pipeline.planning.estimate import Pilot, bound, correction, drawn, estimate, interval, split_by_use
from pipeline.planning.loop import ClosedLoop, bound_s
from pipeline.planning.machine import resplit
from pipeline.planning.plan import PlanFile, PlanOptions, cost_of, make_plan
from pipeline.session.observer import Observer
from pipeline.session.run import SessionResult
from pipeline.sweep.plan import SweepOptions
from tests.support.paths import ROOT, SIM
from tests.support.requests import request, write_batch
from tests.support.runs import solve_short, write_problems

SHORT = ("engines.*.text.steps_mean=4",)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[int, SessionResult]:
    """The same problems at two batch sizes."""
    folder = tmp_path_factory.mktemp("recorded")
    problems = write_problems(folder, 24)
    return {size: solve_short(folder, f"b{size}", input=problems, batch_size=size, settings=SHORT) for size in (2, 8)}


def parts(result: SessionResult) -> tuple[Any, list[PilotChain]]:
    assert result.folder is not None
    return result.run.plan.engines, read_chains(result.folder)


@pytest.mark.parametrize("source", [2, 8])
@pytest.mark.parametrize("size", [2, 8])
def test_the_closed_loop_takes_as_long_as_the_run(recorded: dict[int, SessionResult], source: int, size: int) -> None:
    specs, chains = parts(recorded[source])
    loop = ClosedLoop(specs, chains, size).run()
    assert loop.seconds == pytest.approx(recorded[size].run.wall_time_s, rel=0.01)
    assert bound_s(specs, chains, size) <= loop.seconds


def test_a_longer_run_goes_on_at_the_pace_of_a_shorter_one(recorded: dict[int, SessionResult]) -> None:
    specs, chains = parts(recorded[8])
    pilot = Pilot(chains=tuple(chains))
    found = estimate(pilot, specs, 8, 240, 1.0)
    assert found.seconds == pytest.approx(ClosedLoop(specs, drawn(chains, 240, seed=1), 8).run().seconds, rel=0.05)
    assert found.low_s < found.seconds < found.high_s
    assert found.fixed_s + 240 * found.chain_s == pytest.approx(found.seconds)
    assert estimate(pilot, specs, 8, 240, 2.0).seconds == pytest.approx(2 * found.seconds)


def test_a_longer_run_has_no_longer_chain(recorded: dict[int, SessionResult]) -> None:
    specs, chains = parts(recorded[8])
    many = drawn(chains, 480)
    assert bound(Pilot(chains=tuple(chains)), specs, 480, 480, 1.0) <= ClosedLoop(specs, many, 480).run().seconds


def test_a_run_is_corrected_by_its_own_chains(recorded: dict[int, SessionResult]) -> None:
    specs, chains = parts(recorded[8])
    own = parts(recorded[2])[1]
    pilot = Pilot(chains=tuple(chains[:3]), walls={2: (recorded[2].run.wall_time_s or 0.0, tuple(own))})
    assert pilot.corrections(specs)[2] == pytest.approx(1.0, rel=0.01)


@pytest.mark.slow
def test_the_rates_of_a_pilot_are_found_again(recorded: dict[int, SessionResult]) -> None:
    runs = [recorded[size].folder for size in (8, 2)]
    [fit] = calibrate([run for run in runs if run is not None], 100).fits.values()
    assert fit.error < 0.1
    true = recorded[8].run.plan.engines["target"]
    assert isinstance(true, SimSpec)
    assert fit.device.bytes_per_s == pytest.approx(true.device.bytes_per_s, rel=0.1)


def test_a_small_cache_lets_chains_wait(recorded: dict[int, SessionResult]) -> None:
    specs, chains = parts(recorded[8])
    most = max(chain.peak("target") for chain in chains)
    small = dict(specs) | {"target": structs.replace(specs["target"], kv_cache_tokens=2 * most)}
    free, tight = (ClosedLoop(each, chains, 8).run() for each in (specs, small))
    assert (free.waited, tight.waited) == (False, True)
    assert tight.seconds > free.seconds


def test_a_memory_split_by_use_fills_both_caches_with_as_many_chains(recorded: dict[int, SessionResult]) -> None:
    specs, chains = parts(recorded[8])
    most = {role: max(chain.peak(role) for chain in chains) for role in specs}
    places = {"target": 2, "draft": 60}
    small = {role: structs.replace(spec, max_model_len=16, kv_cache_tokens=most[role] * places[role]) for role, spec in specs.items()}
    split = split_by_use(chains, small)
    whole, other = (sum(spec.kv_cache_tokens * spec.kv_bytes_per_token for spec in each.values()) for each in (small, split))
    assert other == pytest.approx(whole, rel=0.001)
    shares = [spec.kv_cache_tokens / sum(chain.peak(role) for chain in chains) for role, spec in split.items()]
    assert shares == pytest.approx([shares[0]] * len(shares), rel=0.01)
    assert ClosedLoop(split, chains, 8).run().seconds < ClosedLoop(small, chains, 8).run().seconds


def test_a_split_of_the_memory_is_what_the_engines_then_get() -> None:
    machine = machine_named("1xH100-80GB")
    asked = {role: {"gpu_memory_utilization": share} for role, share in (("target", 0.8), ("draft", 0.15))}
    known = {
        role: {"device": {"name": "0"}, "kv_cache_tokens": 100_000, "kv_bytes_per_token": size}
        for role, size in (("target", 262_144.0), ("draft", 28_672.0))
    }
    found = resplit(asked, known, {"target": 110_000, "draft": 8_572}, machine)
    gpu_bytes = machine.gpus[0].memory_bytes or 0
    more = 10_000 * 262_144 / gpu_bytes
    assert found["target"]["gpu_memory_utilization"] == pytest.approx(0.8 + more, abs=0.001)
    assert found["draft"]["gpu_memory_utilization"] == pytest.approx(0.15 - more, abs=0.001)


def test_more_problems_narrow_the_interval(recorded: dict[int, SessionResult]) -> None:
    specs, chains = parts(recorded[8])
    low, high = interval(chains, specs, 1000)
    assert low < 1 < high
    few_low, few_high = interval(chains[:6], specs, 1000)
    assert few_high - few_low > high - low
    assert interval(chains[:1], specs, 10) == (0.0, float("inf"))


def test_a_correction_is_between_those_of_the_nearest_batch_sizes() -> None:
    known = {2: 1.0, 8: 4.0}
    assert [correction(known, size) for size in (1, 2, 4, 8, 64)] == pytest.approx([1.0, 1.0, 2.0, 4.0, 4.0])
    assert correction({}, 8) == 1.0


def test_tokens_and_hours_cost() -> None:
    counted = {"target": (2_000_000, 1_000_000, 500_000), "draft": (0, 0, 1_000_000)}
    prices = {"target": Price(input=1.0, cached_input=0.5, output=4.0, hour=2.0), "draft": None}
    assert cost_of(counted, prices, 10.0, 1800.0) == pytest.approx(1.0 + 0.5 + 2.0 + 1.0 + 5.0)
    assert cost_of(counted, {"draft": None}, None, 1800.0) is None


def planned(folder: Path, problems: Path | None = None, **options: Any) -> PlanFile:
    problems = problems or write_problems(folder, 60)
    given = SweepOptions(
        graphs=(ROOT / "graphs/speccot.yaml",), input=problems, engines=(SIM,), batch_sizes=(1, 8), settings=SHORT, variants=(), workers=1
    )
    (folder / "plan").mkdir(exist_ok=True)
    return make_plan(PlanOptions(sweep=given, folder=folder / "plan", pilot=24, **options), Observer())


@pytest.mark.slow
def test_a_plan_is_beside_the_run_that_it_predicted(tmp_path: Path) -> None:
    plan = planned(tmp_path, price=3.0)
    assert PlanFile.read(tmp_path / "plan") == plan
    best = plan.best
    assert best.estimate is not None
    assert best.cost == pytest.approx(best.estimate.seconds / 3600 * 3)
    simulated = [each for each in plan.configurations if each.estimate is not None]
    assert best.estimate.seconds == min(each.estimate.seconds for each in simulated if each.estimate)
    discarded = [each for each in plan.configurations if each.estimate is None]
    assert discarded, "one at a time is hopeless"
    assert all(each.at_least_s > best.estimate.seconds for each in discarded)
    run = solve_short(tmp_path, "full", input=tmp_path / "problems.jsonl", batch_size=8, settings=SHORT)
    assert run.folder is not None
    found, figures = check(plan, run.folder)
    assert (found.batch_size, found.sharing) == (8, "time_slices")
    assert {each.name for each in figures} == {"seconds", "tokens sampled by target", "tokens sampled by draft"}
    assert all(abs(each.error or 0) < 0.15 for each in figures)
    other = solve_short(tmp_path, "other", input=tmp_path / "problems.jsonl", batch_size=3, settings=SHORT)
    assert other.folder is not None
    with pytest.raises(UsageError, match="the plan has no prediction of speccot at batch size 3"):
        check(plan, other.folder)


@pytest.mark.slow
def test_requests_that_say_how_many_chains_they_have_are_planned_with_as_many(tmp_path: Path) -> None:
    lines = [request(f"p{k}", f"{k}+{k}?", **({"n": 3} if k % 2 else {})) for k in range(40)]
    assert planned(tmp_path, write_batch(tmp_path / "batch.jsonl", lines)).chains == 80


@pytest.mark.slow
def test_the_command_writes_what_the_run_needs_and_uses_a_pilot_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems, out = write_problems(tmp_path, 12), tmp_path / "plan"
    command = [
        "plan",
        "speccot",
        "-i",
        str(problems),
        "--engines",
        str(SIM),
        "--vary",
        "candidates=1,3",
        "--batch-size",
        "4",
        "--pilot",
        "6",
    ]
    assert run_command([*command, "-o", str(out), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "assumed: those of the engines file" in said
    pilots = {path.name: path.stat().st_mtime_ns for path in (out / "pilot-b4/runs").iterdir()}
    assert run_command([*command, "-o", str(out), "--quiet"]) == 0
    assert pilots == {path.name: path.stat().st_mtime_ns for path in (out / "pilot-b4/runs").iterdir()}
    run = next(line for line in said.splitlines() if line.startswith("run "))
    assert run_command([*shlex.split(run)[2:], "--output", str(tmp_path / "run"), "--quiet"]) == 0
    capsys.readouterr()
    assert run_command(["plan", str(out), "--check", str(tmp_path / "run")]) == 0
    assert "seconds" in capsys.readouterr().out
    found = PlanFile.read(out)
    shared = structs.replace(found, configurations=tuple(each for each in found.configurations if each.sharing == "mps"))
    run = write_choice(shared, out, {}, SweepOptions(graphs=(), input=problems, batch_sizes=(4,)))
    assert run_command([*shlex.split(run)[1:], "--output", str(tmp_path / "shared"), "--quiet"]) == 0
    assert check(shared, tmp_path / "shared")[0] == shared.best, "it shares the device as planned"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--input: name the file of problems"),
        (["-i", "PROBLEMS", "--as", "2xH100-80GB"], "--as 2xH100-80GB: needs the models"),
        (
            ["-i", "PROBLEMS", "--as", "2xRTX4090-24GB", *(f"--model={r}=bundled:tiny-{r}" for r in ("target", "draft"))],
            "no rates of this GPU",
        ),
        (["-i", "PROBLEMS", "--as", "2xH100-80GB", *(f"--model={r}=MODEL" for r in ("target", "draft"))], "config.json"),
        (["--check", "NOTHING"], "speccot/plan.json: is no plan of `pipeline plan`"),
    ],
)
def test_what_cannot_be_planned_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "model-7b").mkdir()
    names = {"PROBLEMS": write_problems(tmp_path, 4), "MODEL": tmp_path / "model-7b", "NOTHING": tmp_path / "nothing"}
    for name, path in names.items():
        arguments = [each.replace(name, str(path)) for each in arguments]
    assert run_command(["plan", "speccot", *arguments, "-o", str(tmp_path / "plan")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert sum(line.startswith("error: ") for line in said.splitlines()) == 1
