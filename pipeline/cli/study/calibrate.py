"""`pipeline calibrate RUN`: an engines file of simulated engines that cost what the run's engines did."""

from pathlib import Path

import click

from pipeline.calibration.calibrate import MAX_CALLS, WORST_ERROR, engines_file, fit_lines
from pipeline.calibration.calibrate import calibrate as calibrated
from pipeline.cli.commands import command, option
from pipeline.cli.located import Located, RunFolder
from pipeline.cli.terminal import print_line
from pipeline.errors import UsageError, reason
from pipeline.files import new_file
from pipeline.store.query import check_readable


@command()
@click.argument("runs", type=RunFolder(), nargs=-1, required=True, metavar="RUN...")
@option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Output engines file.  [default: RUN/calibration.yaml]")
@option(
    "--max-calls",
    metavar="N",
    type=click.IntRange(1, 1_000_000_000),
    default=MAX_CALLS,
    show_default=True,
    help="Maximum number of calls of an engine in a run.",
)
def calibrate(runs: tuple[Located, ...], output: Path | None, max_calls: int) -> None:
    """Fit simulated engines to the traces of RUN..., and report the fit error. A replay of RUN uses the fitted costs.

    Give runs at small and at large batch sizes: one batch size alone does not identify all rates. The file keeps the fit error, which is
    printed with every prediction made from it. No file is written if calls are off by more than 50% on average.
    """
    folders = [run.path for run in runs]
    check_readable(*folders)
    found = calibrated(folders, max_calls)
    for line in fit_lines(found):
        print_line(line)
    if found.bad:
        worst = ", ".join(f"calls of {device} are off by {error:.1%}" for device, error in found.bad.items())
        raise UsageError(
            f"{worst} on average, more than {WORST_ERROR:.0%}: no file was written; fit runs at a small and a large batch "
            "size without other load"
        )
    path = output or (Path() if runs[0].url else folders[0]) / "calibration.yaml"
    try:
        with new_file(path) as draft:
            draft.write_text(engines_file(found), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be written: {reason(error)}") from error
    print_line(f"engines file: {path}")
