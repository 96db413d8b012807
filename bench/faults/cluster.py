"""What do replicas on a Ray cluster make of a run: throughput, the driver's cost, faults, and pipelines of Ray Data?

    python -m bench.faults.cluster --part linear|faults|data [--output FILE]

The nodes of the cluster are processes of this machine (`tools/local_ray.py`). Engines wait in real time in place of computing, so that two
cores suffice for eight of them. Prints a table and writes bench/results/cluster-PART.json.
"""

import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import structs

from bench.figures import RESULTS, ROOT, Results, begin, grid, percent
from bench.runs import PROGRAM, say, whole, write_problems
from pipeline.cli.live import repeated
from pipeline.cluster import fleet
from pipeline.cluster.ray_actors import solve_on_ray
from pipeline.session.observer import Observer, View
from pipeline.session.options import RunOptions, resume_options
from pipeline.session.run import run

sys.path.insert(0, str(ROOT / "tools"))

from drills.toll import Ground, Toll, over, summed, toll
from local_ray import Nodes, cluster_of

ENGINE = (
    "{{backend: sim, model: waiting, max_in_flight: 64, parameters: 1, kv_bytes_per_token: 0, kv_cache_tokens: 10000000,{more}"
    " device: {{name: nowhere, flops_per_s: .inf, bytes_per_s: .inf, overhead_s: {overhead_s}}},"
    " text: {{steps_mean: 6, step_tokens_mean: 8, answer_tokens: 8}}}}"
)
GARBAGE = 0.02
"""Share of the attempts that get garbage for an answer, in the runs with that fault."""
ITERATION_S = 0.02
"""Seconds that an iteration of a waiting engine takes, where throughput is measured."""


def engines_file(folder: Path, overhead_s: float = 0.004, more: str = "") -> Path:
    """An engines file of two engines that wait, on one device."""
    path, engine = folder / "engines.yaml", ENGINE.format(overhead_s=overhead_s, more=more)
    path.write_text(f"draft: {engine}\ntarget: {engine}\n")
    return path


def options(folder: Path, name: str, problems: Path, engines: Path, replicas: int, batch_size: int) -> RunOptions:
    """A run of SpecCoT on `replicas` replicas."""
    graph, output = ROOT / "graphs/speccot.yaml", folder / name
    files = {"graph": graph, "engines": engines, "input": problems, "output": output}
    return RunOptions(**files, batch_size=batch_size, cluster="ray", replicas=replicas)


# Throughput.


def linear(folder: Path, share: float, counts: tuple[int, ...] = (1, 2, 4, 8), repeats: int = 3) -> dict[str, Any]:
    """The same number of problems for each replica, on 1 to 8 nodes, in turns."""
    engines, each, found = engines_file(folder, ITERATION_S), max(4, round(96 * share)), list[dict[str, Any]]()
    with cluster_of(max(counts)):
        for repeat, count in itertools.product(range(max(1, round(repeats * share))), counts):
            problems = write_problems(folder / f"{count}.parquet", count * each)
            result = whole(run(options(folder, f"{count}-{repeat}", problems, engines, count, 16), carry_out=solve_on_ray))
            wall_s, cpu_s = result.run.wall_time_s or 0.0, result.run.orchestrator_cpu_s or 0.0
            calls = sum(engine.requests for engine in result.run.engine_statistics.values())
            found.append({"replicas": count, "problems": count * each, "wall_s": wall_s, "driver_cpu_s": cpu_s, "calls": calls})
            say(f"{count} replicas: {count * each / wall_s:.1f} problems/s, {1e3 * cpu_s / count / each:.2f} ms a problem")
    return {"results": found, "batch_size": 16, "iteration_s": ITERATION_S}


def linear_table(results: Results) -> str:
    """A row for each number of replicas."""
    by_count: dict[int, list[Results]] = {}
    for row in results["results"]:
        by_count.setdefault(row["replicas"], []).append(row)
    one = statistics.median(row["problems"] / row["wall_s"] for row in by_count[1])
    rows = []
    for count, runs in sorted(by_count.items()):
        rates = [row["problems"] / row["wall_s"] for row in runs]
        cpu, each = (
            statistics.median(unit * row["driver_cpu_s"] / row[of] for row in runs) for unit, of in ((1e3, "problems"), (1e6, "calls"))
        )
        speed = f"{statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})"
        share = f"{statistics.median(rates) / one / count:.3f}"
        rows.append((str(count), f"{runs[0]['problems']:,}", speed, share, f"{cpu:.2f}", f"{each:.0f}"))
    columns = ("replicas", "problems", "problems/s, median", "of linear", "driver's CPU, ms a problem", "us a call")
    about = f"Batch size {results['batch_size']} a replica, {1e3 * results['iteration_s']:.0f} ms an iteration.\n\n"
    return about + grid(columns, rows)


# Faults.


def _watching(act: Callable[[View], object], at: Callable[[View], bool], view: View) -> AbstractContextManager[None]:
    """Acts once, when a run has come so far."""
    acted = threading.Event()

    def look() -> None:
        if not acted.is_set() and at(view):
            acted.set()
            act(view)

    return repeated(0.01, look)


class Faults:
    """Strikes runs of one ground on a cluster of two nodes, each in another way."""

    def __init__(self, folder: Path, nodes: Nodes, problems: Path, engines: Path) -> None:
        self.folder, self.nodes, self.luck, self.count = folder, nodes, random.Random(0), 0
        self.problems, self.engines, self.batch_size = problems, engines, 4
        whole = run(structs.replace(self.options("whole"), cluster=None, replicas=1))
        assert whole.folder is not None
        self.ground = Ground(engines="waiting", begin=(), chains=frozenset(over(whole.folder)), whole=whole.folder)

    def options(self, name: str) -> RunOptions:
        """The run that is struck."""
        return options(self.folder, name, self.problems, self.engines, 2, self.batch_size)

    def struck(self, fault: str, act: Callable[[View], object]) -> Toll:
        """A run that is struck once, at a random moment."""
        self.count += 1
        moment = self.luck.uniform(0.1, 0.7) * len(self.ground.chains)
        observer = Observer(watch=partial(_watching, act, lambda view: view.progress.done >= moment))
        result = run(self.options(f"run-{self.count}"), observer, carry_out=solve_on_ray)
        assert result.folder is not None
        found = toll(fault, self.ground, result.folder, result.folder / "no.log", wrong_ends=int(result.exit_code != 0))
        while len(self.nodes.nodes) < 2:
            self.nodes.add()
        return _told(found)

    def driver(self, fault: str, number: signal.Signals) -> Toll:
        """The driver is killed, and the run continues on another number of replicas."""
        self.count += 1
        out, log = self.folder / f"run-{self.count}", self.folder / f"run-{self.count}.log"
        words = ["run", "speccot", "--engines", str(self.engines), "--input", str(self.problems), "--output", str(out)]
        words += ["--cluster", "ray", "--replicas", "2", "--batch-size", str(self.batch_size)]
        with log.open("w") as file:
            process = subprocess.Popen([*PROGRAM, *words], stdout=file, stderr=file, start_new_session=True)
        size = self.luck.uniform(4000, 16000)
        while process.poll() is None and sum(path.stat().st_size for path in (out / "chains").glob("wal-*")) < size:
            time.sleep(0.02)
        os.killpg(process.pid, number)
        process.wait()
        said = over(out)
        result = run(structs.replace(resume_options(out), replicas=1), carry_out=solve_on_ray)
        return _told(toll(fault, self.ground, out, log, said=said, wrong_ends=int(result.exit_code != 0)))

    def send(self, number: signal.Signals) -> None:
        """A signal for one replica."""
        if actors := self.nodes.actors():
            self.luck.choice(actors).send_signal(number)

    def slow_down(self) -> None:
        """One replica runs a tenth of the time from now on."""
        process = self.luck.choice(self.nodes.actors())

        def slow() -> None:
            with suppress(psutil.NoSuchProcess):
                while True:
                    for number, pause_s in ((signal.SIGSTOP, 0.45), (signal.SIGCONT, 0.05)):
                        process.send_signal(number)
                        time.sleep(pause_s)

        threading.Thread(target=slow, daemon=True).start()

    def lose_node(self) -> None:
        """A node dies."""
        self.nodes.remove(self.luck.choice(self.nodes.nodes))

    def kill_until_dropped(self, view: View) -> None:
        """The replica's process is killed again and again, until the replica is dropped."""

        def kill() -> None:
            while not any(state.what.startswith("dropped") for state in view.replicas()) and view.progress.done < len(self.ground.chains):
                for process in self.nodes.actors()[:1]:
                    process.send_signal(signal.SIGKILL)
                time.sleep(0.5)

        threading.Thread(target=kill, daemon=True).start()


def _told(found: Toll) -> Toll:
    say(f"{found.fault}: {'harmless' if found.harmless else found}")
    return found


def faults(folder: Path, share: float) -> dict[str, Any]:
    """Faults of each kind on engines that answer the same twice."""
    problems = write_problems(folder / "problems.parquet", 60)
    fleet.SILENT_S = 5.0

    def times(count: int) -> range:
        return range(max(1, round(count * share)))

    with cluster_of(2) as nodes:
        bench = Faults(folder, nodes, problems, engines_file(folder))
        kinds: list[tuple[str, int, Callable[[View], object]]] = [
            ("a replica's process is killed", 12, lambda view: bench.send(signal.SIGKILL)),
            ("a replica hangs (SIGSTOP)", 6, lambda view: bench.send(signal.SIGSTOP)),
            ("a replica is ten times slower", 5, lambda view: bench.slow_down()),
            ("a node dies", 6, lambda view: bench.lose_node()),
            ("a node dies, another one joins", 6, lambda view: (bench.lose_node(), nodes.add())),
            ("a node joins, another one dies", 5, lambda view: (nodes.add(), nodes.remove(nodes.nodes[0]))),
            ("a replica is killed again and again", 2, bench.kill_until_dropped),
        ]
        tolls = [summed([bench.struck(fault, act) for _ in times(count)]) for fault, count, act in kinds]
        engines_file(folder, more=f" max_retries: 10, faults: {{garbage_share: {GARBAGE}}},")
        tolls.append(summed([bench.struck("engines answer with garbage", lambda view: None) for _ in times(2)]))
        engines_file(folder)
        for fault, number in (("the driver is killed, and resumed elsewhere", signal.SIGKILL), ("Ctrl-C, and resumed", signal.SIGINT)):
            tolls.append(summed([bench.driver(fault, number) for _ in times(4)]))
    return {"tolls": tolls, "problems": 60, "garbage_share": GARBAGE, "silent_s": 5.0}


def faults_table(results: Results) -> str:
    """A row for each kind of fault."""
    counted = ("faults", "chains", "lost", "doubled", "torn", "changed", "failed", "wrong_ends")
    rows = [(toll["fault"], *(f"{toll[name]:,}" for name in counted)) for toll in results["tolls"]]
    about = (
        f"{results['problems']} problems a run. With garbage, {percent(results['garbage_share'], 0)} of the attempts get it, and calls are "
        f"tried again. A replica counts as hanging after {results['silent_s']:g} s."
    )
    return f"{about}\n\n{grid(('fault', *(name.replace('_', ' ') for name in counted)), rows)}"


# Ray Data.

PIPELINE = """
import sys, time, warnings
warnings.simplefilter("ignore")
import ray
from pipeline.ray import Solver

class Batchwise:
    "One batch after the other, each solved to its end: what a call that returns a whole batch makes of it."
    def __init__(self, **options):
        import asyncio
        self.loop, self.solver = asyncio.new_event_loop(), Solver(**options)
    def __call__(self, batch):
        async def whole():
            return [table async for table in self.solver(batch)]
        import pyarrow as pa
        return pa.concat_tables(self.loop.run_until_complete(whole()))

kind, problems, engines, batch, in_flight, out = sys.argv[1:7]
ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="critical")
ray.data.DataContext.get_current().enable_progress_bars = False
warm = {"Solver": Solver, "bare": Batchwise}[kind]
data = ray.data.read_parquet(problems, override_num_blocks=8)
options = {"graph": "speccot", "engines": engines, "batch_size": int(in_flight)}
began = time.time()
data = data.map_batches(warm, fn_constructor_kwargs=options, batch_size=int(batch), concurrency=2, num_cpus=1)
data.write_parquet(out)
print(time.time() - began)
"""


def data(folder: Path, share: float) -> dict[str, Any]:
    """`Solver` against a class that solves one batch after the other, with the same engines, in turns."""
    count, repeats = max(8, round(256 * share)), max(1, round(3 * share))
    problems, found = write_problems(folder / "problems.parquet", count), list[dict[str, Any]]()
    engines = engines_file(folder, ITERATION_S)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    for repeat, batch, kind in itertools.product(range(repeats), (8, 32), ("Solver", "bare")):
        out = folder / f"{kind}-{batch}-{repeat}"
        words = [sys.executable, "-c", PIPELINE, kind, str(problems), str(engines), str(batch), "32", str(out)]
        printed = subprocess.run(words, capture_output=True, text=True, env=environment)
        if printed.returncode:
            raise click.ClickException(printed.stderr[-3000:])
        answers = pa.concat_tables([pq.read_table(part) for part in out.glob("*.parquet")])
        done = sum(status == "done" for status in answers.column("status").to_pylist())
        found.append({"kind": kind, "batch": batch, "wall_s": float(printed.stdout.split()[-1]), "done": done})
        say(f"{kind}, batches of {batch}: {found[-1]['wall_s']:.1f} s, {done} done")
    return {"results": found, "problems": count, "in_flight": 32}


def data_table(results: Results) -> str:
    """A row for each size of batches."""
    rows = []
    for batch in sorted({row["batch"] for row in results["results"]}):
        here = [row for row in results["results"] if row["batch"] == batch]
        solver, bare = ([row["wall_s"] for row in here if row["kind"] == kind] for kind in ("Solver", "bare"))
        ratios = [theirs / ours for ours, theirs in zip(solver, bare, strict=True)]
        by_round = " ".join(f"{ratio:.2f}" for ratio in ratios)
        walls = (f"{statistics.median(each):.1f}" for each in (solver, bare))
        rows.append((str(batch), *walls, f"{by_round}, median **{statistics.median(ratios):.2f}**"))
    about = f"{results['problems']} problems, {results['in_flight']} chains in flight an actor at most.\n\n"
    return about + grid(("rows a batch", "`Solver`, s", "batch after batch, s", "times as fast, by round"), rows)


PARTS: dict[str, tuple[Callable[[Path, float], dict[str, Any]], Callable[[Results], str]]] = {
    "linear": (linear, linear_table),
    "faults": (faults, faults_table),
    "data": (data, data_table),
}
"""Each part and its table."""


def table(results: Results) -> str:
    """The table of the part that was measured."""
    return PARTS[results["part"]][1](results)


@click.command()
@click.option("--part", type=click.Choice(list(PARTS)), required=True)
@click.option("--share", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True, help="Of problems and repeats.")
@click.option("--output", type=click.Path(path_type=Path), help="By default bench/results/cluster-PART.json.")
def main(part: str, share: float, output: Path | None) -> None:
    """Measure one part."""
    recording = begin(__file__)
    with tempfile.TemporaryDirectory() as folder:
        results = msgspec.to_builtins(PARTS[part][0](Path(folder), share))
    output = output or ROOT / RESULTS / f"cluster-{part}.json"
    click.echo(table(recording.write(output, {"bench": "cluster", "part": part, **results})))


if __name__ == "__main__":
    main()
