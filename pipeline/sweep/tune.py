"""Tunes the params of a graph on a validation set: options enter; few runs, a preset and a curve of accuracy against speed leave.

The target alone is run, and the graph once with the most careful values, for each number of candidates. What other values would do is
read off that run (`predict`). Where a gate does not make its drafts steps, but lets others write, a run in which it lets all pass tells how
long these take. Of those that lose least for their speed the fastest is sought by halving: each confirming run is of the
middle one of those that are left, and what is faster is left where its loss is small enough, else what is slower. The loss is that of
accuracy against the target alone, paired over the problems; small enough is a loss whose interval has its upper end below the wanted one.
The intervals hold for all runs together, so that choosing the fastest that passes does not make them worse. Where no faster setting loses
less than a slower one, halving runs at most one setting a level that loses too much before one of them passes wrongly: so many intervals
as there are levels and recorded runs. Runs that a resumed folder has already are levels, too.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from pipeline.analysis.compare.figures import Difference
from pipeline.analysis.compare.runs import read_run
from pipeline.analysis.points import Point
from pipeline.analysis.quality.estimates import Estimate
from pipeline.analysis.quality.paired import loss, normal_bound
from pipeline.analysis.tuned import Measured, Tuned, TunedSetting
from pipeline.data.many_files import open_files
from pipeline.data.problems import Problem
from pipeline.data.splits import why_a_test_set
from pipeline.errors import GraphError, UsageError
from pipeline.files import new_file
from pipeline.graph.plan import Plan
from pipeline.graph.spec import Param
from pipeline.graph.yaml_file import setting, shown
from pipeline.session.observer import Attend, Observer
from pipeline.session.options import RunOptions
from pipeline.session.prepare import load_plan
from pipeline.sweep.knobs import Knob, knobs_of, text_of
from pipeline.sweep.plan import SweepOptions
from pipeline.sweep.predict import RecordedPaths
from pipeline.sweep.sweep import Done, SweepResult, finished_points, sweep

PRESET = "preset.yaml"
Values = dict[str, Param]


class TuneOptions(Struct, frozen=True, kw_only=True):
    """The options of `pipeline tune`."""

    sweep: SweepOptions
    """Those of its runs: one graph, one batch size, one repeat."""
    max_loss: float
    """The upper end of the interval of the loss has to be below it, 0 to 1."""
    tune: tuple[str, ...] = ()
    """`NAME` or `NAME=VALUE,...` of the params to tune; empty: all."""
    confirm: int = 3
    """Most confirming runs, with those that are in the folder already."""
    name: str = ""
    """What the user calls the input, where that is a URL."""
    no_test_set: bool = False
    """The input is no test set, whatever it is called."""


class TuneResult(Struct, frozen=True, kw_only=True):
    """How tuning ended."""

    folder: Path
    tuned: Tuned | None
    """None where its runs did not come to their end."""
    runs: SweepResult
    preset: Path | None = None

    @property
    def exit_code(self) -> int:
        """As of a sweep; 1 where no setting loses little enough."""
        code = self.runs.exit_code
        return code or (0 if self.preset is not None else 1)


def tune(options: TuneOptions, observer: Observer | None = None, done: Done | None = None, *, attend: Attend | None = None) -> TuneResult:
    """Tune the graph. Errors in the options are raised before an engine starts; `observer`, `done` and `attend` as for `sweep`."""
    observer = observer or Observer()
    knobs = check(options, observer)
    return _Tuning(options, knobs, _told_once(observer), done, attend).result()


def check(options: TuneOptions, observer: Observer) -> list[Knob]:
    """The knobs, after checking all that can be checked before the first run; raises `UsageError`, `InputError` and `GraphError`."""
    own = options.sweep
    if not options.no_test_set and (why := why_a_test_set(own.input, options.name)):
        raise UsageError(
            f"{options.name or own.input}: is a test set ({why}): what is tuned on it cannot be tested on it; give a validation split"
            " of the same source, such as datasets/arith/validation.parquet or hf://OWNER/NAME/train, or --no-test-set if it is none"
        )
    [graph] = own.graphs
    plan = load_plan(graph, _bound(own), own.settings)
    knobs = knobs_of(graph, plan, options.tune)
    if plan.speculate not in (None, "always"):
        raise UsageError(
            f"{plan.name}: speculate is {plan.speculate}: only a run that always speculates can be recorded; add --set speculate=always"
        )
    kept = [knob for knob in knobs if _is_possible(knob, graph, own, options, observer)]
    if not kept:
        raise UsageError(f"{plan.name}: nothing is left to tune")
    _check_problems(options, tests_of(kept, options))
    return kept


def _is_possible(knob: Knob, graph: Path, own: SweepOptions, options: TuneOptions, observer: Observer) -> bool:
    """Whether the graph takes the values of a knob; raises `GraphError` for one out of range, which has the name of the option that it is
    from. An early end that was not asked for and that an engine cannot do is left out."""
    for value in knob.tried:
        try:
            load_plan(graph, _bound(own), (*own.settings, setting(knob.param, value)))
        except GraphError as error:
            if error.where.startswith(f"--set {knob.param}=") and options.tune:
                raise GraphError(f"--tune {shown({knob.param: value})}", error.what) from error
            if knob.kind != "end" or options.tune:
                raise
            observer.tell(f"{knob.param} is not tuned: {error}")
            return False
    return True


def tests_of(knobs: Sequence[Knob], options: TuneOptions) -> int:
    """How many runs' losses are looked at, at most: those to be recorded, and others, which may be in the folder already."""
    recorded = [each for careful in recordings(knobs) for each in (careful, beside(knobs, careful)) if each is not None]
    return len(recorded) + max(options.confirm, sum(each not in recorded for each in measured_in(options.sweep, knobs)))


def recordings(knobs: Sequence[Knob]) -> list[Values]:
    """The values of the runs to be recorded: one for each number of candidates, of which no other run tells anything."""
    many = [knob for knob in knobs if knob.kind == "candidates"]
    careful = {knob.param: knob.careful for knob in knobs}
    return [
        {**careful, **dict(zip((knob.param for knob in many), values, strict=True))} for values in product(*(knob.values for knob in many))
    ]


def beside(knobs: Sequence[Knob], recorded: Values) -> Values | None:
    """The values of a second run to be recorded, in which others write every step; None where what a gate lets pass is the step."""
    gates = {knob.param: knob.careless for knob in knobs if not knob.commits}
    return {**recorded, **gates} if gates else None


def measured_in(own: SweepOptions, knobs: Sequence[Knob]) -> list[Values]:
    """The values of the finished runs in a folder that is resumed; those that are not of these knobs are refused by `sweep`."""
    points = finished_points(own.output).values() if own.resume and own.output is not None else ()
    return [dict(point.params) for point in points if point.params.keys() == {knob.param for knob in knobs}]


def _check_problems(options: TuneOptions, tests: int) -> None:
    """Raise `UsageError` where the problems cannot show that a loss is as small as wanted, in so many runs."""
    own = options.sweep
    problems = open_files(
        (own.input,), own.columns, RunOptions(graph=own.graphs[0], input=own.input, limit=own.limit, random=own.random, seed=own.seed).part
    )
    problems.check()
    graded = sum(isinstance(each, Problem) and each.answer is not None for each in problems)
    where = options.name or own.input
    if not graded:
        raise UsageError(
            f"{where}: no problem has a reference answer, so that no accuracy can be measured; --column answer=NAME names its column"
        )
    needed = fewest(options.max_loss, tests)
    if graded < needed:
        reach = loss(np.zeros(graded), tests).high
        raise UsageError(
            f"--max-loss {options.max_loss:g}: {graded} problems cannot show it, as without a single loss the interval (for {tests} runs "
            f"together) would reach to {reach:.3g}; {needed} would be the fewest, and more are needed where answers differ"
        )


def fewest(max_loss: float, tests: int = 1) -> int:
    """The fewest problems whose interval lies below `max_loss` where no answer differs from the target's; see `paired.loss`."""
    return math.floor(normal_bound(tests) ** 2 * (1 - max_loss) / max_loss) + 1


def _bound(own: SweepOptions) -> Any:
    return own.bound(next(iter(own.engines), None))


def _told_once(observer: Observer) -> Observer:
    """`observer`, told nothing twice: each part of the runs is a sweep, which says the same."""
    told = set[str]()

    def tell(sentence: str) -> None:
        if sentence not in told:
            told.add(sentence)
            observer.tell(sentence)

    return structs.replace(observer, tell=tell)


class _Tuning:
    """One call of `tune`: what was run and what is predicted so far."""

    def __init__(self, options: TuneOptions, knobs: Sequence[Knob], observer: Observer, done: Done | None, attend: Attend | None) -> None:
        self._options, self._knobs, self._observer = options, knobs, observer
        self._done, self._attend = done, attend
        self._tests = tests_of(knobs, options)
        self._settings: list[TunedSetting] = []

    def result(self) -> TuneResult:
        """Run, predict, confirm, choose and write."""
        careful = recordings(self._knobs)
        recorded = [*careful, *filter(None, (beside(self._knobs, each) for each in careful))]
        earlier = [each for each in measured_in(self._options.sweep, self._knobs) if each not in recorded]
        runs = self._run([*recorded, *earlier], self._options.sweep)
        if runs.error is not None:
            return TuneResult(folder=runs.folder, tuned=None, runs=runs)
        self._folder = runs.folder
        self._target = next(point for point in runs.points if point.baseline)
        predicted, hopeful = list[TunedSetting](), list[TunedSetting]()
        for each in self._take_measured(runs, recorded):
            if each.values not in careful:
                continue
            said = self._predicted(each)
            predicted += said
            hopeful += filter(self._may_pass, faster(said)) if self._passes(each) else ()
        left = thinned(frontier(hopeful), self._options.confirm)
        low, high = 0, len(left)
        for _ in range(self._options.confirm):
            if low >= high:
                break
            middle = (low + high) // 2
            tried = next((each for each in self._settings if each.values == left[middle].values), None)
            if tried is None and len(self._settings) == self._tests:
                break
            if tried is None:
                choices = [*(each.values for each in self._settings), left[middle].values]
                runs = self._run(choices, structs.replace(self._options.sweep, output=self._folder, resume=True))
                if runs.error is not None:
                    return TuneResult(folder=runs.folder, tuned=None, runs=runs)
                [tried] = self._take_measured(runs)
            low, high = (middle + 1, high) if self._passes(tried) else (low, middle)
        tuned = self._tuned(predicted)
        tuned.write(self._folder)
        return TuneResult(folder=self._folder, tuned=tuned, runs=runs, preset=self._write_preset(tuned))

    def _run(self, choices: Sequence[Values], own: SweepOptions) -> SweepResult:
        texts = tuple({name: text_of(value) for name, value in each.items()} for each in choices)
        return sweep(structs.replace(own, choices={own.graphs[0]: texts}), self._observer, self._done, attend=self._attend)

    def _take_measured(self, runs: SweepResult, recorded: Sequence[Values] = ()) -> list[TunedSetting]:
        """The settings of those of the runs that are new, compared with the target alone; `recorded`: which of them are recorded."""
        known = [each.values for each in self._settings]
        points = [point for point in runs.points if not point.baseline and point.params not in known]
        found = [
            TunedSetting(values=dict(point.params), recorded=point.params in recorded, measured=self._measured(point)) for point in points
        ]
        self._settings += found
        return found

    def _measured(self, point: Point) -> Measured:
        folder, alone = (self._folder / "runs" / each.folder for each in (point, self._target))
        lost = Estimate(0.0, 0.0, 0.0) if point.baseline else loss(Difference(read_run(folder), read_run(alone)).losses(), self._tests)
        over = point.problems_per_s / self._target.problems_per_s if point.problems_per_s and self._target.problems_per_s else None
        return Measured(
            run=f"runs/{folder.name}", accuracy=point.accuracy, loss=lost, problems_per_s=point.problems_per_s, over_target=over
        )

    def _passes(self, tried: TunedSetting) -> bool:
        lost, most = tried.measured.loss.high if tried.measured is not None else None, self._options.max_loss
        return lost is not None and lost < most < (self._target.accuracy or 0.0)  # who is never right loses nothing

    def _may_pass(self, predicted: TunedSetting) -> bool:
        """Whether a run is worth it: not where the trial answers of the early end lose too much by themselves."""
        tried = predicted.accuracy_tried
        return tried is None or (self._target.accuracy or 0.0) - tried < self._options.max_loss

    def _predicted(self, recorded: TunedSetting) -> list[TunedSetting]:
        """What a recorded run says of other values, its own first."""
        assert recorded.measured is not None, "it was recorded"
        recording = RecordedPaths(self._folder / recorded.measured.run, self._knobs, recorded.values)
        passing = next((each for each in self._settings if each.values == beside(self._knobs, recorded.values)), None)
        passed_s = None
        if passing is not None and passing.measured is not None:
            passed_s = RecordedPaths(self._folder / passing.measured.run, self._knobs, passing.values).write_s
        return [self._prediction(recording, recorded, values, passed_s) for values in self._grid(recording, recorded.values)]

    def _grid(self, recording: RecordedPaths, recorded: Values) -> Iterator[Values]:
        free = [knob for knob in self._knobs if knob.kind != "candidates"]
        grids = [dict.fromkeys((recorded[knob.param], *recording.grid(knob), *knob.tried)) for knob in free]
        for choice in product(*grids):
            yield {**recorded, **dict(zip((knob.param for knob in free), choice, strict=True))}

    def _prediction(self, recording: RecordedPaths, recorded: TunedSetting, values: Values, passed_s: float | None) -> TunedSetting:
        said, _ = recording.predict(values, passed_s)
        fields = structs.asdict(said)
        seconds, measured = fields.pop("chain_s"), recorded.measured
        speed = measured.problems_per_s if measured is not None else None
        speed = speed * recording.chain_s / seconds if seconds and speed else None
        target = self._target.problems_per_s
        return TunedSetting(
            values=values,
            recorded=values == recorded.values,
            problems_per_s=speed,
            over_target=speed / target if speed and target else None,
            **fields,
        )

    def _tuned(self, predicted: Sequence[TunedSetting]) -> Tuned:
        own = self._options.sweep
        passed = sorted(filter(self._passes, self._settings), key=lambda each: -_speed(each.measured))
        known = {_key(each): each for each in predicted}
        measured = [
            structs.replace(known.get(_key(each), each), recorded=each.recorded, measured=each.measured)
            for each in sorted(self._settings, key=lambda each: -_speed(each.measured))
        ]
        run, best = set(map(_key, measured)), set(map(_key, frontier(predicted)))
        left = (structs.replace(each, frontier=_key(each) in best) for each in predicted if _key(each) not in run)
        others = sorted(left, key=rank, reverse=True)
        return Tuned(
            graph=str(own.graphs[0]),
            input=self._options.name or str(own.input),
            problems=self._target.problems,
            samples=own.samples,
            batch_size=self._target.batch_size,
            max_loss=self._options.max_loss,
            tests=self._tests,
            simulated=self._target.simulated,
            target=self._measured(self._target),
            settings=(*measured, *others),
            chosen=passed[0].values if passed else None,
            would_do=None if passed else would_do(measured, self._options.max_loss, self._target.problems),
        )

    def _write_preset(self, tuned: Tuned) -> Path | None:
        """Write the chosen values, and the user's own settings of params, as a preset."""
        choice = tuned.choice
        if choice is None or choice.measured is None:
            return None
        [graph] = self._options.sweep.graphs
        plan: Plan = load_plan(
            graph, _bound(self._options.sweep), (*self._options.sweep.settings, *(setting(*each) for each in choice.values.items()))
        )
        given = [each.partition("=")[0] for each in self._options.sweep.settings]
        others = [name for knob in self._knobs for name in knob.beside]
        names = dict.fromkeys([*(name for name in given if name in plan.params), *others, *choice.values])
        lost = choice.measured.loss
        lines = [
            f"# {plan.name}, tuned on {tuned.input} ({tuned.problems} problems): the loss of accuracy against the target alone is",
            f"# {lost.value:.4f}, {lost.low:.4f} to {lost.high:.4f} with 95 % confidence in {tuned.tests} runs together, wanted below",
            f"# {tuned.max_loss:g}; {len(tuned.measured)} settings were run.",
            "set:",
            *(f"  {name}: {text_of(plan.params[name])}" for name in names),
        ]
        with new_file(self._folder / PRESET) as draft:
            draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return self._folder / PRESET


def _key(of: TunedSetting) -> frozenset[tuple[str, Param]]:
    """The same for the same values."""
    return frozenset(of.values.items())


def rank(of: TunedSetting) -> float:
    """By which predictions are put in order: their speed, or where none is predicted the share of steps that nobody reads."""
    return of.over_target if of.over_target is not None else of.unverified or 0.0


def faster(predicted: Sequence[TunedSetting]) -> list[TunedSetting]:
    """The predictions that are faster than the recorded run that they are from, which is the first of them."""
    return [each for each in predicted[1:] if rank(each) > rank(predicted[0])]


def frontier(predicted: Sequence[TunedSetting]) -> list[TunedSetting]:
    """The predictions than which none is faster that changes no more decisions, the slowest first."""
    least, found = math.inf, list[TunedSetting]()
    for each in sorted(predicted, key=lambda each: (-rank(each), _changed(each))):
        if _changed(each) < least:
            least = _changed(each)
            found.append(each)
    return found[::-1]


def thinned(found: Sequence[TunedSetting], runs: int) -> list[TunedSetting]:
    """So many of these settings, from the first to the last, that halving them takes `runs` runs."""
    most = 2**runs - 1
    if len(found) <= most:
        return list(found)
    if most == 1:
        return [found[len(found) // 2]]
    return [found[round(place * (len(found) - 1) / (most - 1))] for place in range(most)]


def _changed(each: TunedSetting) -> float:
    return each.changed or 0.0


def would_do(measured: Sequence[TunedSetting], max_loss: float, problems: int) -> int | None:
    """So many problems that one of the settings would pass, if its loss and its spread stayed as they are; None where none would."""
    needed = [
        math.ceil(problems * ((each.measured.loss.high - each.measured.loss.value) / (max_loss - each.measured.loss.value)) ** 2) + 1
        for each in measured
        if each.measured is not None
        and each.measured.loss.value is not None
        and each.measured.loss.high is not None
        and each.measured.loss.value < max_loss
    ]
    return min(needed, default=None)


def _speed(measured: Measured | None) -> float:
    return (measured.problems_per_s if measured is not None else None) or 0.0
