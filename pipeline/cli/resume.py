"""`pipeline resume RUN`: a run that was stopped, killed or could not go on is carried to its end."""

from pathlib import Path

import click

from pipeline.cli.run import carry_out
from pipeline.session.options import resume_options


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--retry-failed", is_flag=True, help="Failed chains too.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def resume(run: Path, retry_failed: bool, as_json: bool, debug: bool) -> None:
    """Go on with the run in folder RUN, with the options it was started with.

    Finished chains are kept, the others go on where they were. To change the engines or the batch size on the way, repeat
    the whole command with `pipeline run ... --output RUN --resume --allow-drift engines`.
    """
    carry_out(resume_options(run, retry_failed=retry_failed), as_json)
