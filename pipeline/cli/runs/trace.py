"""`pipeline trace export RUN`: a run's trace for other programs: Perfetto, or any that read OpenTelemetry."""

from importlib import import_module
from pathlib import Path
from typing import Any

import click

from pipeline.cli.located import RunFolder
from pipeline.cli.main import print_line
from pipeline.cli.runs.folder import print_flaws
from pipeline.cli.terminal.notices import print_notice
from pipeline.errors import MissingExtra, UsageError
from pipeline.export.output import check_output
from pipeline.trace.read import check_folder

FILES = {"perfetto": "trace.pftrace", "otel": "trace.otlp.jsonl.gz"}
"""Formats, and the default name of each one's file in the run folder."""


@click.group()
def trace() -> None:
    """Export the trace of a run."""


@trace.command()
@click.argument("run", type=RunFolder(), metavar="RUN")
@click.option("--format", "form", type=click.Choice(list(FILES)), default="perfetto", show_default=True, help="Output format.")
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE", help="Output file, compressed if it ends in .gz.  [default: in RUN]"
)
@click.option(
    "--endpoint",
    metavar="URL",
    help="otel: send to this OTLP/HTTP endpoint, such as http://127.0.0.1:4318 (to /v1/traces there).",
)
@click.option("--texts", is_flag=True, help="otel: include the texts of steps and answers.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def export(run: Path, form: str, output: Path | None, endpoint: str | None, texts: bool, force: bool, debug: bool) -> None:
    """Export the calls of the run folder RUN.

    perfetto: a file for https://ui.perfetto.dev, with engines as processes, calls as slices, and arrows between the calls of a chain.

    otel: OpenTelemetry spans with GenAI attributes, one trace for each chain, as OTLP JSON lines or to a server; its headers
    and time limits come from the OTEL_EXPORTER_OTLP_* variables.

    Exit codes: 0 exported; 1 the endpoint rejects it, or the file cannot be written; 2 RUN or an option is wrong.
    """
    check_folder(run)
    _check(form, output, endpoint, texts, force)
    exporter = _exporter(form)
    print_flaws([run])
    if endpoint is not None:
        _send(exporter, run, endpoint, texts)
        return
    target = output or run / FILES[form]
    check_output(target, force)
    _write(exporter, form, run, target, texts)


def _check(form: str, output: Path | None, endpoint: str | None, texts: bool, force: bool) -> None:
    """Raise `UsageError` for options that would be ignored."""
    if form != "otel" and (endpoint is not None or texts):
        raise UsageError(f"--{'texts' if endpoint is None else 'endpoint'} has no effect with --format {form}; add --format otel")
    if endpoint is not None and (output is not None or force):
        raise UsageError(f"--{'force' if output is None else 'output'} has no effect with --endpoint; leave one of them out")


def _exporter(form: str) -> Any:
    """The module that exports the format; raises `MissingExtra` where the packages it needs are not installed."""
    try:
        return import_module(f"pipeline.export.{form}")
    except ImportError as error:
        package = (error.name or form).partition(".")[0]
        raise MissingExtra(f"--format {form}", package, "trace") from error


def _write(exporter: Any, form: str, run: Path, target: Path, texts: bool) -> None:
    if form == "perfetto":
        written = exporter.export(run, target)
        print_line(f"{target}: {written.calls:,} calls, {written.size / 1e6:,.1f} MB; open it in https://ui.perfetto.dev")
    else:
        sent = exporter.export(run, exporter.to_file(target), texts)
        print_line(f"{target}: {_count(sent)}, {target.stat().st_size / 1e6:,.1f} MB")


def _send(exporter: Any, run: Path, endpoint: str, texts: bool) -> None:
    address = exporter.address_of(endpoint)
    sent = exporter.export(run, exporter.to_server(address), texts)
    print_line(f"{address}: {_count(sent)}")
    if sent.remark:
        print_notice(sent.remark)


def _count(sent: Any) -> str:
    return f"{sent.spans:,} spans: {sent.chains:,} chains, {sent.steps:,} steps, {sent.calls:,} calls"
