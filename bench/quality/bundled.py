"""What does the bundled pair do on its test set? The summary that a first run prints, and how accurate the systems are.

    python -m bench.quality.bundled [--limit 500]                    as `make run` solves it, with the target alone
    python -m bench.quality.bundled --accuracy [--seeds 0,1,2]       draft and target alone, SpecReason and SpecCoT, at temperature 0.6

Prints, and writes bench/results/bundled-run.json or accuracy.json.
"""

import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from bench.figures import RESULTS, ROOT, Results, begin, grid, percent
from bench.runs import ARITH, PROGRAM, whole
from pipeline.analysis.headline.figures import Summary
from pipeline.analysis.summary import summarize
from pipeline.session.options import RunOptions
from pipeline.session.run import run

GRAPHS = ("draft", "target", "specreason", "speccot")


def table(results: Results) -> str:
    """The printed summary, or accuracies by graph."""
    if "printed" in results:
        return "\n".join(["```", *(f"  {line}" for line in results["printed"]), "```"])
    rows = []
    for row in results["results"]:
        seeds = " ".join(f"{100 * each:.1f}" for each in row["accuracies"])
        tokens = ", ".join(f"{role} {count:,}" for role, count in sorted(row["output_tokens"].items()))
        rows.append((row["graph"], percent(row["accuracy"]), seeds, percent(row["fallback_rate"]), percent(row["draft_share"]), tokens))
    return grid(("graph", "accuracy", "by seed", "fallback", "thought in accepted candidates", "output tokens a run"), rows)


def first_run(limit: int) -> dict[str, Any]:
    """Run the command, and keep what it prints."""
    files = ("graphs/speccot.yaml", "--input", "datasets/arith/test.parquet")
    with tempfile.TemporaryDirectory() as folder:
        command = [*PROGRAM, "run", *files, "--limit", str(limit), "--baseline", "--output", f"{folder}/run"]
        printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    head, rows, _ = printed.split("\n\n")
    return {"bench": "bundled_run", "problems": limit, "printed": [head.replace(folder, "runs"), *rows.splitlines()]}


def solve(graph: str, seed: int, limit: int) -> Summary:
    """One run over the test set."""
    with tempfile.TemporaryDirectory() as folder:
        options = RunOptions(graph=ROOT / f"graphs/{graph}.yaml", input=ARITH, limit=limit, seed=seed, output=Path(folder) / "run")
        return summarize(whole(run(options)).folder)


def accuracies(seeds: list[int], limit: int) -> Iterator[dict[str, Any]]:
    """Means over the seeds."""
    for graph in GRAPHS:
        runs = [solve(graph, seed, limit) for seed in seeds]
        yield {
            "graph": graph,
            "runs": len(runs),
            "accuracy": statistics.mean(s.accuracy or 0 for s in runs),
            "accuracies": [s.accuracy for s in runs],
            "fallback_rate": statistics.mean(s.fallback_rate or 0 for s in runs) if runs[0].verified_steps else None,
            "draft_share": statistics.mean(s.draft_share or 0 for s in runs) if runs[0].draft_share is not None else None,
            "output_tokens": {role: round(statistics.mean(s.engines[role].output_tokens for s in runs)) for role in runs[0].engines},
            "wall_s": statistics.median(s.wall_time_s or 0 for s in runs),
        }


@click.command()
@click.option("--limit", default=500, show_default=True, help="Problems.")
@click.option("--accuracy", is_flag=True, help="Solve the test set with every graph.")
@click.option("--seeds", default="0,1,2", show_default=True, help="Of the accuracies.")
@click.option("--output", type=click.Path(path_type=Path), help="By default bench/results/bundled-run.json or accuracy.json.")
def main(limit: int, accuracy: bool, seeds: str, output: Path | None) -> None:
    """Solve the test set."""
    recording = begin(__file__)
    if accuracy:
        found = list(accuracies([int(seed) for seed in seeds.split(",")], limit))
        results: dict[str, Any] = {"bench": "accuracy", "problems": limit, "results": found}
    else:
        results = first_run(limit)
    click.echo(table(recording.write(output or ROOT / RESULTS / f"{'accuracy' if accuracy else 'bundled-run'}.json", results)))


if __name__ == "__main__":
    main()
