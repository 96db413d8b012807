"""What do replicas on a Ray cluster make of a run: throughput, the driver's cost, faults, memory, and pipelines of Ray Data?

    python bench/cluster.py --part linear|faults|torch|million|data [--output FILE]

The nodes of the cluster are processes of this machine (`tools/local_ray.py`). Engines wait in real time in place of computing, so that two
cores suffice for eight of them; `torch` computes with the bundled models. Prints a table and writes bench/results/cluster-PART.json.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from kept_runs import whole
from memory import write_problems
from msgspec import structs
from recording import begin
from tables import cluster as table

from pipeline.cluster import fleet
from pipeline.cluster.ray_actors import solve_on_ray
from pipeline.session.observer import Observer, View
from pipeline.session.options import RunOptions, resume_options
from pipeline.session.run import SessionResult, run

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from drills.toll import Ground, Toll, over, summed, toll  # noqa: E402
from local_ray import Nodes, cluster_of  # noqa: E402

RESULTS = ROOT / "bench/results"
ARITH = ROOT / "datasets/arith/test.parquet"
ENGINE = (
    "{{backend: sim, model: waiting, max_in_flight: 64, parameters: 1, kv_bytes_per_token: 0, kv_cache_tokens: 10000000,{more}"
    " device: {{name: nowhere, flops_per_s: .inf, bytes_per_s: .inf, overhead_s: {overhead_s}}},"
    " text: {{steps_mean: 6, step_tokens_mean: 8, answer_tokens: 8}}}}"
)
GARBAGE = 0.02
"""Share of the attempts that get garbage for an answer, in the runs with that fault."""
ITERATION_S = 0.02
"""Seconds that an iteration of a waiting engine takes, where throughput is measured."""
SOLVE = "from pipeline.cli.main import main; main()"
MIB = 1 << 20


def engines_file(folder: Path, overhead_s: float = 0.004, more: str = "") -> Path:
    """An engines file of two engines that wait, on one device."""
    path, engine = folder / "engines.yaml", ENGINE.format(overhead_s=overhead_s, more=more)
    path.write_text(f"draft: {engine}\ntarget: {engine}\n")
    return path


def options(folder: Path, name: str, problems: Path, engines: Path | None, replicas: int, batch_size: int, **more: Any) -> RunOptions:
    """A run of SpecCoT on so many replicas."""
    found = RunOptions(
        graph=ROOT / "graphs/speccot.yaml",
        engines=engines,
        input=problems,
        output=folder / name,
        batch_size=batch_size,
        cluster="ray",
        replicas=replicas,
    )
    return structs.replace(found, **more)


def solved(chosen: RunOptions, observer: Observer | None = None) -> SessionResult:
    """A finished run on the cluster."""
    return whole(run(chosen, observer, carry_out=solve_on_ray))


# Throughput.


def linear(folder: Path, counts: tuple[int, ...] = (1, 2, 4, 8), repeats: int = 3, each: int = 96) -> dict[str, Any]:
    """The same number of problems for each replica, on 1 to 8 nodes, in turns."""
    engines, found = engines_file(folder, ITERATION_S), list[dict[str, Any]]()
    with cluster_of(max(counts)):
        for repeat, count in itertools.product(range(repeats), counts):
            problems = folder / f"{count}.parquet"
            write_problems(problems, count * each)
            result = solved(options(folder, f"{count}-{repeat}", problems, engines, count, 16))
            wall_s, cpu_s = result.run.wall_time_s or 0.0, result.run.orchestrator_cpu_s or 0.0
            calls = sum(engine.requests for engine in result.run.engine_statistics.values())
            found.append({"replicas": count, "problems": count * each, "wall_s": wall_s, "driver_cpu_s": cpu_s, "calls": calls})
            click.echo(
                f"  {count} replicas: {count * each / wall_s:.1f} problems/s, {1e3 * cpu_s / count / each:.2f} ms a problem", err=True
            )
    return {"results": found, "batch_size": 16, "iteration_s": ITERATION_S}


# Faults.


@contextmanager
def _struck(act: Callable[[View], object], at: Callable[[View], bool]) -> Iterator[Observer]:
    """An observer that acts once, when a run has come so far."""
    ended = threading.Event()

    @contextmanager
    def watch(view: View) -> Iterator[None]:
        def wait() -> None:
            while not ended.wait(0.01):
                if at(view):
                    act(view)
                    return

        thread = threading.Thread(target=wait)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    yield Observer(watch=watch)


class Faults:
    """Strikes runs of one ground on a cluster of two nodes, each in another way."""

    def __init__(self, folder: Path, nodes: Nodes, problems: Path, engines: Path | None, *, batch_size: int = 4) -> None:
        self.folder, self.nodes, self.luck, self.count = folder, nodes, random.Random(0), 0
        self.problems, self.engines, self.batch_size = problems, engines, batch_size
        whole = run(structs.replace(self.options("whole"), cluster=None, replicas=1))
        assert whole.folder is not None
        self.ground = Ground(engines="waiting" if engines else "torch", begin=(), chains=frozenset(over(whole.folder)), whole=whole.folder)

    def options(self, name: str) -> RunOptions:
        """The run that is struck."""
        return options(self.folder, name, self.problems, self.engines, 2, self.batch_size)

    def struck(self, fault: str, act: Callable[[View], object]) -> Toll:
        """A run that is struck once, at a random moment."""
        self.count += 1
        moment = self.luck.uniform(0.1, 0.7) * len(self.ground.chains)
        with _struck(act, lambda view: view.progress.done >= moment) as observer:
            result = run(self.options(f"run-{self.count}"), observer, carry_out=solve_on_ray)
        assert result.folder is not None
        found = toll(fault, self.ground, result.folder, result.folder / "no.log", wrong_ends=int(result.exit_code != 0))
        click.echo(f"  {fault}: {'harmless' if found.harmless else found}", err=True)
        self.restore()
        return found

    def restore(self) -> None:
        """Let the cluster have two nodes."""
        while len(self.nodes.nodes) < 2:
            self.nodes.add()

    def killed(self, view: View) -> None:
        """SIGKILL for one replica."""
        self._signal(signal.SIGKILL)

    def hung(self, view: View) -> None:
        """SIGSTOP for one replica."""
        self._signal(signal.SIGSTOP)

    def slowed(self, view: View) -> None:
        """One replica runs a tenth of the time from now on."""
        process = self.luck.choice(self.nodes.actors())

        def slow() -> None:
            try:
                while True:
                    process.send_signal(signal.SIGSTOP)
                    time.sleep(0.45)
                    process.send_signal(signal.SIGCONT)
                    time.sleep(0.05)
            except psutil.NoSuchProcess:
                return

        threading.Thread(target=slow, daemon=True).start()

    def died(self, view: View) -> None:
        """A node dies."""
        self.nodes.remove(self.luck.choice(self.nodes.nodes))

    def replaced(self, view: View) -> None:
        """A node dies, and another one joins."""
        self.died(view)
        self.nodes.add()

    def joined(self, view: View) -> None:
        """A node joins, and then one dies."""
        self.nodes.add()
        self.nodes.remove(self.nodes.nodes[0])

    def hopeless(self, view: View) -> None:
        """Whatever process the replica has is killed, until it is dropped."""

        def kill() -> None:
            while not any(state.what.startswith("dropped") for state in view.replicas()) and view.progress.done < len(self.ground.chains):
                for process in self.nodes.actors()[:1]:
                    process.send_signal(signal.SIGKILL)
                time.sleep(0.5)

        threading.Thread(target=kill, daemon=True).start()

    def _signal(self, number: signal.Signals) -> None:
        actors = self.nodes.actors()
        if actors:
            self.luck.choice(actors).send_signal(number)

    def driver(self, fault: str, number: signal.Signals) -> Toll:
        """The driver is killed, and the run continues on another number of replicas."""
        self.count += 1
        out, log = self.folder / f"run-{self.count}", self.folder / f"run-{self.count}.log"
        words = ["run", "speccot", "--engines", str(self.engines), "--input", str(self.problems), "--output", str(out)]
        words += ["--cluster", "ray", "--replicas", "2", "--batch-size", str(self.batch_size)]
        with log.open("w") as file:
            process = subprocess.Popen([sys.executable, "-c", SOLVE, *words], stdout=file, stderr=file, start_new_session=True)
        size = self.luck.uniform(4000, 16000)
        while process.poll() is None and sum(path.stat().st_size for path in (out / "chains").glob("wal-*")) < size:
            time.sleep(0.02)
        os.killpg(process.pid, number)
        process.wait()
        said = over(out)
        result = run(structs.replace(resume_options(out), replicas=1), carry_out=solve_on_ray)
        found = toll(fault, self.ground, out, log, said=said, wrong_ends=int(result.exit_code != 0))
        click.echo(f"  {fault}: {'harmless' if found.harmless else found}", err=True)
        return found


def faults(folder: Path, share: float = 1.0) -> dict[str, Any]:
    """Faults of each kind on engines that answer the same twice."""
    problems = folder / "problems.parquet"
    write_problems(problems, 60)
    fleet.SILENT_S = 5.0
    with cluster_of(2) as nodes:
        bench = Faults(folder, nodes, problems, engines_file(folder))
        kinds: list[tuple[str, int, Callable[[View], object]]] = [
            ("a replica's process is killed", 12, bench.killed),
            ("a replica hangs (SIGSTOP)", 6, bench.hung),
            ("a replica is ten times slower", 5, bench.slowed),
            ("a node dies", 6, bench.died),
            ("a node dies, another one joins", 6, bench.replaced),
            ("a node joins, another one dies", 5, bench.joined),
            ("a replica is killed again and again", 2, bench.hopeless),
        ]
        tolls = []
        for fault, count, act in kinds:
            tolls.append(summed([bench.struck(fault, act) for _ in range(max(1, round(count * share)))]))
        engines_file(folder, more=f" max_retries: 10, faults: {{garbage_share: {GARBAGE}}},")
        tolls.append(summed([bench.struck("engines answer with garbage", lambda view: None) for _ in range(max(1, round(2 * share)))]))
        engines_file(folder)
        for fault, number in (("the driver is killed, and resumed elsewhere", signal.SIGKILL), ("Ctrl-C, and resumed", signal.SIGINT)):
            tolls.append(summed([bench.driver(fault, number) for _ in range(max(1, round(4 * share)))]))
    return {"tolls": tolls, "problems": 60, "garbage_share": GARBAGE, "silent_s": 5.0}


def torch(folder: Path, count: int = 200) -> dict[str, Any]:
    """The bundled models on two nodes, one of which is killed."""
    problems = folder / "problems.parquet"
    pq.write_table(pq.read_table(ARITH).slice(0, count), problems)
    with cluster_of(2) as nodes:
        bench = Faults(folder, nodes, problems, None, batch_size=16)
        found = [
            bench.struck("a node dies, another one joins", bench.replaced),
            bench.struck("a replica's process is killed", bench.killed),
        ]
    return {"tolls": found, "problems": count}


# Memory.


def million(folder: Path, count: int = 1_000_000, replicas: int = 8) -> dict[str, Any]:
    """The driver's memory over a million problems."""
    problems, out = folder / "problems.parquet", folder / "run"
    write_problems(problems, count)
    words = ["run", "target", "--engines", str(ROOT / "graphs/engines/sim-instant.yaml"), "--input", str(problems), "--output", str(out)]
    words += ["--set", "engines.*.text={steps_mean: 2, step_tokens_mean: 8, answer_tokens: 8}", "--no-keep-input"]
    words += ["--cluster", "ray", "--replicas", str(replicas), "--batch-size", "32", "--json"]
    curve: list[tuple[float, float, int]] = []
    with cluster_of(replicas), (folder / "log").open("w") as log:
        began = time.monotonic()
        process = subprocess.Popen([sys.executable, "-c", SOLVE, *words], stdout=log, stderr=log)
        looked = psutil.Process(process.pid)
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            rows = sum(pq.ParquetFile(part).metadata.num_rows for part in (out / "chains").glob("part-*.parquet"))
            curve.append((time.monotonic() - began, looked.memory_info().rss / MIB, rows))
            time.sleep(1.0)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException((folder / "log").read_text()[-2000:])
    session = json.loads((out / "run.json").read_bytes())["sessions"][-1]
    done = json.loads((out / "run.json").read_bytes())["totals"]["chains_done"]
    if done != count:
        raise click.ClickException(f"{done} of {count} chains are done")
    return {
        "problems": count,
        "replicas": replicas,
        "wall_s": session["wall_time_s"],
        "driver_cpu_s": session["orchestrator_cpu_s"],
        "peak_mib": used.ru_maxrss / 1024,
        "solving_mib": _by_share([(mib, rows) for _, mib, rows in curve if rows], count),
    }


def _by_share(points: list[tuple[float, int]], count: int) -> dict[str, float]:
    """The most memory by tenths of the chains that are in finished parts."""
    found: dict[str, float] = {}
    for mib, rows in points:
        name = f"{min(9, 10 * rows // count) / 10:.1f}"
        found[name] = max(found.get(name, 0.0), mib)
    return found


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


def data(folder: Path, count: int = 256, repeats: int = 3) -> dict[str, Any]:
    """`Solver` against a class that solves one batch after the other, with the same engines, in turns."""
    problems, found = folder / "problems.parquet", list[dict[str, Any]]()
    write_problems(problems, count)
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
        click.echo(f"  {kind}, batches of {batch}: {found[-1]['wall_s']:.1f} s, {done} done", err=True)
    return {"results": found, "problems": count, "in_flight": 32}


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {"linear": linear, "faults": faults, "torch": torch, "million": million, "data": data}


@click.command()
@click.option("--part", type=click.Choice(list(PARTS)), required=True)
@click.option("--output", type=click.Path(path_type=Path), help="[default: bench/results/cluster-PART.json]")
def main(part: str, output: Path | None) -> None:
    """Measure one part."""
    recording = begin(__file__)
    with tempfile.TemporaryDirectory() as folder:
        results = PARTS[part](Path(folder))
    results = msgspec.to_builtins(results)
    click.echo(table(recording.write(output or RESULTS / f"cluster-{part}.json", {"bench": "cluster", "part": part, **results})))


if __name__ == "__main__":
    main()
