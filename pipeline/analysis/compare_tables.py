"""A comparison as the tables that the papers print: Markdown for people, CSV for spreadsheets. Pure."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from pipeline.analysis.compare import Compared, Comparison, Estimate
from pipeline.plain import cell


class Table(Struct, frozen=True):
    """A table: what it answers, its columns, and rows of cells ready to print."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(comparison: Comparison) -> tuple[Table, ...]:
    """All tables that these runs can fill."""
    made = [
        _systems(comparison),
        _tokens(comparison),
        _steps(comparison),
        *_batches(comparison),
        *_thresholds(comparison),
        *_reflective(comparison),
    ]
    return tuple(table for table in made if table.rows)


def markdown(comparison: Comparison) -> str:
    """The tables, what an interval is, and what to know before believing a difference."""
    name = _cell(comparison.baseline)
    parts = [f"Baseline: {name}. Brackets: 95 % intervals by bootstrap over problems, the same problems for both runs."]
    parts += [_markdown(table) for table in tables(comparison)]
    if comparison.flags:
        parts.append(
            "\n".join(["Not the same in all runs:", "", *(f"- {_cell(flag.run)}: {_cell(flag.what)}" for flag in comparison.flags)])
        )
    return "\n\n".join(parts) + "\n"


def as_json(comparison: Comparison) -> str:
    """All of it."""
    return msgspec.json.format(msgspec.json.encode(comparison, order="sorted"), indent=2).decode() + "\n"


def as_csv(comparison: Comparison) -> str:
    """One row a run; an estimate takes three columns: its value, `_low` and `_high`."""
    rows = [dict(_flat(run)) for run in comparison.runs]
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([[_harmless(row.get(name)) for name in names] for row in rows])
    return out.getvalue()


def _systems(c: Comparison) -> Table:
    columns = ("run", "system", "models", "batch", "schedule", "accuracy", "gain", "tokens", "latency s", "r")
    rows = [
        (
            run.run,
            run.graph + (" (simulated)" if run.simulated else ""),
            " + ".join(run.models[role] for role in sorted(run.models, reverse=True)),
            str(run.batch_size),
            run.schedule,
            _share(run.accuracy),
            "baseline" if run.run == c.baseline else _share(run.accuracy_gain, sign=True),
            _number(run.tokens),
            _number(run.latency_s),
            "baseline" if run.run == c.baseline else _number(run.speed_up),
        )
        for run in c.runs
    ]
    return Table("Accuracy, committed tokens and latency per problem, speed-up r over the baseline (SpecCoT table 2)", columns, tuple(rows))


def _tokens(c: Comparison) -> Table:
    columns = ("run", "system", "by the draft", "by the target", "wall time s", "committed tokens/s")
    rows = [
        (run.run, run.graph, _number(run.draft_tokens), _number(run.target_tokens), _plain(run.wall_time_s), _plain(run.tokens_per_s))
        for run in c.runs
    ]
    return Table("Tokens sampled per problem, by model", columns, tuple(rows))


def _steps(c: Comparison) -> Table:
    columns = ("run", "system", "models", "accuracy", "tokens", "time s", "fallback", "steps by the draft")
    rows = [
        (
            run.run,
            run.graph,
            " + ".join(run.models[role] for role in sorted(run.models, reverse=True)),
            _share(run.accuracy),
            _number(run.tokens),
            _number(run.latency_s),
            _share(run.fallback_rate),
            _share(run.draft_share),
        )
        for run in c.runs
        if run.fallback_rate.value is not None
    ]
    return Table("Fallback of the pairs (SpecCoT table 3; SpecReason figure 4)", columns, tuple(rows))


def _batches(c: Comparison) -> Iterator[Table]:
    """One table for each system that was run at several batch sizes."""
    for name, runs in _groups(c.runs, lambda run: f"{run.graph}, {run.schedule}"):
        ordered = sorted(runs, key=lambda run: run.batch_size)
        if len({run.batch_size for run in ordered}) > 1 and len({tuple(run.models.items()) for run in ordered}) == 1:
            first = ordered[0].wall_time_s
            rows = [
                (
                    str(run.batch_size),
                    _plain(run.wall_time_s),
                    _plain(run.tokens_per_s),
                    _times(first, run.wall_time_s),
                    _share(run.accuracy),
                )
                for run in ordered
            ]
            columns = ("batch size", "wall time s", "tokens/s", "speed-up", "accuracy")
            yield Table(f"{name}: wall time and throughput by batch size (SpecCoT table 6)", columns, tuple(rows))


def _thresholds(c: Comparison) -> Iterator[Table]:
    """One table for each system that was run with several thresholds."""
    for name, runs in _groups([run for run in c.runs if "threshold" in run.params], lambda run: run.graph):
        if len({run.params["threshold"] for run in runs}) > 1:
            ordered = sorted(runs, key=lambda run: float(run.params["threshold"]))
            rows = [
                (
                    str(run.params["threshold"]),
                    _share(run.accuracy),
                    _number(run.latency_s),
                    _share(run.draft_share),
                    _share(run.fallback_rate),
                )
                for run in ordered
            ]
            columns = ("threshold", "accuracy", "latency s", "steps by the draft", "fallback")
            yield Table(f"{name}: by threshold (SpecReason figures 4 to 6)", columns, tuple(rows))


def _reflective(c: Comparison) -> Iterator[Table]:
    kinds = [kind for kind in ("drafted", "accepted", "fallback") if any(kind in run.reflective for run in c.runs)]
    rows = [
        (run.run, run.graph, *(_plain(run.reflective.get(kind)) for kind in kinds))
        for run in c.runs
        if {"accepted", "fallback"} & run.reflective.keys()
    ]
    yield Table("Words of second thoughts per 1,000 words (SpecCoT A.1)", ("run", "system", *kinds), tuple(rows))


def _groups(runs: Sequence[Compared], key: Callable[[Compared], str]) -> Iterator[tuple[str, list[Compared]]]:
    groups: dict[str, list[Compared]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    yield from groups.items()


def _markdown(table: Table) -> str:
    lines = [f"**{_cell(table.title)}**", ""]
    lines.append("| " + " | ".join(table.columns) + " |")
    lines.append("|" + "---|" * len(table.columns))
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in table.rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text that stays in its cell, and is no HTML."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _flat(run: Compared) -> Iterator[tuple[str, Any]]:
    for name, value in structs.asdict(run).items():
        if isinstance(value, Estimate):
            yield from ((name, value.value), (f"{name}_low", value.low), (f"{name}_high", value.high))
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", entry) for key, entry in value.items())
        else:
            yield name, value


def _harmless(value: Any) -> Any:
    return cell(value) if isinstance(value, str) else value


def _share(e: Estimate, *, sign: bool = False) -> str:
    return _with_interval(e, lambda value: f"{value:+.1%}" if sign else f"{value:.1%}")


def _number(e: Estimate) -> str:
    return _with_interval(e, _plain)


def _with_interval(e: Estimate, form: Callable[[float], str]) -> str:
    if e.value is None:
        return "-"
    return form(e.value) if e.low is None or e.high is None else f"{form(e.value)} [{form(e.low)}, {form(e.high)}]"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _times(over: float, under: float) -> str:
    return f"{over / under:.2f}" if under else "-"
