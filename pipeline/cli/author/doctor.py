"""`pipeline doctor [GRAPH|ENGINES|RUN]`: what a machine has, and whether engines could start on it."""

from pathlib import Path
from typing import Any

import click
import msgspec
from rich import box
from rich.table import Table

from pipeline.cli.commands import command, option
from pipeline.cli.console import PlainConsole
from pipeline.cli.options import batch_size_option, json_option, model_option, overwrite_option, with_models
from pipeline.cli.terminal import print_line, print_notice, print_page
from pipeline.doctor import Diagnosis, RoleState, diagnose
from pipeline.engine import Finding, MemoryRow
from pipeline.engines.cores import ranges
from pipeline.engines.placement.engines_file import engines_text
from pipeline.engines.placement.machines import described, machine_named
from pipeline.errors import UsageError
from pipeline.export.output import check_output, whole_file
from pipeline.machine import GIB, Gpu, Machine, gib, look


@command()
@click.argument("what", required=False, type=click.Path(path_type=Path), metavar="[GRAPH|ENGINES|RUN]")
@option("--engines", "bound", type=click.Path(path_type=Path), metavar="NAME|FILE", help="For a graph: engines to use instead of its own.")
@model_option
@option("--as", "named", metavar="NxGPU", help="Plan for another machine, such as 2xH100-80GB, H200 or 4x48GB.")
@option("-s", "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set engines.ROLE.NAME. May be repeated.")
@batch_size_option()
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
    console = PlainConsole()
    if diagnosis.machine.assumed:
        gpus = diagnosis.machine.gpus
        console.print(_pairs(f"{diagnosis.system}, assumed", [(f"GPU {ranges([gpu.index for gpu in gpus])}", _gpu(gpus[0]))]))
    else:
        console.print(_pairs("this machine", _machine_rows(diagnosis)))
        console.print(_backends(diagnosis))
    if diagnosis.engines_file is None:
        console.print("pipeline doctor GRAPH or ENGINES also says whether its engines could start.")
        return
    console.print(_pairs(diagnosis.engines_file, [(role.role, _role(role)) for role in diagnosis.roles]))
    if diagnosis.memory:
        console.print(_memory(diagnosis.memory))
        console.print(
            f"Other (activations, graphs, processes) is assumed. Weights: {_sources(diagnosis.memory)}.{_lengths(diagnosis.memory)}"
        )
    for sentence in diagnosis.notices:
        console.print(sentence)
    for sentence in diagnosis.sharing:
        console.print(f"Sharing: {sentence}.")
    if diagnosis.handover:
        console.print(f"Hand-over: {diagnosis.handover}.")
    failing = [role.role for role in diagnosis.roles if not role.could_start]
    console.print(f"{' and '.join(failing)} could not start." if failing else "Every role could start.", style="bold")


def _cores(machine: Machine) -> str:
    limited = machine.core_count < len(machine.cores)
    return f"{len(machine.cores)}" + (f", of which a CPU quota leaves the time of {machine.core_count}" if limited else "")


def _machine_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    machine = diagnosis.machine
    shown = [f"{name} {version}" for name, version in machine.versions.items()]
    return [
        ("system", diagnosis.system),
        ("cores", _cores(machine)),
        ("memory", f"{gib(machine.memory_bytes)}, {gib(machine.free_memory_bytes)} free"),
        *((f"GPU {gpu.index}", _gpu(gpu)) for gpu in machine.gpus),
        *([] if machine.gpus else [("GPU", "none that the NVIDIA driver and CUDA_VISIBLE_DEVICES show")]),
        *([] if machine.cuda_mps is None else [("CUDA MPS", f"its control daemon {'runs' if machine.cuda_mps else 'does not run'}")]),
        ("driver", machine.driver or "none"),
        ("torch sees", _torch_sees(diagnosis)),
        ("versions", ", ".join(shown)),
    ]


def _gpu(gpu: Gpu) -> str:
    if gpu.memory_bytes is None or gpu.free_bytes is None:
        return f"{gpu.name}, memory not told"
    return f"{gpu.name}, {gib(gpu.memory_bytes)}, {gib(gpu.free_bytes)} free"


def _torch_sees(diagnosis: Diagnosis) -> str:
    machine = diagnosis.machine
    if machine.cuda_usable is None:
        return "torch does not load here"
    cuda = (
        f"CUDA {machine.cuda}" if machine.cuda_usable else f"no CUDA device (built for CUDA {machine.cuda})" if machine.cuda else "no CUDA"
    )
    return f"{cuda}, {'Apple MPS' if machine.mps else 'no Apple MPS'}"


def _backends(diagnosis: Diagnosis) -> Table:
    table = _table("backend", "usable", "")
    for state in diagnosis.backends:
        table.add_row(state.backend, "yes" if state.usable else "no", "; ".join(filter(None, (state.what, state.remedy))))
    return table


def _role(role: RoleState) -> str:
    answer = "could start" if role.could_start else "could not start"
    lines = [
        f"{role.backend} {role.model}: {answer if role.checked else 'nothing to check'}",
        *(_line(finding) for finding in role.findings),
    ]
    return "\n".join(lines)


def _line(finding: Finding) -> str:
    return f"{'error' if finding.fatal else 'note'}: {finding.what}; {finding.remedy}"


def _memory(rows: tuple[MemoryRow, ...]) -> Table:
    table = _table("device", "role", "share", "total", "weights", "other", "cache", "tokens", "contexts", right_from=2)
    table.title, table.title_justify = "memory plan, GiB", "left"
    for devices, cells in _alike(rows).items():
        for place, row in enumerate(cells):
            table.add_row(devices if place == 0 else "", *row, style="dim" if row[0] == "all" else "", end_section=row is cells[-1])
    return table


def _alike(rows: tuple[MemoryRow, ...]) -> dict[str, list[list[str]]]:
    """The rows of cells of each device; devices with the same rows share one entry."""
    groups: dict[str, tuple[list[str], list[list[str]]]] = {}
    for device in dict.fromkeys(row.device for row in rows):
        here = [row for row in rows if row.device == device]
        cells = [*(_cells(row) for row in here), _sum(here)]
        groups.setdefault(repr(cells), ([], cells))[0].append(device)
    return {_together(devices): cells for devices, cells in groups.values()}


def _together(devices: list[str]) -> str:
    """The devices in short: `GPU 0-3, 5`."""
    numbers = [int(device.removeprefix("GPU ")) for device in devices if device != "CPU"]
    return f"GPU {ranges(numbers)}" if numbers else "CPU"


def _cells(row: MemoryRow) -> list[str]:
    total = row.share_bytes if row.share_bytes is not None else _promised(row)
    tokens = "-" if row.cache_tokens is None else f"{row.cache_tokens:,}"
    contexts = "-" if row.sequences is None else f"{row.sequences:,.1f}"
    share = "-" if row.share is None else f"{row.share:g}"
    return [row.role, share, _size(total), _size(row.weights_bytes), _size(row.overhead_bytes), _size(row.cache_bytes), tokens, contexts]


def _sum(rows: list[MemoryRow]) -> list[str]:
    """The cells of a device's last row: what all roles together claim of its memory, and what is free."""
    shares = [row.share for row in rows if row.share is not None]
    total = sum(row.share_bytes if row.share_bytes is not None else _promised(row) for row in rows)
    return ["all", f"{sum(shares):g}" if shares else "", _size(total), f"of {_size(rows[0].free_bytes)}", "free", "", "", ""]


def _promised(row: MemoryRow) -> int:
    return (row.weights_bytes or 0) + row.overhead_bytes + max(0, row.cache_bytes or 0)


def _size(size: int | None) -> str:
    return "-" if size is None else f"{size / GIB:.1f}"


def _sources(rows: tuple[MemoryRow, ...]) -> str:
    return ", ".join(dict.fromkeys(f"{row.role} by {row.weights_source}" for row in rows))


def _lengths(rows: tuple[MemoryRow, ...]) -> str:
    """How long the contexts are that are counted."""
    known = {row.role: row.cache_tokens / row.sequences for row in rows if row.cache_tokens and row.sequences}
    said = ", ".join(f"{role} {tokens:,.0f} tokens" for role, tokens in known.items())
    return f" Contexts: {said} each." if said else ""


def _pairs(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def _table(*titles: str, right_from: int | None = None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, title in enumerate(titles):
        right = right_from is not None and place >= right_from
        table.add_column(title, justify="right" if right else "left", style="bold" if place == 0 else "", overflow="fold")
    return table
