"""The calls of a run for trace viewers: Perfetto, or any that read OpenTelemetry."""

from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.cli.located import Located
from pipeline.cli.terminal import print_line, print_notice
from pipeline.errors import MissingExtra
from pipeline.export.output import check_output

FILES = {"perfetto": "trace.pftrace", "otlp": "trace.otlp.jsonl.gz"}
"""The kinds of such exports, and the default name of each one's file in the run folder."""


def export_spans(kind: str, run: Located, output: Path | None, overwrite: bool, endpoint: str | None, texts: bool) -> None:
    """Write the calls of a run to a file, or send them to an endpoint, and print how many there are.

    Raises `UsageError` where that is not possible, `ExportError` where the endpoint rejects them.
    """
    exporter = _exporter(kind)
    if endpoint is not None:
        _send(exporter, run, endpoint, texts)
        return
    target = output or run.path / FILES[kind]
    check_output(target, overwrite)
    if kind == "perfetto":
        written = exporter.export(run.path, target)
        print_line(f"{run.name(target)}: {written.calls:,} calls, {written.size / 1e6:,.1f} MB; open it in https://ui.perfetto.dev")
    else:
        sent = exporter.export(run.path, exporter.to_file(target), texts)
        print_line(f"{run.name(target)}: {_count(sent)}, {target.stat().st_size / 1e6:,.1f} MB")


def _exporter(kind: str) -> Any:
    """The module that exports it; raises `MissingExtra` where the packages it needs are not installed."""
    try:
        return import_module(f"pipeline.export.{kind}")
    except ImportError as error:
        package = (error.name or kind).partition(".")[0]
        raise MissingExtra(f"--as {kind}", package, "trace") from error


def _send(exporter: Any, run: Located, endpoint: str, texts: bool) -> None:
    address = exporter.address_of(endpoint)
    sent = exporter.export(run.path, exporter.to_server(address), texts)
    print_line(f"{address}: {_count(sent)}")
    if sent.remark:
        print_notice(sent.remark)


def _count(sent: Any) -> str:
    return f"{sent.spans:,} spans: {sent.chains:,} chains, {sent.steps:,} steps, {sent.calls:,} calls"
