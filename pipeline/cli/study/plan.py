"""`pipeline plan GRAPH... --input FILE --batch-size 8,32,128`: what a run will take, and which one to choose."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.simulated import stated
from pipeline.cli import live
from pipeline.cli.author.diagnosis import diagnose
from pipeline.cli.commands import command, option
from pipeline.cli.console import PlainConsole, print_table
from pipeline.cli.located import LocalPath, ProblemFile
from pipeline.cli.options import (
    engines_option,
    model_option,
    notice_options,
    preset_option,
    run_options,
    settings_option,
    with_models,
    with_preset,
)
from pipeline.cli.signals import restored_handlers, stop_at_first_signal
from pipeline.cli.study.sweep import Listed, vary_option
from pipeline.cli.terminal import print_line, print_notice
from pipeline.engines.placement.machines import described, machine_named
from pipeline.errors import UsageError
from pipeline.graph.yaml_file import engines_text, written
from pipeline.planning.check import check
from pipeline.planning.machine import resplit, simulated
from pipeline.planning.plan import FILE, Configuration, PlanFile, PlanOptions, make_plan, preset_of
from pipeline.session.loop import rare_collection
from pipeline.session.observer import Observer
from pipeline.sweep.plan import SweepOptions

SHOWN = 12
"""Configurations that are printed."""
AS_HELP = "Plan for another machine, such as 2xH100-80GB, with the engines that --model needs there; they are simulated."
PILOT_HELP = "Problems of the pilot, which runs each graph at the greatest batch size and, on real engines, a quarter of them at the least."


@command(headed=True)
@click.argument("graphs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="GRAPH...")
@option("-i", "--input", "input_", type=ProblemFile(), metavar="FILE", help="Problems, as for `run`.", heading="Input")
@run_options("columns", "limit")
@engines_option
@model_option
@option("--as", "named", metavar="NxGPU", help=AS_HELP, heading="Models")
@settings_option
@preset_option
@vary_option
@run_options("samples", "seed")
@option(
    "--batch-size",
    "batch_sizes",
    type=Listed(click.IntRange(1, 1_000_000)),
    default="8,32,128",
    show_default=True,
    metavar="N,...",
    help="Batch sizes to choose from.",
    heading="Scheduling",
)
@option("--pilot", type=click.IntRange(4, 10_000), default=40, show_default=True, metavar="N", help=PILOT_HELP, heading="Plan")
@option("--price", type=click.FloatRange(0, min_open=True), metavar="AMOUNT", help="Price of an hour of the machine.", heading="Plan")
@option("--check", "checked", type=LocalPath(), metavar="RUN", help="Compare the plan in folder GRAPH with a finished run.", heading="Plan")
@option("-o", "--output", type=LocalPath(), metavar="DIR", help="Folder of the plan.  [default: plans/GRAPH]", heading="Output")
@notice_options
def plan(graphs: tuple[Path, ...], input_: Path | None, checked: Path | None, output: Path | None, **options: Any) -> None:
    """Predict how long the problems take with GRAPH... and the target alone, how many tokens and what cost, and say which to choose.

    A pilot of a few problems is run; its chains are simulated with every batch size. On simulated engines, and with --as, nothing is
    measured. Writes plan.json, engines.yaml and preset.yaml; a pilot that is in the folder already is used again.
    """
    if checked is not None:
        _print_checked(graphs[0], checked)
        return
    if input_ is None:
        raise UsageError("--input: name the file of problems")
    folder = output or Path("plans") / graphs[0].stem
    planned, bound, rates = _engines(graphs, options)
    given = SweepOptions(graphs=graphs, input=input_, batch_sizes=options["batch_sizes"], vary=options["vary"], **bound)
    chosen = PlanOptions(sweep=given, folder=folder, pilot=options["pilot"], price=options["price"], rates=rates)
    folder.mkdir(parents=True, exist_ok=True)
    observer = Observer(starting=live.show_starts, tell=print_notice)
    with restored_handlers(), rare_collection():
        found = make_plan(chosen, observer, attend=stop_at_first_signal)
    if planned and found.best.caches:
        planned = resplit(planned, given.planned_engines, found.best.caches, machine_named(options["named"]))
    command = write_choice(found, folder, planned, given)
    _print(found)
    print_line(f"plan      {folder / FILE}")
    print_line(f"run       {command}")


def _engines(graphs: tuple[Path, ...], options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The engines that were chosen for models, the options of the pilot's sweep, and where the rates of its engines are from."""
    names = ("columns", "limit", "engines", "models", "settings", "preset", "samples", "seed")
    own = with_preset(graphs, {name: options[name] for name in names})
    if options["named"] is None:
        found = with_models(graphs, own, max(options["batch_sizes"]))
        file = found.pop("engines")
        return found.get("planned_engines", {}), found | {"engines": () if file is None else (file,)}, ""
    if not own["models"] or own["engines"] is not None:
        raise UsageError(f"--as {options['named']}: needs the models, as --model target=... --model draft=..., and no --engines")
    machine = machine_named(options["named"])
    if any(each.startswith("engines.") and ".text." in each for each in own["settings"]):
        plain = tuple(each for each in own["settings"] if ".text." not in each)
    else:
        plain = own["settings"]
    found = with_models(graphs, own | {"settings": plain}, max(options["batch_sizes"]), machine)
    planned = found.pop("planned_engines")
    memory = diagnose(graphs[0], plain, bound=planned, elsewhere=machine).memory
    engines = simulated(planned, memory, machine)
    found.pop("engines")
    rates = f"assumed: data sheets of {described(machine)}, of which 60 % of the arithmetic and 72 % of the bandwidth are reached"
    return planned, found | {"planned_engines": engines, "settings": own["settings"]}, rates


def write_choice(found: PlanFile, folder: Path, planned: Mapping[str, Any], given: SweepOptions) -> str:
    """Write engines and settings of the best configuration; the command that runs it."""
    best = found.best
    parts = ["pipeline", "run", best.graph, "--input", found.input, "--batch-size", str(best.batch_size)]
    if planned:
        (folder / "engines.yaml").write_text(engines_text(planned, [f"Engines of the plan in {folder}."]))
        parts += ["--engines", str(folder / "engines.yaml")]
    elif best.engines_file is not None:
        parts += ["--engines", best.engines_file]
    own = preset_of(found)
    (folder / "preset.yaml").write_text(
        "set:\n" + "".join(f"  {name}: {written(value)}\n" for name, value in own.items()) if own else "set: {}\n"
    )
    engine_settings = [each for each in best.settings if each.startswith(("engines.", "variant=")) and not (planned and ".text." in each)]
    if best.sharing and not planned:
        engine_settings.append(f"engines.*.device.sharing={best.sharing}")
    if not planned:
        engine_settings += [f"engines.{role}.kv_cache_tokens={size}" for role, size in best.caches.items()]
    parts += [*(["--preset", str(folder / "preset.yaml")] if own else []), *(part for each in engine_settings for part in ("--set", each))]
    parts += [] if given.samples == 1 else ["--samples", str(given.samples)]
    parts += [] if given.limit is None else ["--limit", str(given.limit)]
    return shlex.join(parts)


def _print(found: PlanFile) -> None:
    console, priced = PlainConsole(), found.best.cost is not None
    head = ("", "time", "95 %", *(("cost",) if priced else ()), "limited by")
    print_table(Table(f"{found.chains:,} chains", head, tuple(_rows(found, priced=priced))), console)
    sampled = "; ".join(f"{role} samples {counts[2]:,}, reads {counts[0]:,}" for role, counts in found.best.tokens.items())
    print_line(f"{'best':<9} {found.best.label}; tokens: {sampled}")
    for name, said in found.sources.items():
        print_line(f"{name:<9} {said}")
    for label, known in found.corrections.items() if not found.simulated_pilot else ():
        ratios = " and ".join(f"{ratio:.2f} (batch size {size})" for size, ratio in sorted(known.items()))
        print_line(f"{'pilot':<9} {label}: took {ratios} times as long as simulated, which is corrected for")
    for label, (right, graded) in found.accuracy.items():
        print_line(f"{'accuracy':<9} {label}: {right} of {graded} right in the pilot")
    if found.simulated_pilot:
        print_line(stated(()))


def _rows(found: PlanFile, *, priced: bool) -> Iterator[tuple[str, ...]]:
    for each in [one for one in found.configurations if one.estimate is not None][:SHOWN]:
        expected = each.estimate
        assert expected is not None
        cost = (f"{each.cost:,.2f}" if each.cost is not None else "",) if priced else ()
        bounds = f"{seconds(expected.low_s)} to {seconds(expected.high_s)}"
        yield each.label, seconds(expected.seconds), bounds, *cost, expected.limited_by
    left_out: Sequence[Configuration] = [one for one in found.configurations if one.estimate is None]
    if left_out:
        least = min(one.at_least_s for one in left_out)
        yield f"{len(left_out)} others", f"{seconds(least)} or more", "", *([""] if priced else []), "discarded"


def seconds(value: float) -> str:
    """A time as `12.3 s`, `4.5 min` or `6.7 h`."""
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:.3g} h"


def _print_checked(folder: Path, run: Path) -> None:
    found, figures = check(PlanFile.read(folder), run)
    rows = [
        (
            each.name,
            f"{each.predicted:,.4g}",
            "" if each.low is None else f"{each.low:,.4g} to {each.high:,.4g}",
            f"{each.outcome:,.4g}",
            "" if each.error is None else f"{each.error:+.1%}",
        )
        for each in figures
    ]
    print_table(Table(found.label, ("", "predicted", "95 %", "recorded", "error"), tuple(rows)), PlainConsole())
