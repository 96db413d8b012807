"""`pipeline errors RUN`: failed chains by what went wrong."""

from pathlib import Path

import click
import msgspec

from pipeline.analysis.quality.failures import failures
from pipeline.cli.folder_notices import print_flaws
from pipeline.cli.main import print_line, print_page


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def errors(run: Path, as_json: bool, debug: bool) -> None:
    """Group the failed chains of the run folder RUN by error, stage and message.

    `pipeline resume RUN --retry-failed` tries them again.
    """
    print_flaws([run])
    found = failures(run)
    if as_json:
        print_page(msgspec.json.encode(found))
        return
    if not found:
        print_line("no chain failed")
    for failure in found:
        chains = ", ".join(failure.examples) + (", ..." if failure.count > len(failure.examples) else "")
        print_line(f"{failure.count} x {failure.error_type} in {failure.stage or 'no stage'}: {failure.message}")
        print_line(f"    {chains}")
