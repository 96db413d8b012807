"""The same problems over the same servers: the published script of SpecReason, plain loops, lm_eval, `vllm run-batch`, and this program.

    git clone https://github.com/ruipeterpan/specreason build/specreason
    python -m bench.peers.measure build/specreason/spec_reason.py

All ask greedily, with the same prompts and the script's stop rules; problems, servers and turns are shared, prefix caches are emptied
before each turn. With `--model target=NAME --model draft=NAME` these models are served instead of the bundled ones, with the script's
prompts, and few problems are asked. The script is run with models whose chat template opens no thought: it strips the mark that ends one
and goes on. Needs
`make .venv/clients/ready` for lm_eval. Writes bench/results/peers.json and bench/peers.md.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch
from urllib.request import urlopen

import aiohttp
import click
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from bench.figures import RESULTS, ROOT, TRIAL, Results, begin, grid, origin, results_of
from bench.peers.loops import CLOSE, OPEN, Chain, Loop, gathered, lockstep
from bench.runs import ARITH, say, spent, whole
from pipeline.analysis.curves import Spread, ranged
from pipeline.analysis.tables import plain
from pipeline.engines.models import resolve
from pipeline.engines.placement import pairs
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.graph.load import load_graph
from pipeline.options import RunOptions
from pipeline.run.run import run
from pipeline.store.query import Query
from tests.support.servers import vllm_server

STEPS = Path("bench/peers/steps.yaml")
PORTS = {"target": 30000, "draft": 30001}
"""Those that the script asks."""
BUNDLED = {"target": "bundled:tiny-target", "draft": "bundled:tiny-draft"}
FLAGS = ("--max-model-len", "2048")
UNSPLIT = ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192", "--block-size", "32", "--enforce-eager")
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0", "TORCHDYNAMO_DISABLE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
HARNESS = """\
import sys
from pathlib import Path
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

url, size = sys.argv[1:]
asked = f"model=target,base_url={url}/chat/completions,num_concurrent={size},tokenizer_backend=none"
tasks = TaskManager(include_path=Path(__file__).parent, include_defaults=False)
how = {"apply_chat_template": True, "bootstrap_iters": 0}
simple_evaluate("local-chat-completions", model_args=asked, tasks=["alone"], task_manager=tasks, **how)
"""
THRESHOLD, BUDGET = 7, 256
GREEDY = {"temperature": 0, "max_tokens": BUDGET}
STEPWISE = {"gather loop": gathered, "lockstep": lockstep}
COMMANDS = ("this program", "lm_eval", "this program, own engine", "vllm run-batch")
COLUMNS = ("batch size", "who", "problems/s", "of this program", "steps a problem", "the same thought")
COMMAND_COLUMNS = ("batch size", "whole command", "seconds", "of this program")
INTRODUCTION = f"""\
SpecReason over two vLLM servers, greedily, with the stop rules of its published script and thoughts of at most {BUDGET} tokens; the
script's may be longer by a step. Prompts are the script's, but the bundled pair gets those that it was trained on. The script solves one
problem at a time, and its process start is not counted; nor are those of the loops and of this program, which asks for one token of an
answer more for each problem and writes its trace. Medians over the turns, in brackets the least and the greatest. *The same thought*:
problems whose thought is word for word the one of this program's first turn. Servers that batch differently round differently, so that
greedy words may differ; the script puts `<think>` before all steps but the first, with any model."""
ALONE = """\
The target alone, as whole commands with their process start: lm_eval and this program ask the server of the target, `vllm run-batch` and
this program with an engine of its own load the model, too."""


class Bench(NamedTuple):
    """A pair that is served, and its problems."""

    models: Mapping[str, str]
    urls: Mapping[str, str]
    problems: Sequence[str]
    folder: Path
    script: Path
    prompts: str
    dtype: str
    opening: str
    """How the chat template of the target begins a thought."""

    def engines(self) -> Path:
        """The engines file of the servers."""
        engines = {
            role: {"backend": "openai", "model": role, "base_url": url, "tokenizer": self.models[role], "max_in_flight": 256}
            for role, url in self.urls.items()
        }
        (path := self.folder / "engines.yaml").write_text(yaml.safe_dump(engines))
        return path

    def options(self, name: str, size: int) -> RunOptions:
        """A run of this program."""
        settings = (f"prompts={self.prompts}", f"threshold={THRESHOLD}", f"token_budget={BUDGET}")
        problems = (str(self.folder / "problems.parquet"),)
        return RunOptions(
            graph=STEPS, engines=self.engines(), input=problems, batch_size=size, settings=settings, output=self.folder / name
        )


class Solved(NamedTuple):
    """What one turn took and wrote."""

    seconds: float
    steps: Mapping[str, Sequence[str]]
    """By problem."""

    @property
    def thoughts(self) -> Mapping[str, str]:
        """By problem, however blank lines and the closing mark are kept."""
        return {
            problem: "\n\n".join(each.strip("\n").removesuffix(CLOSE) for each in steps).strip() for problem, steps in self.steps.items()
        }


def ours(bench: Bench, size: int, turn: int) -> Solved:
    """A turn of this program."""
    folder = whole(run(bench.options(f"ours-{size}-{turn}", size))).folder
    with Query(folder) as db:
        steps = db.arrow("SELECT problem, step_text FROM steps JOIN problems USING (problem_id) ORDER BY chain_id, step_index").to_pylist()
        [(seconds,)] = db.stream("SELECT (max(end_unix_ns) - min(start_unix_ns)) / 1e9 FROM chains")
    found: dict[str, list[str]] = {}
    for each in steps:
        found.setdefault(each["problem"], []).append(each["step_text"])
    return Solved(float(seconds), found)


def looped(bench: Bench, who: str, size: int) -> Solved:
    """A turn of a plain loop."""
    chains = [Chain(problem) for problem in bench.problems]

    async def solve() -> float:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout()) as session:
            loop = Loop(
                session, bench.urls, load_graph(STEPS, settings=(f"prompts={bench.prompts}",)).prompts, bench.opening, THRESHOLD, BUDGET
            )
            started = time.perf_counter()
            await STEPWISE[who](loop, chains, size)
            return time.perf_counter() - started

    seconds = asyncio.run(solve())
    return Solved(seconds, {chain.problem: chain.steps for chain in chains})


def scripted(bench: Bench) -> Solved:
    """A turn of the published script."""
    with TemporaryDirectory() as made:
        (data := Path(made) / "HuggingFaceH4/MATH-500").mkdir(parents=True)
        pq.write_table(pa.table({"problem": bench.problems}), data / "test.parquet")
        command = [sys.executable, "-m", "bench.peers.script", str(bench.script), str(len(bench.problems)), str(BUDGET)]
        environment = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": made}
        done = subprocess.run(command, cwd=made, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return Solved(sum(found["seconds"]), dict(zip(bench.problems, found["steps"], strict=True)))


def stepwise(bench: Bench, sizes: Sequence[int], turns: int) -> Iterator[dict[str, Any]]:
    """Problems a second of each way at each batch size, in turns."""
    for size in sizes:
        ways = ["this program", "gather loop"]
        ways += ["lockstep"] if size > 1 else [] if bench.opening else ["published script"]
        found: dict[str, list[Solved]] = {way: [] for way in ways}
        for turn in range(turns):
            for way in ways[:: -1 if turn % 2 else 1]:
                for url in bench.urls.values():
                    urlopen(url.removesuffix("/v1") + "/reset_prefix_cache", data=b"").close()
                if way == "this program":
                    solved = ours(bench, size, turn)
                else:
                    solved = scripted(bench) if way == "published script" else looped(bench, way, size)
                found[way].append(solved)
                say(f"batch size {size}, {way}: {solved.seconds:.3g} s")
        expected = found["this program"][0].thoughts
        for way, solves in found.items():
            yield {
                "batch_size": size,
                "who": way,
                "problems_per_s": [round(len(bench.problems) / each.seconds, 4) for each in solves],
                "steps": [sum(map(len, each.steps.values())) for each in solves],
                "same": sum(solves[0].thoughts[each] == expected[each] for each in bench.problems),
            }


def commands(bench: Bench, size: int, turns: int) -> Iterator[dict[str, Any]]:
    """Seconds of whole commands that ask the target alone, each problem once."""
    ways = {name: line for name, line in _commands(bench, size).items() if Path(line[0]).exists()}
    took: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns):
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            urlopen(bench.urls["target"].removesuffix("/v1") + "/reset_prefix_cache", data=b"").close()
            line = [word.replace("TURN", str(turn)) for word in ways[name]]
            with patch.dict(os.environ, CPU):
                took[name].append(round(spent(line)[0]["wall_s"], 2))
            say(f"batch size {size}, {name}: {took[name][-1]:.1f} s")
    for name, seconds in took.items():
        yield {"batch_size": size, "who": name, "seconds": seconds}


def _commands(bench: Bench, size: int) -> Mapping[str, list[str]]:
    """The command lines by name."""
    model, asked = resolve("target", bench.models["target"]), load_graph(Path("target")).prompts.problem
    problems, here = bench.folder / "problems.parquet", Path(sys.executable).parent
    task = {
        "task": "alone", "dataset_path": "parquet", "dataset_kwargs": {"data_files": {"test": str(problems)}}, "test_split": "test",
        "output_type": "generate_until", "doc_to_text": asked, "doc_to_target": "", "metric_list": [{"metric": "exact_match"}],
        "generation_kwargs": {"until": ["\n\n\n\n"], "do_sample": False, "temperature": 0.0, "max_gen_toks": BUDGET},
    }  # fmt: skip
    (bench.folder / "alone.yaml").write_text(yaml.safe_dump(task))
    (bench.folder / "harness.py").write_text(HARNESS)
    bodies = (
        {"model": "target", "messages": [{"role": "user", "content": asked.replace("{{problem}}", each)}], **GREEDY}
        for each in bench.problems
    )
    lines = [
        json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body})
        for number, body in enumerate(bodies)
    ]
    (bench.folder / "requests.jsonl").write_text("\n".join(lines) + "\n")
    args = {"dtype": bench.dtype, "max_model_len": 2048, "max_num_seqs": size}
    own = {"target": {"backend": "vllm", "model": bench.models["target"], "args": args, "core": 0}}
    (bench.folder / "own.yaml").write_text(yaml.safe_dump(own))
    run_target = [str(here / "pipeline"), "run", "target", "--input", str(problems), "--batch-size", str(size), "-q"]
    for setting in ("temperature=0", "budget=response", f"token_budget={BUDGET}"):
        run_target += ["--set", setting]
    flags = [word for name, value in args.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    files = ["-i", str(bench.folder / "requests.jsonl"), "-o", str(bench.folder / "replies.jsonl")]
    batch = [sys.executable, "-m", "vllm.entrypoints.openai.run_batch", *files]
    return {
        "this program": [*run_target, "--engines", str(bench.engines()), "--output", str(bench.folder / f"alone-{size}-TURN")],
        "lm_eval": [str(here.parent / "clients/bin/python"), str(bench.folder / "harness.py"), bench.urls["target"], str(size)],
        "this program, own engine": [
            *run_target, "--engines", str(bench.folder / "own.yaml"), "--output", str(bench.folder / f"own-{size}-TURN"),
        ],
        "vllm run-batch": [*batch, "--model", str(model), "--served-model-name", "target", *flags, *UNSPLIT],
    }  # fmt: skip


def page_of(results: Results) -> str:
    """The page, from the results."""
    parts = ["# Beside other programs"]
    for found in results["pairs"].values():
        rows, whole_commands = found["stepwise"], found["commands"]
        parts += [
            f"## {found['title']}, {found['problems']} problems",
            f"{origin(found['measured'])[:-1]}.",
            INTRODUCTION,
            grid(COLUMNS, (_stepwise(row, rows, found["problems"]) for row in rows)),
            ALONE,
            grid(COMMAND_COLUMNS, (_command(row, whole_commands) for row in whole_commands)),
        ]
    return "\n\n".join(parts) + "\n"


def _stepwise(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], problems: int) -> Sequence[str]:
    [base] = (each for each in rows if each["batch_size"] == row["batch_size"] and each["who"] == "this program")
    rates = row["problems_per_s"]
    over = "-" if base is row else ranged(_over(rates, base["problems_per_s"]))
    steps = plain(statistics.median(row["steps"]) / problems)
    return str(row["batch_size"]), row["who"], ranged(_spread(rates)), over, steps, f"{row['same']} of {problems}"


def _command(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Each is beside this program with an engine of the same kind."""
    like = COMMANDS[0] if row["who"] in COMMANDS[:2] else COMMANDS[2]
    [base] = (each for each in rows if each["batch_size"] == row["batch_size"] and each["who"] == like)
    over = "-" if base is row else ranged(_over(base["seconds"], row["seconds"]))
    return str(row["batch_size"]), row["who"], ranged(_spread(row["seconds"])), over


def _spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def _over(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    return Spread(statistics.median(ours) / statistics.median(theirs), min(ours) / max(theirs), max(ours) / min(theirs))


@click.command(help=__doc__)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path))
@click.option("--model", "models", multiple=True, metavar="ROLE=MODEL")
@click.option("--problems", type=Path, default=ARITH, help="Parquet file with a column `problem`.")
def main(script: Path, models: tuple[str, ...], problems: Path) -> None:
    recording = begin(__file__)
    given = BUNDLED | pairs(models)
    name = "toy" if given == BUNDLED else "real"
    count, turns, sizes = (4, 1, (1, 2)) if TRIAL else (64, 3, (1, 8, 32)) if name == "toy" else (16, 1, (1, 8))
    texts = pq.read_table(problems).column("problem").to_pylist()[:count]
    dtype = "float32" if name == "toy" else "bfloat16"
    kept = results_of("peers")["pairs"] if (ROOT / RESULTS / "peers.json").exists() else {}
    with TemporaryDirectory() as made, ExitStack() as stack, patch.dict(os.environ, {"VLLM_SERVER_DEV_MODE": "1"}):
        pq.write_table(pa.table({"problem": texts}), Path(made) / "problems.parquet")
        urls = {
            role: stack.enter_context(
                vllm_server(resolve(role, given[role]), role, core, "--dtype", dtype, *FLAGS, port=PORTS[role])
            ).base_url
            for core, role in enumerate(PORTS)
        }
        reply = HFTokenizer(str(resolve("target", given["target"]))).render([{"role": "user", "content": ""}])
        opening = reply[reply.rindex(OPEN) :] if OPEN in reply else ""
        bench = Bench(given, urls, texts, Path(made), script, "specreason" if name == "real" else "default", dtype, opening)
        rows = list(stepwise(bench, sizes, turns))
        alone = list(commands(bench, sizes[-1], turns))
    titles = {"toy": "The bundled pair", "real": " and ".join(Path(each).name for each in given.values())}
    kept[name] = {"title": titles[name], "problems": count, "stepwise": rows, "commands": alone, "measured": recording.measured}
    recording.write("peers", {"bench": "peers", "pairs": kept})


if __name__ == "__main__":
    main()
