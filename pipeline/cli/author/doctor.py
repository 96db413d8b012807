"""`pipeline doctor [GRAPH|ENGINES|RUN]`: what a machine has, and whether engines could start on it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from pipeline.analysis.compare.cells import Table
from pipeline.cli.author.diagnosis import Diagnosis, RoleState, diagnose
from pipeline.cli.commands import check_output, command, json_option, option, overwrite_option
from pipeline.cli.console import PlainConsole, print_table
from pipeline.cli.options import model_option, run_options, with_models
from pipeline.cli.terminal import print_line, print_notice, print_page
from pipeline.engine import MemoryRow
from pipeline.engines.cores import ranges
from pipeline.engines.placement.machines import described, machine_named
from pipeline.errors import UsageError
from pipeline.files import whole_file
from pipeline.graph.yaml_file import engines_text
from pipeline.system.machine import GIB, Gpu, Machine, gib, look

MEMORY = ("device", "role", "share", "total", "weights", "other", "cache", "tokens", "contexts")
"""Columns of the memory plan."""


@command()
@click.argument("what", required=False, type=click.Path(path_type=Path), metavar="[GRAPH|ENGINES|RUN]")
@option("--engines", "bound", type=click.Path(path_type=Path), metavar="NAME|FILE", help="For a graph: engines to use instead of its own.")
@model_option
@option("--as", "named", metavar="NxGPU", help="Plan for another machine, such as 2xH100-80GB, H200 or 4x48GB.")
@option("-s", "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set engines.ROLE.NAME. May be repeated.")
@run_options("batch_size")
@option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the engines chosen for --model as an engines file.")
@overwrite_option
@json_option
def doctor(what: Path | None, bound: Path | None, named: str | None, output: Path | None, as_json: bool, **options: Any) -> int:
    """Report what this machine has and, for a graph, an ENGINES file or a run folder, whether each role could start here; of a graph also
    whether the engines can do what its stages need. With --as the same for a machine that this is not.

    No engine is started; servers are asked a few small questions.
    """
    if what is None and (bound is not None or options["models"]):
        raise UsageError(f"{'--model' if bound is None else f'--engines {bound}'}: only with a graph; name it too")
    if output is not None:
        check_output(output, options["overwrite"])
        if not options["models"]:
            raise UsageError(f"--output {output}: writes the engines that are chosen for --model; give those too")
    elsewhere = None if named is None else machine_named(named)
    planned = _planned(what, bound, elsewhere, options)
    diagnosis = diagnose(what, options["settings"], bound=planned or bound, elsewhere=elsewhere)
    if output is not None:
        chosen = "backend, device and share of the memory are such that these models fit there together"
        _write(output, planned, [f"Engines for {what} on {described(diagnosis.machine)}: {chosen}.", *diagnosis.sharing])
    if as_json:
        print_page(msgspec.json.encode(diagnosis, order="sorted"))
    else:
        _print(diagnosis)
        if diagnosis.healthy and planned:
            models = f"--engines {output}" if output else " ".join(f"--model {each}" for each in options["models"])
            print_line(f"To run it: pipeline run {what} {models} --input FILE")
    return 0 if diagnosis.healthy else 2


def _planned(graph: Path | None, bound: Path | None, elsewhere: Machine | None, options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The engines that are chosen for the models of the options; none without any."""
    if graph is None or not options["models"]:
        return {}
    found = with_models([graph], {**options, "engines": bound}, options["batch_size"], elsewhere or look())
    planned: dict[str, dict[str, Any]] = found["planned_engines"]
    return planned


def _write(path: Path, engines: dict[str, dict[str, Any]], head: list[str]) -> None:
    with whole_file(path) as file:
        file.write(engines_text(engines, head).encode())
    print_notice(f"wrote {path}")


def _print(diagnosis: Diagnosis) -> None:
    console, machine = PlainConsole(), diagnosis.machine
    if machine.assumed:
        numbers = ranges([gpu.index for gpu in machine.gpus])
        print_table(_pairs(f"{diagnosis.system}, assumed", [(f"GPU {numbers}", _gpu(machine.gpus[0]))]), console)
    else:
        print_table(_pairs("this machine", _machine_rows(diagnosis.system, machine)), console)
        usable = [
            (each.backend, "yes" if each.usable else "no", "; ".join(filter(None, (each.what, each.remedy)))) for each in diagnosis.backends
        ]
        print_table(Table("", ("backend", "usable", ""), tuple(usable)), console)
    if diagnosis.engines_file is None:
        console.print("pipeline doctor GRAPH or ENGINES also says whether its engines could start.")
        return
    print_table(_pairs(diagnosis.engines_file, [(role.role, _role(role)) for role in diagnosis.roles]), console)
    if rows := diagnosis.memory:
        console.print("memory plan, GiB", style="bold")
        print_table(Table("", MEMORY, tuple(_memory_rows(rows))), console)
        sources = ", ".join(dict.fromkeys(f"{row.role} by {row.weights_source}" for row in rows))
        console.print(f"Other (activations, graphs, processes) is assumed. Weights: {sources}.{_lengths(rows)}")
    handover = [] if diagnosis.handover is None else [f"Hand-over: {diagnosis.handover}."]
    for sentence in (*diagnosis.notices, *(f"Sharing: {each}." for each in diagnosis.sharing), *handover):
        console.print(sentence)
    failing = [role.role for role in diagnosis.roles if not role.could_start]
    console.print(f"{' and '.join(failing)} could not start." if failing else "Every role could start.", style="bold")


def _machine_rows(system: str, machine: Machine) -> list[tuple[str, str]]:
    return [
        ("system", system),
        ("cores", str(len(machine.cores))),
        ("memory", f"{gib(machine.memory_bytes)}, {gib(machine.free_memory_bytes)} free"),
        *((f"GPU {gpu.index}", _gpu(gpu)) for gpu in machine.gpus),
        *([] if machine.gpus else [("GPU", "none that the NVIDIA driver and CUDA_VISIBLE_DEVICES show")]),
        *([] if machine.cuda_mps is None else [("CUDA MPS", f"its control daemon {'runs' if machine.cuda_mps else 'does not run'}")]),
        ("driver", machine.driver or "none"),
        ("versions", ", ".join(f"{name} {version}" for name, version in machine.versions.items())),
    ]


def _gpu(gpu: Gpu) -> str:
    if gpu.memory_bytes is None or gpu.free_bytes is None:
        return f"{gpu.name}, memory not told"
    return f"{gpu.name}, {gib(gpu.memory_bytes)}, {gib(gpu.free_bytes)} free"


def _role(role: RoleState) -> str:
    answer = "nothing to check" if not role.checked else "could start" if role.could_start else "could not start"
    findings = (f"{'error' if each.fatal else 'note'}: {each.what}; {each.remedy}" for each in role.findings)
    return "\n".join([f"{role.backend} {role.model}: {answer}", *findings])


def _memory_rows(rows: Sequence[MemoryRow]) -> Iterator[tuple[str, ...]]:
    """The memory plan: of each device its roles, and what all together take; devices with the same rows are one."""
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for device in dict.fromkeys(row.device for row in rows):
        here = [row for row in rows if row.device == device]
        free = f"of {_size(here[0].free_bytes)} free"
        alike.setdefault((*map(_cells, here), ("all", "", _size(sum(map(_taken, here))), free)), []).append(device)
    for cells, devices in alike.items():
        numbers = [int(device.removeprefix("GPU ")) for device in devices if device != "CPU"]
        for place, row in enumerate(cells):
            device = f"GPU {ranges(numbers)}" if numbers else "CPU"
            yield ("" if place else device, *row, *[""] * (len(MEMORY) - 1 - len(row)))


def _cells(row: MemoryRow) -> tuple[str, ...]:
    tokens = "" if row.cache_tokens is None else f"{row.cache_tokens:,}"
    contexts = "" if row.sequences is None else f"{row.sequences:,.1f}"
    share = "" if row.share is None else f"{row.share:g}"
    return (row.role, share, *map(_size, (_taken(row), row.weights_bytes, row.overhead_bytes, row.cache_bytes)), tokens, contexts)


def _taken(row: MemoryRow) -> int:
    """Its share, or the sum of its parts where it has none."""
    if row.share_bytes is not None:
        return row.share_bytes
    return (row.weights_bytes or 0) + row.overhead_bytes + max(0, row.cache_bytes or 0)


def _size(size: int | None) -> str:
    return "" if size is None else f"{size / GIB:.1f}"


def _lengths(rows: Sequence[MemoryRow]) -> str:
    """How long the contexts are that are counted."""
    known = {row.role: row.cache_tokens / row.sequences for row in rows if row.cache_tokens and row.sequences}
    said = ", ".join(f"{role} {tokens:,.0f} tokens" for role, tokens in known.items())
    return f" Contexts: {said} each." if said else ""


def _pairs(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    return Table("", (title, ""), tuple(rows))
