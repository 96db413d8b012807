"""Tuning as a whole on simulated engines, what it refuses before the first run, and how settings are chosen."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from pipeline.analysis.quality.estimates import Estimate
from pipeline.analysis.tuned import FILE, Measured, Tuned, TunedSetting
from pipeline.analysis.tuned_tables import choice_of
from pipeline.errors import GraphError, UsageError
from pipeline.graph.loader import load_preset
from pipeline.session.observer import Observer
from pipeline.sweep.plan import SweepOptions
from pipeline.sweep.sweep import sweep
from pipeline.sweep.tune import TuneOptions, TuneResult, check, fewest, frontier, thinned, tune, would_do
from tests.support.paths import ROOT, SIM, TEST_SET
from tests.support.runs import write_problems

GATED, SPECCOT = ROOT / "graphs/gated.yaml", ROOT / "graphs/speccot.yaml"


def options(
    folder: Path, *, max_loss: float = 0.5, tune: tuple[str, ...] = ("sure", "threshold"), confirm: int = 2, **changes: Any
) -> TuneOptions:
    given: dict[str, Any] = {"graphs": (GATED,), "engines": (SIM,), "batch_sizes": (4,), "output": folder / "tuned", "workers": 1}
    given |= {"variants": (), "repeats": 1, "settings": ("engines.*.text.steps_mean=4", "statistic=min")} | changes
    more = {name: given.pop(name) for name in ("no_test_set",) if name in given}
    given.setdefault("input", folder / "problems.jsonl")
    if not given["input"].exists():
        write_problems(folder, 24)
    return TuneOptions(sweep=SweepOptions(**given), max_loss=max_loss, tune=tune, confirm=confirm, **more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[TuneOptions, TuneResult]:
    given = options(tmp_path_factory.mktemp("whole"), settings=("engines.*.text.steps_mean=4", "statistic=min", "temperature=0.5"))
    return given, tune(given)


@pytest.mark.slow
def test_few_runs_choose_the_fastest_setting_that_loses_little_enough(whole: tuple[TuneOptions, TuneResult]) -> None:
    given, result = whole
    tuned = result.tuned
    assert tuned is not None
    assert (tuned.problems, tuned.simulated, result.exit_code) == (24, True, 0)
    recorded = [each for each in tuned.settings if each.recorded]
    assert [each.values for each in recorded] == [{"sure": 0.0, "threshold": 9.0}]
    assert 2 <= len(tuned.measured) <= 1 + given.confirm
    assert len(list((result.folder / "runs").iterdir())) == 1 + len(tuned.measured)
    assert len(tuned.settings) > 20, "the others are predicted"
    passed = [each for each in tuned.measured if each.measured is not None and (each.measured.loss.high or 0.0) < 0.5]
    assert tuned.chosen == max(passed, key=lambda each: (each.measured.problems_per_s or 0.0) if each.measured is not None else 0.0).values
    confirmed = [each for each in tuned.measured if not each.recorded]
    for each in confirmed:
        assert each.measured is not None
        assert each.over_target == pytest.approx(each.measured.over_target, rel=0.35), "predicted from the recorded run"
        assert (each.accuracy_low or 0.0) <= (each.measured.accuracy or 0.0) <= (each.accuracy_high or 0.0)


@pytest.mark.slow
def test_the_preset_has_the_chosen_values_and_the_users_own(whole: tuple[TuneOptions, TuneResult]) -> None:
    _, result = whole
    assert result.tuned is not None
    assert result.preset == result.folder / "preset.yaml"
    assert load_preset(result.preset).set == {"statistic": "min", "temperature": 0.5, "method": "greedy", **(result.tuned.chosen or {})}
    assert msgspec.json.decode((result.folder / FILE).read_bytes(), type=Tuned) == result.tuned


@pytest.mark.slow
def test_tuning_is_resumed_without_a_run(whole: tuple[TuneOptions, TuneResult]) -> None:
    given, result = whole
    stamps = {path: path.stat().st_mtime_ns for path in result.folder.rglob("*.parquet") if "runs" in path.parts}
    again = tune(structs.replace(given, sweep=structs.replace(given.sweep, resume=True)))
    assert again.tuned == result.tuned
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


def resumed(given: TuneOptions, result: TuneResult, copy: Path, **changes: Any) -> TuneOptions:
    """Options that resume in a copy of what `result` left."""
    shutil.copytree(result.folder, copy)
    return structs.replace(given, sweep=structs.replace(given.sweep, output=copy, resume=True), **changes)


@pytest.mark.slow
@pytest.mark.parametrize("confirm", [1, 3])
def test_runs_that_are_in_the_folder_are_measured_and_counted(whole: tuple[TuneOptions, TuneResult], tmp_path: Path, confirm: int) -> None:
    given, result = whole
    again = tune(resumed(given, result, tmp_path / "tuned", confirm=confirm)).tuned
    assert result.tuned is not None
    assert again is not None
    before, after = ({each.label for each in tuned.measured} for tuned in (result.tuned, again))
    assert len(before) == 3
    assert before <= after
    assert again.tests == max(3, 1 + confirm) >= len(after)
    assert len(list((tmp_path / "tuned/runs").iterdir())) == 1 + len(after), "no run is left out"
    systems = msgspec.json.decode((tmp_path / "tuned/sweep.json").read_bytes())["systems"]
    assert set(systems) == {"target", *(f"gated {label}" for label in after)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "own", "message"),
    [
        ({"tune": ("sure",)}, {}, r"holds a run of gated .* at batch size 4, which is not among those of this tuning; resume it as it was"),
        ({}, {"batch_sizes": (2,)}, r"holds a run of .* at batch size 4, which is not among those of this tuning"),
        ({}, {"seed": 5}, r"cannot be resumed: .*seed"),
    ],
)
def test_other_tuning_does_not_resume(
    whole: tuple[TuneOptions, TuneResult], tmp_path: Path, changes: dict[str, Any], own: dict[str, Any], message: str
) -> None:
    given = resumed(*whole, tmp_path / "tuned", **changes)
    kept = (tmp_path / "tuned/sweep.json").read_bytes()
    with pytest.raises(UsageError, match=message):
        tune(structs.replace(given, sweep=structs.replace(given.sweep, **own)))
    assert (tmp_path / "tuned/sweep.json").read_bytes() == kept


@pytest.mark.slow
def test_a_sweep_and_a_tuning_do_not_resume_each_other(whole: tuple[TuneOptions, TuneResult], tmp_path: Path) -> None:
    given = resumed(*whole, tmp_path / "tuned")
    message = "holds the runs of `pipeline {}`, which resumes them; choose another directory with --output"
    with pytest.raises(UsageError, match=f"tuned: {message.format('tune')}"):
        sweep(given.sweep)
    own = structs.replace(given.sweep, output=tmp_path / "swept")
    sweep(structs.replace(own, resume=False))
    with pytest.raises(UsageError, match=f"swept: {message.format('sweep')}"):
        tune(structs.replace(given, sweep=own))


@pytest.mark.slow
def test_a_faster_setting_that_loses_too_much_is_not_chosen(tmp_path: Path) -> None:
    result = tune(options(tmp_path, max_loss=0.175, tune=("sure=-30",), confirm=1))
    tuned = result.tuned
    assert tuned is not None
    assert tuned.tests == 2
    assert [each.values["sure"] for each in tuned.measured] == [-30, 0.0], "the fastest first"
    assert (tuned.chosen, result.exit_code) == ({"sure": 0.0}, 0)


@pytest.mark.slow
def test_where_the_target_is_never_right_nothing_is_chosen(tmp_path: Path) -> None:
    arith = ROOT / "datasets/arith/validation.parquet"  # whose answers simulated engines do not know
    result = tune(options(tmp_path, input=arith, limit=12, tune=("sure=-30",), confirm=1))
    assert result.tuned is not None
    assert (result.tuned.chosen, result.preset, result.exit_code) == (None, None, 1)
    assert len(result.tuned.measured) == 1, "nothing is confirmed"
    assert choice_of(result.tuned) == ["No setting: the target alone is right in 0.0 % of 12 problems, so that none could lose 50.0 %."]


@pytest.mark.slow
def test_a_router_and_an_early_end_have_speeds_and_answers_without_a_run_of_each(tmp_path: Path) -> None:
    routed, end = (ROOT / "graphs/routed.yaml",), "answer_confident=null,0.6"
    result = tune(options(tmp_path, graphs=routed, settings=("engines.*.text.steps_mean=4",), tune=("entropy=0.3", end), confirm=1))
    tuned = result.tuned
    assert tuned is not None
    assert tuned.tests == 3
    recorded = [each.values for each in tuned.measured if each.recorded]
    assert sorted(each["entropy"] for each in recorded) == [0.0, 1000.0], "the second one times the draft"  # type: ignore[type-var]
    assert {each["answer_confident"] for each in recorded} == {1.0}
    assert all(each.over_target is not None for each in tuned.settings)
    early = [each for each in tuned.settings if each.values["answer_confident"] == 0.6]
    assert len({each.accuracy_tried for each in early}) == 1, "by the early end alone"
    assert (tuned.target.accuracy or 0.0) - (early[0].accuracy_tried or 0.0) > 0.5, "so that none of them is worth a run"
    assert all(each.measured is None for each in early)


@pytest.mark.slow
def test_each_number_of_candidates_is_recorded(tmp_path: Path) -> None:
    result = tune(options(tmp_path, graphs=(SPECCOT,), settings=("engines.*.text.steps_mean=4",), tune=("candidates=1,2",), confirm=1))
    assert result.tuned is not None
    assert sorted(str(each.values) for each in result.tuned.measured) == ["{'candidates': 1}", "{'candidates': 2}"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"input": TEST_SET}, UsageError, r"test\.parquet: is a test set \(its name says so\): .* give a validation split"),
        (
            {"max_loss": 0.01},
            UsageError,
            r"--max-loss 0\.01: 24 problems cannot show it, .* \(for 3 runs together\) would reach to 0\.193; 568 would be the fewest",
        ),
        ({"tune": ("threshold=5,11",)}, GraphError, "--tune threshold=11: expected `float` <= 9.0, got 11"),
        ({"tune": ("sure=0.5",)}, GraphError, "--tune sure=0.5: is 0.5, but `min` is a log probability, at most 0"),
        ({"tune": ("sure=nan",)}, GraphError, "--tune sure=nan: expected `float`, got `str`"),
        ({"settings": ("speculate=auto",)}, UsageError, "speculate is auto: only a run that always speculates can be recorded"),
        ({"graphs": (ROOT / "graphs/target.yaml",), "settings": ()}, UsageError, "target: has no stage that verifies drafts and no gate"),
        ({"columns": {"answer": "nothing"}}, Exception, "nothing"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_run(tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tune(options(tmp_path, **changes))
    assert not (tmp_path / "tuned").exists()


def test_problems_without_reference_answers_are_refused(tmp_path: Path) -> None:
    problems = tmp_path / "plain.jsonl"
    problems.write_text('{"problem": "1 + 1?"}\n')
    with pytest.raises(UsageError, match="no problem has a reference answer, so that no accuracy can be measured"):
        tune(options(tmp_path, input=problems))


def test_a_user_may_say_that_it_is_no_test_set(tmp_path: Path) -> None:
    found = check(options(tmp_path, input=TEST_SET, max_loss=0.02, no_test_set=True), Observer())
    assert [knob.param for knob in found] == ["sure", "threshold"]


@pytest.mark.parametrize(("max_loss", "problems"), [(0.5, 4), (0.05, 73), (0.02, 189), (0.01, 381)])
def test_the_fewest_problems_that_could_show_a_loss(max_loss: float, problems: int) -> None:
    assert fewest(max_loss) == problems


def predicted(speed: float, changed: float) -> TunedSetting:
    return TunedSetting(values={"t": speed}, over_target=speed, changed=changed)


def test_the_frontier_is_of_settings_than_which_none_is_faster_that_changes_less() -> None:
    worse = [predicted(1.2, 3.0), predicted(2.0, 8.0), predicted(1.5, 2.0)]
    best = [predicted(1.1, 0.5), predicted(1.5, 1.0), predicted(2.0, 4.0)]
    assert frontier([*worse, *best]) == best


def test_no_more_settings_than_the_runs_can_halve() -> None:
    many = [predicted(1 + place / 10, place) for place in range(20)]
    assert thinned(many, 2) == [many[0], many[10], many[19]]
    assert thinned(many[:3], 2) == many[:3]
    assert thinned(many, 1) == [many[10]], "one run is of the middle one"
    assert len(thinned(many, 3)) == 7


def test_so_many_problems_would_do() -> None:
    def tried(loss: Estimate) -> TunedSetting:
        return TunedSetting(values={}, measured=Measured(run="", accuracy=0.9, loss=loss, problems_per_s=1.0, over_target=1.0))

    assert would_do([tried(Estimate(0.0, -0.02, 0.02))], 0.01, 100) == 401
    assert would_do([tried(Estimate(0.02, 0.0, 0.04))], 0.01, 100) is None
