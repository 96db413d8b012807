"""What do 1 to 1,000 replicas make of a run, when nodes die or are slow, and what does it cost the driver? SIMULATED.

    python bench/cluster_sim.py [--only scale,fail,strong,math,tail] [--output FILE]

Replicas on virtual time in one process, each the two H100 of graphs/engines/sim-2xh100.yaml; every run is a process of its own, one at a
time. Simulated are the times of the engines and the nodes; driver, rows and the chains' text are real, and the CPU time and memory of the
process are measured. Prints a table and writes bench/results/cluster-sim.json.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from cluster_nodes import Nodes, Spent, launcher
from cpu_shares import shares
from kept_runs import whole
from msgspec import Struct, convert, structs, to_builtins
from recording import begin
from tables import cluster_sim as table

from pipeline.cluster.fleet import solve_on_replicas
from pipeline.engines.sim.text import sim_answer
from pipeline.session.loop import rare_collection
from pipeline.session.observer import Attend, Observer
from pipeline.session.options import RunOptions
from pipeline.session.prepare import Prepared
from pipeline.session.run import SessionResult, run
from pipeline.store.check import examine
from pipeline.store.events import CallRow, ChainRow
from pipeline.store.read import read_table

ROOT = Path(__file__).parent.parent
MIB = 1 << 20
QUESTION_CHARACTERS, QUESTION_SIGMA, QUESTION_CORRELATION = 236, 0.38, 0.4
"""Of the questions of 1,494 thoughts about GSM8K that were published with SCoT: mean length, standard deviation of its logarithm, and its
rank correlation with the length of the thought."""
LONG_THOUGHTS = 0.05
"""The longest of those thoughts, which are loops, are not about longer questions: 56 % of this share are about ones above the median."""
FEW = 12
"""Problems a replica where there are many, for the sake of time."""
TAILS = ((8, 32, 8, 4, ("input", "longest", "earlier")), (128, 8, 4, 1, ("input", "earlier")))
"""Replicas, problems for each, batch size, seeds and orders of the runs whose tails are compared."""
OTHER_SEED = 1000
"""Of the earlier run of the same problems: their thoughts have as many steps there, which are of other lengths."""


class Cell(Struct, frozen=True, kw_only=True):
    """One run."""

    kind: str
    """Which part of the bench it belongs to."""
    replicas: int
    per_replica: int
    """Problems for each replica."""
    batch_size: int = 4
    """For each replica: so few that a run of few problems is long against its longest thought."""
    lengths: str = "gsm8k"
    order: str = "input"
    """`input`, `longest`, or `earlier`: longest by a run of the same problems with another seed."""
    nodes: Nodes = Nodes()
    seed: int = 0

    @property
    def problems(self) -> int:
        """Problems of the run."""
        return self.replicas * self.per_replica


def cells() -> Iterator[Cell]:
    """All runs."""
    for per_replica, counts in ((48, (1, 2, 4, 8, 32, 128)), (FEW, (1, 128, 512, 1000))):
        for count in counts:
            for seed in range(6 if count == 1 else 3 if count <= 8 else 1):
                yield Cell(kind="scale", replicas=count, per_replica=per_replica, seed=seed)
    for count, seed in ((1, 0), (1, 1), (1, 2), (16, 0)):
        yield Cell(kind="scale", replicas=count, per_replica=24, lengths="math", seed=seed)
    for count in (8, 32, 128):
        yield Cell(kind="strong", replicas=count, per_replica=1536 // count)
    yield Cell(kind="rate", replicas=1, per_replica=512, batch_size=32)
    for (count, per_replica), minutes in product(((32, 48), (128, FEW)), (10, 2)):
        yield Cell(kind="fail", replicas=count, per_replica=per_replica, nodes=Nodes(failure_s=60.0 * minutes))
    for (count, per_replica, batch_size, seeds, orders), slow in product(TAILS, (0, 1)):
        for order, seed in product(orders, range(seeds)):
            common = {"replicas": count, "per_replica": per_replica, "batch_size": batch_size, "nodes": Nodes(slow=slow), "seed": seed}
            yield Cell(kind="tail", order=order, **common)


def write_problems(path: Path, cell: Cell, thoughts: dict[str, int]) -> None:
    """Problems whose texts are as long as real ones; `thoughts`: tokens of each, as far as they are known."""
    draws = random.Random(cell.seed)
    longest = sorted(thoughts.values())
    cut = longest[int((1 - LONG_THOUGHTS) * len(longest))] if longest else 0
    rows = []
    for number in range(cell.problems):
        name, first = f"p{number}", f"Tom has {cell.seed * 10_000_000 + number} pens and buys 4 more. How many pens has he now?"
        known = thoughts.get(name, cut)
        normal = 0.0 if known >= cut else (longest.index(known) / len(longest) - 0.475) * 3.5
        characters = QUESTION_CHARACTERS * 2.718 ** (QUESTION_SIGMA * (QUESTION_CORRELATION * normal + draws.gauss(0, 0.92)))
        rows.append({"problem_id": name, "problem": first + "\n" + "and so on " * int(characters / 10 - 6), "answer": sim_answer(first)})
    pq.write_table(pa.Table.from_pylist(rows), path)


def solve(cell: Cell, problems: Path, output: Path, order: str, spent: Spent, begun: list[float]) -> SessionResult:
    """Carry the run out; `begun` gets the memory before its first chain."""

    async def carry_out(ready: Prepared, observer: Observer, attend: Attend | None = None) -> SessionResult:
        launch = launcher(ready.settings, cell.nodes, spent)
        begun.append(rss())
        return await solve_on_replicas(launch, ready, observer, attend=attend)

    options = RunOptions(
        graph=ROOT / "graphs/speccot.yaml",
        engines=ROOT / "graphs/engines/sim-2xh100.yaml",
        input=problems,
        settings=(f"engines.*.text.preset={cell.lengths}",),
        replicas=cell.replicas,
        batch_size=cell.batch_size,
        order=order,
        seed=cell.seed,
        output=output,
    )
    return whole(run(options, carry_out=carry_out))


def rss() -> float:
    """The most memory that this process has had, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """One run in this process: what it took, simulated and real."""
    problems, order = folder / "problems.parquet", cell.order
    write_problems(problems, cell, {})
    if cell.order != "input":
        earlier = structs.replace(cell, nodes=Nodes(), seed=cell.seed + OTHER_SEED)
        solve(earlier, problems, folder / "earlier", "input", Spent(), [])
        known = read_table(folder / "earlier", ChainRow, "chains")
        thoughts = dict(zip(known["problem_id"].to_pylist(), known["thought_tokens"].to_pylist(), strict=True))
        write_problems(problems, cell, thoughts)
        order = f"longest:{folder / 'earlier'}" if cell.order == "earlier" else "longest"
    spent, begun, started = Spent(), list[float](), time.process_time()
    with rare_collection(), shares() as cpu:
        result = solve(cell, problems, folder / "run", order, spent, begun)
    cpu_s = time.process_time() - started
    grown = rss() - begun[0]
    found = {"cpu_s": cpu_s, "cpu": dict(cpu), "peak_mib": rss(), "grown_mib": grown}
    return found | _simulated(cell, folder / "run", result, spent)


def _simulated(cell: Cell, folder: Path, result: SessionResult, spent: Spent) -> dict[str, Any]:
    """What the rows of a run say; raises where a chain is lost or doubled."""
    chains, calls = read_table(folder, ChainRow, "chains"), read_table(folder, CallRow, "calls")
    ids = Counter(chains["problem_id"].to_pylist())
    session = result.run.sessions[-1]
    start = session.started_unix_ns
    last_begun = pc.max(chains["start_unix_ns"]).as_py()
    before = calls.filter(pc.less_equal(calls["end_unix_ns"], last_begun))
    return {
        "lost": cell.problems - len(ids),
        "doubled": sum(count - 1 for count in ids.values()),
        "flaws": [str(flaw) for flaw in examine(folder).flaws],
        "failed": result.failed,
        "makespan_s": session.wall_time_s,
        "tail_s": session.wall_time_s - (last_begun - start) / 1e9,
        "full_tokens": pc.sum(before["output_tokens"]).as_py(),
        "longest_chain_s": pc.max(chains["chain_time_s"]).as_py(),
        "calls": len(calls),
        "computed_calls": sum(spent.requests.values()),
        "tokens": pc.sum(calls["output_tokens"]).as_py(),
        "computed_tokens": sum(spent.tokens.values()),
        "deaths": spent.deaths,
        "dropped": sum(each.dropped for each in session.replicas),
    }


def measured(cell: Cell) -> dict[str, Any]:
    """One run in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(to_builtins(cell))]
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT)
    if done.returncode:
        raise click.ClickException(f"{cell} ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return to_builtins(cell) | found


def wrong(row: dict[str, Any]) -> bool:
    """Whether a run lost or doubled a chain, or has inconsistent rows."""
    return bool(row["lost"] or row["doubled"] or row["failed"] or row["flaws"])


@click.command()
@click.option("--only", help="Kinds of runs, separated by commas; then nothing is recorded.")
@click.option("--one", hidden=True, help="One run, as JSON, in this process.")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "bench/results/cluster-sim.json")
def main(only: str | None, one: str | None, output: Path) -> None:
    """Print how a run on simulated replicas scales, what failures cost, and what shortens its tail."""
    if one is not None:
        with tempfile.TemporaryDirectory() as folder:
            click.echo(json.dumps(measure(convert(json.loads(one), Cell), Path(folder))))
        return
    recording, rows, started = begin(__file__), list[dict[str, Any]](), time.monotonic()
    for cell in cells():
        if only is None or cell.kind in only.split(","):
            rows.append(measured(cell))
            click.echo(f"  {time.monotonic() - started:.0f} s: {said(rows[-1])}", err=True)
    results = {"bench": "cluster-sim", "wall_s": time.monotonic() - started, "results": rows}
    click.echo(table(results if only else recording.write(output, results)))
    if any(map(wrong, rows)):
        raise click.ClickException("a run lost or doubled chains")


def said(row: dict[str, Any]) -> str:
    """One run in a line."""
    what = f"{row['kind']} {row['replicas']} x {row['per_replica']} {row['lengths']} {row['order']} {row['nodes']}"
    return f"{what} seed {row['seed']}: makespan {row['makespan_s']:.1f} s, tail {row['tail_s']:.1f} s, CPU {row['cpu_s']:.1f} s"


if __name__ == "__main__":
    main()
