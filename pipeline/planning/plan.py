"""What to run, and what it will take: systems, batch sizes and a pilot enter; configurations with figures, and the best of them, leave.

The pilot is a sweep of a few problems, on real engines at the least and at the greatest batch size, or on simulated ones. Its chains are
simulated again with every batch size and way of sharing; what cannot be as fast as the fastest by half is discarded by a bound in closed
form.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from pipeline.calibration.calibrate import WORST_ERROR, calibrate
from pipeline.data.many_files import open_files
from pipeline.engines.sim.spec import SimSpec
from pipeline.errors import InputError, UsageError, boundary
from pipeline.files import new_file
from pipeline.graph.spec import Param, Price
from pipeline.planning.chains import read_chains
from pipeline.planning.estimate import CACHE, ExpectedRun, Pilot, bound, correction, estimate, split_by_use, tokens
from pipeline.session.observer import Attend, Observer
from pipeline.store.run_file import RunFile
from pipeline.sweep.plan import PlannedPoint, SweepOptions, SweepSystem, planned_points
from pipeline.sweep.points import run_options
from pipeline.sweep.sweep import sweep
from pipeline.sweep.systems import all_virtual, read_systems

FILE = "plan.json"
FIT_CALLS = 400
"""Calls of an engine in each pilot to which rates are fitted."""
WARM_UP = 4
"""Problems that each system solves before the pilot on real engines."""
HOPELESS = 1.5
"""A configuration whose bound is this many times the best simulated time is not simulated."""
SHARINGS = ("time_slices", "mps")
RESPLIT = 0.99
"""Another split of the memory is chosen where it takes less than this share of the time."""


class PlanOptions(Struct, frozen=True, kw_only=True):
    """The options of a plan."""

    sweep: SweepOptions
    """Systems, batch sizes and problems."""
    folder: Path
    pilot: int
    """Problems of the pilot."""
    price: float | None = None
    """Of an hour of the machine."""
    rates: str = ""
    """Where the rates of simulated engines are from, where not from their file."""


class Configuration(Struct, frozen=True, kw_only=True):
    """One way to run the problems."""

    system: str
    graph: str
    settings: tuple[str, ...]
    params: dict[str, Param]
    engines_file: str | None
    batch_size: int
    sharing: str = ""
    """How simulated engines share a device; empty: nothing is shared, or as it was in the pilot."""
    caches: dict[str, int] = {}
    """Tokens of each cache, where another split of the memory is faster than the given one; empty: the given one."""
    at_least_s: float
    """The bound."""
    estimate: ExpectedRun | None = None
    """None: discarded by its bound."""
    tokens: dict[str, tuple[int, int, int]] = {}
    """By role, prompt tokens, those of them that are cached, and those sampled."""
    cost: float | None = None
    """Null: no price is known."""

    @property
    def label(self) -> str:
        """System, batch size, sharing and split of the memory."""
        split = ", memory split by use" if self.caches else ""
        return f"{self.system}, batch size {self.batch_size}{f', {self.sharing}' if self.sharing else ''}{split}"


class PlanFile(Struct, frozen=True, kw_only=True):
    """The content of `plan.json`."""

    input: str
    chains: int
    pilot: int
    simulated_pilot: bool
    sources: dict[str, str]
    """Where each kind of figure is from: measured, calibrated or assumed."""
    corrections: dict[str, dict[int, float]]
    """By system and batch size, seconds of the pilot over those that are simulated for it."""
    fit_errors: dict[str, float] = {}
    """By device, how far the times of calls are off with the rates that were fitted, as the mean of |ln|; empty where none were."""
    accuracy: dict[str, tuple[int, int]] = {}
    """By system, right and graded chains of the pilot; empty where answers are simulated."""
    configurations: tuple[Configuration, ...]
    """The best first; those that were discarded last."""

    @property
    def best(self) -> Configuration:
        """The cheapest, or where no price is known the fastest."""
        return self.configurations[0]

    def write(self, folder: Path) -> None:
        """Replace `plan.json` in `folder`."""
        with new_file(folder / FILE) as draft:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")

    @classmethod
    def read(cls, folder: Path) -> "PlanFile":
        """The plan in `folder`; raises `InputError`."""
        with boundary(InputError, f"{folder / FILE}: is no plan of `pipeline plan`", foreign=(OSError, msgspec.MsgspecError)):
            return msgspec.json.decode((folder / FILE).read_bytes(), type=cls)


def make_plan(options: PlanOptions, observer: Observer, *, attend: Attend | None = None) -> PlanFile:
    """Run the pilot, unless it is in the folder already, and plan. Raises `UsageError`, and the error that ended the pilot."""
    systems = read_systems(options.sweep)
    virtual = all_virtual(systems)
    pilots = _pilots(options, systems, observer, attend, virtual=virtual)
    specs = _specs(systems, pilots, virtual=virtual)
    chains = _count(options, systems[0])
    known = {label: _recorded(runs) for label, runs in pilots.items()}
    corrections = {system.label: known[system.label].corrections(specs[system.label]) for system in systems}
    found = [
        each
        for system in systems
        for each in _bounded(system, known[system.label], specs[system.label], corrections[system.label], chains, options, virtual=virtual)
    ]
    planned = tuple(_simulated(found, systems, known, specs, corrections, chains, options, virtual=virtual))
    devices = [spec.device for each in specs.values() for spec in each.values()]
    fit_errors = {} if virtual else {device.name: device.fit_error for device in devices if device.fit_error is not None}
    plan = PlanFile(
        input=str(options.sweep.input),
        chains=chains,
        pilot=options.pilot,
        simulated_pilot=virtual,
        sources=_sources(options, specs, fit_errors, virtual=virtual),
        corrections=corrections,
        fit_errors=fit_errors,
        accuracy={} if virtual else {label: _graded(runs) for label, runs in pilots.items()},
        configurations=planned,
    )
    plan.write(options.folder)
    return plan


def _pilots(
    options: PlanOptions, systems: Sequence[SweepSystem], observer: Observer, attend: Attend | None, *, virtual: bool
) -> dict[str, list[Path]]:
    """The run folders of the pilot, by system, that of the greatest batch size first."""
    sizes = sorted(options.sweep.batch_sizes)
    most = min(options.pilot, options.sweep.limit or options.pilot)
    asked = [(sizes[-1], most)] + ([] if virtual or len(sizes) < 2 else [(sizes[0], max(2, most // 4))])
    found: dict[str, list[Path]] = {system.label: [] for system in systems}
    for batch_size, problems in asked:
        folder = options.folder / f"pilot-b{batch_size}"
        some = {"limit": problems} if options.sweep.limit is not None else {"random": str(problems)}
        of_pilot = {"batch_sizes": (batch_size,), "repeats": 1, "warm_up": WARM_UP, "output": folder, "resume": folder.is_dir()}
        given = structs.replace(options.sweep, **some, **of_pilot)
        result = sweep(given, observer, attend=attend)
        if result.error is not None:
            raise result.error
        for point in planned_points(systems, given, 1):
            found[point.system.label].append(_folder_of(folder, point))
    return found


def _folder_of(folder: Path, point: PlannedPoint) -> Path:
    return folder / "runs" / point.name


def _recorded(runs: Sequence[Path]) -> Pilot:
    """The chains of the pilot's first run, in the order of the input, and how long its runs took."""
    read = {folder: read_chains(folder) for folder in runs}
    files = {folder: RunFile.read(folder) for folder in runs}
    walls = {files[folder].batch_size: (files[folder].wall_time_s or 0.0, tuple(chains)) for folder, chains in read.items()}
    return Pilot(chains=tuple(read[runs[0]]), walls=walls)


def _specs(systems: Sequence[SweepSystem], pilots: Mapping[str, Sequence[Path]], *, virtual: bool) -> dict[str, dict[str, SimSpec]]:
    """Simulated engines by system: its own, or those whose rates are fitted to the pilots of the system with most engines."""
    if virtual:
        own = {system.label: {role: spec for role, spec in system.plan.engines.items() if isinstance(spec, SimSpec)} for system in systems}
        if lacking := next((system.label for system in systems if len(own[system.label]) < len(system.plan.engines)), None):
            raise UsageError(f"{lacking}: its engines replay a run, and tell nothing of other batch sizes; give simulated or real ones")
        return own
    most = max(systems, key=lambda system: len(system.plan.engines))
    fitted = calibrate(pilots[most.label], FIT_CALLS).specs
    if lacking := next((role for system in systems for role in system.plan.engines if role not in fitted), None):
        raise UsageError(f"{lacking}: {most.label} made no call of it, so that its rates are not known")
    return {system.label: {role: fitted[role] for role in system.plan.engines} for system in systems}


def _count(options: PlanOptions, system: SweepSystem) -> int:
    """Chains of the whole run."""
    sweep_options = options.sweep
    part = run_options(sweep_options, system, options.folder).part
    return open_files((sweep_options.input,), sweep_options.columns, part).check().chains(sweep_options.samples)


def _bounded(
    system: SweepSystem,
    pilot: Pilot,
    specs: Mapping[str, SimSpec],
    corrections: Mapping[int, float],
    chains: int,
    options: PlanOptions,
    *,
    virtual: bool,
) -> Iterator[Configuration]:
    """The configurations of a system, with their bounds."""
    shared = len({spec.device.name for spec in specs.values()}) < len(specs)
    for batch_size in options.sweep.batch_sizes:
        for sharing in SHARINGS if shared and virtual else ("",):
            yield Configuration(
                system=system.label,
                graph=str(system.graph),
                settings=system.settings,
                params=dict(system.plan.params),
                engines_file=None if system.engines_file is None else str(system.engines_file),
                batch_size=batch_size,
                sharing=sharing,
                at_least_s=bound(pilot, _sharing(specs, sharing), batch_size, chains, correction(corrections, batch_size)),
            )


def _sharing(specs: Mapping[str, SimSpec], sharing: str) -> dict[str, SimSpec]:
    if not sharing:
        return dict(specs)
    return {role: structs.replace(spec, device=structs.replace(spec.device, sharing=sharing)) for role, spec in specs.items()}


def _simulated(
    found: Sequence[Configuration],
    systems: Sequence[SweepSystem],
    pilots: Mapping[str, Pilot],
    specs: Mapping[str, Mapping[str, SimSpec]],
    corrections: Mapping[str, Mapping[int, float]],
    chains: int,
    options: PlanOptions,
    *,
    virtual: bool,
) -> list[Configuration]:
    """All configurations, those with the least bound simulated first, the best first."""
    prices = {system.label: {role: spec.price for role, spec in system.plan.engines.items()} for system in systems}
    best_s, done = float("inf"), list[Configuration]()
    by_token = any(price and (price.input or price.output or price.cached_input) for own in prices.values() for price in own.values())
    for each in sorted(found, key=lambda one: one.at_least_s):
        if each.at_least_s > HOPELESS * best_s and not by_token:  # what takes longer may sample less
            done.append(each)
            continue
        label, pilot = each.system, pilots[each.system]
        corrected = correction(corrections[label], each.batch_size)
        shared, caches = _sharing(specs[label], each.sharing), dict[str, int]()
        expected = estimate(pilot, shared, each.batch_size, chains, corrected)
        if virtual and expected.limited_by == CACHE:
            split = split_by_use(pilot.chains, shared)
            again = estimate(pilot, split, each.batch_size, chains, corrected)
            if again.seconds < RESPLIT * expected.seconds:
                expected, caches = again, {role: spec.kv_cache_tokens for role, spec in split.items()}
        counted = tokens(pilot, chains)
        cost = cost_of(counted, prices[label], options.price, expected.seconds)
        done.append(structs.replace(each, caches=caches, estimate=expected, tokens=counted, cost=cost))
        best_s = min(best_s, expected.seconds)
    return sorted(done, key=_rank)


def _rank(each: Configuration) -> tuple[bool, float, float]:
    seconds = each.at_least_s if each.estimate is None else each.estimate.seconds
    return each.estimate is None, each.cost if each.cost is not None else 0.0, seconds


def cost_of(
    counted: Mapping[str, tuple[int, int, int]], prices: Mapping[str, Price | None], machine: float | None, seconds: float
) -> float | None:
    """The cost of these tokens and seconds by the engines' prices, and that of the `machine` an hour; None where there is neither."""
    known = {role: price for role, price in prices.items() if price is not None}
    if not known and machine is None:
        return None
    engines = sum(price.cost(*counted.get(role, (0, 0, 0)), seconds) for role, price in known.items())
    return engines + seconds / 3600 * (machine or 0.0)


def _sources(
    options: PlanOptions, specs: Mapping[str, Mapping[str, SimSpec]], fit_errors: Mapping[str, float], *, virtual: bool
) -> dict[str, str]:
    """Where the figures are from."""
    if virtual:
        rates = options.rates or "assumed: those of the engines file"
        texts = [spec.text for each in specs.values() for spec in each.values()]
        known = next((f"preset {text.preset}" for text in texts if text.preset), "recorded" if texts[0].lengths is not None else "")
        remedy = "the simulator's own; --set 'engines.*.text.preset=math' or text.lengths=RUN give others"
        lengths = f"assumed: lengths {known or remedy}; acceptance that of the simulated texts"
        return {"lengths": lengths, "rates": rates, "tokens": "as the lengths", "accuracy": "unknown: answers are simulated"}
    said = ", ".join(f"calls of {name} are off by {error:.0%} on average" for name, error in fit_errors.items())
    worst = max(fit_errors.values(), default=0.0)
    said += "; too far off to rely on: repeat the pilot without other load" if worst > WORST_ERROR else ""
    return {
        "lengths": f"measured: the pilot's {options.pilot} problems",
        "rates": f"calibrated: fitted to the pilot; {said}",
        "tokens": "measured: the pilot's, times the number of problems",
        "accuracy": "measured: the pilot's alone",
    }


def _graded(runs: Sequence[Path]) -> tuple[int, int]:
    totals = RunFile.read(runs[0]).totals
    return totals.correct, totals.graded


def preset_of(plan: PlanFile) -> dict[str, Any]:
    """The settings of the best configuration that are not of its engines, as a preset holds them."""
    best, names = plan.best, {each.partition("=")[0] for each in plan.best.settings}
    return {name: value for name, value in best.params.items() if name in names}
