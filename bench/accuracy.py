"""How accurate is the bundled pair? Draft alone, target alone, SpecReason and SpecCoT on the 500 test problems.

    python bench/accuracy.py [--seeds 0,1,2] [--limit 500]

Temperature 0.6 throughout, as in the papers. Prints a table and one JSON line.
"""

import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from pipeline.analysis.summary import Summary, summarize
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from pipeline.trace.run_file import host, versions

ROOT = Path(__file__).parent.parent
GRAPHS = ("draft", "target", "specreason", "speccot")


def solve(graph: str, seed: int, limit: int) -> Summary:
    """One run over the test set."""
    with tempfile.TemporaryDirectory() as folder:
        problems = ROOT / "datasets/arith/test.parquet"
        options = RunOptions(graph=ROOT / f"graphs/{graph}.yaml", input=problems, limit=limit, seed=seed, output=Path(folder) / "run")
        result = run(options)
        assert result.exit_code == 0, result.error
        return summarize(result.folder)


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
            "draft_share": statistics.mean(s.draft_share or 0 for s in runs),
            "output_tokens": {role: round(statistics.mean(s.engines[role].output_tokens for s in runs)) for role in runs[0].engines},
            "wall_s": statistics.median(s.wall_time_s or 0 for s in runs),
        }


@click.command()
@click.option("--seeds", default="0,1,2", show_default=True)
@click.option("--limit", default=500, show_default=True)
def main(seeds: str, limit: int) -> None:
    """Solve the test set with every graph and print accuracies."""
    results = list(rows([int(seed) for seed in seeds.split(",")], limit))
    click.echo(f"{'graph':<11} {'accuracy':>9} {'by seed':>20} {'fallback':>9} {'by draft':>9}   output tokens")
    for row in results:
        by_seed = " ".join(f"{accuracy:.1%}" for accuracy in row["accuracies"])
        fallback = "-" if row["fallback_rate"] is None else f"{row['fallback_rate']:.1%}"
        tokens = ", ".join(f"{role} {count:,}" for role, count in row["output_tokens"].items())
        click.echo(f"{row['graph']:<11} {row['accuracy']:>9.1%} {by_seed:>20} {fallback:>9} {row['draft_share']:>9.1%}   {tokens}")
    click.echo(
        json.dumps({"bench": "accuracy", "problems": limit, "results": results, "host": structs.asdict(host()), "versions": versions()})
    )


if __name__ == "__main__":
    main()
