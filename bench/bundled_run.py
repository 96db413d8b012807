"""What does a first run print? The bundled test set with the bundled models, as `make run` solves it.

    python bench/bundled_run.py [--limit 500]

Runs the target alone, too (`--baseline`), prints the summary and writes bench/results/bundled-run.json.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import click
from recording import ROOT, begin

PROGRAM = "from pipeline.cli.main import main; main()"
FILES = ("graphs/speccot.yaml", "--input", "datasets/arith/test.parquet")


@click.command()
@click.option("--limit", default=500, show_default=True, help="Problems.")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "bench/results/bundled-run.json")
def main(limit: int, output: Path) -> None:
    """Run, and keep what is printed."""
    recording = begin(__file__)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", PROGRAM, "run", *FILES, "--limit", str(limit), "--baseline", "--output", f"{folder}/run"]
        printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    head, rows, _ = printed.split("\n\n")
    kept = [head.replace(folder, "runs"), *rows.splitlines()]
    click.echo("\n".join(kept))
    recording.write(output, {"bench": "bundled_run", "problems": limit, "printed": kept})


if __name__ == "__main__":
    main()
