"""How accurate is the bundled pair? Draft alone, target alone, SpecReason and SpecCoT on the 500 test problems.

    python bench/accuracy.py [--seeds 0,1,2] [--limit 500]

Temperature 0.6 throughout, as in the papers. Prints a table and writes bench/results/accuracy.json.
"""

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from kept_runs import whole
from recording import begin
from tables import accuracy as table

from pipeline.analysis.headline.figures import Summary
from pipeline.analysis.summary import summarize
from pipeline.session.options import RunOptions
from pipeline.session.run import run

ROOT = Path(__file__).parent.parent
GRAPHS = ("draft", "target", "specreason", "speccot")


def solve(graph: str, seed: int, limit: int) -> Summary:
    """One run over the test set."""
    with tempfile.TemporaryDirectory() as folder:
        problems = ROOT / "datasets/arith/test.parquet"
        options = RunOptions(graph=ROOT / f"graphs/{graph}.yaml", input=problems, limit=limit, seed=seed, output=Path(folder) / "run")
        return summarize(whole(run(options)).folder)


def rows(seeds: list[int], limit: int) -> Iterator[dict[str, Any]]:
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
@click.option("--seeds", default="0,1,2", show_default=True)
@click.option("--limit", default=500, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "bench/results/accuracy.json")
def main(seeds: str, limit: int, output: Path) -> None:
    """Solve the test set with every graph and print accuracies."""
    recording = begin(__file__)
    results = list(rows([int(seed) for seed in seeds.split(",")], limit))
    click.echo(table(recording.write(output, {"bench": "accuracy", "problems": limit, "results": results})))


if __name__ == "__main__":
    main()
