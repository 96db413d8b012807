"""Tables of whole systems: accuracy, tokens, latency, attempts, resources, batch sizes. Pure."""

from collections.abc import Iterator

from pipeline.analysis.compare.cells import Table, number, percent, plain, plain_percent, times
from pipeline.analysis.compare.compare import Comparison
from pipeline.analysis.compare.figures import Compared
from pipeline.analysis.compare.groups import Group
from pipeline.analysis.quality.estimates import Estimate


def pair(run: Compared) -> str:
    """The models of a run, the target's first."""
    return " + ".join(run.models[role] for role in sorted(run.models, reverse=True))


def system(run: Compared) -> str:
    """Its graph, and whether its times are simulated."""
    return run.graph + (" (simulated)" if run.simulated else "")


def systems(c: Comparison) -> Table:
    """Accuracy, committed tokens, latency and speed-up: SpecCoT table 2 and figure 3, SpecReason figure 3."""
    columns = ("run", "system", "models", "batch", "schedule", "accuracy", "gain", "tokens", "change", "latency s", "r")
    rows = []
    for run in c.runs:
        over, is_base = run.over_baseline, run.run == c.baseline
        rows.append(
            (
                run.run,
                system(run),
                pair(run),
                str(run.batch_size),
                run.schedule,
                percent(run.accuracy),
                "baseline" if is_base else percent(over.accuracy_gain, sign=True),
                number(run.tokens),
                "baseline" if is_base else percent(over.token_change, sign=True),
                number(run.latency_s),
                "baseline" if is_base else number(over.speed_up),
            )
        )
    title = "Accuracy, committed tokens and latency per problem, speed-up r over the baseline (SpecCoT table 2, SpecReason figure 3)"
    return Table(title, columns, tuple(rows))


def tokens(c: Comparison) -> Table:
    """Output tokens by model; one row for each role of a run."""
    columns = ("run", "system", "role", "model", "tokens per problem", "speculated inside", "of these accepted", "wall time s", "tokens/s")
    rows = [
        (
            run.run,
            system(run),
            role,
            run.models.get(role, "-"),
            number(sampled),
            plain(run.speculated_tokens.get(role)),
            _accepted(run, role),
            plain(run.wall_time_s),
            plain(run.tokens_per_s),
        )
        for run in c.runs
        for role, sampled in sorted(run.output_tokens.items(), reverse=True)
    ]
    note = (
        "Sampled by each model, whatever became of them; `speculated inside` is the engine's own count over the whole run. "
        "Tokens/s: committed ones over the wall time."
    )
    return Table("Tokens by model, per problem (SpecCoT table 6: throughput)", columns, tuple(rows), note)


def _accepted(run: Compared, role: str) -> str:
    proposed = run.speculated_tokens.get(role)
    return plain_percent(run.accepted_speculated_tokens[role] / proposed if proposed else None)


def lengths(c: Comparison) -> Table:
    """Thought and answer: SpecReason figure 4a, SCoT table 3."""
    columns = ("run", "system", "thought", "change", "answer", "change")
    rows = [
        (
            run.run,
            system(run),
            number(run.thought_tokens),
            "baseline" if run.run == c.baseline else percent(run.over_baseline.thought_change, sign=True),
            number(run.answer_tokens),
            "baseline" if run.run == c.baseline else percent(run.over_baseline.answer_change, sign=True),
        )
        for run in c.runs
    ]
    return Table(
        "Tokens of the thought (SpecReason figure 4a) and of the answer after it (SCoT table 3), per problem", columns, tuple(rows)
    )


def attempts(c: Comparison) -> Table:
    """pass@k and the majority vote, of runs with several samples a problem."""
    runs = [run for run in c.runs if run.samples > 1]
    powers = sorted({int(k) for run in runs for k in run.pass_at})
    rows = [
        (
            run.run,
            system(run),
            str(run.samples),
            percent(run.accuracy),
            *(plain_percent(run.pass_at.get(str(k))) for k in powers if k > 1),
            plain_percent(run.majority_accuracy),
        )
        for run in runs
    ]
    columns = ("run", "system", "samples", "pass@1", *(f"pass@{k}" for k in powers if k > 1), "majority vote")
    return Table("Several samples a problem (SpecCoT figure 1a, SpecReason 5.1)", columns, tuple(rows))


def by_resources(c: Comparison) -> Iterator[Table]:
    """Times and throughput of one system on more and on less: SpecCoT table 4."""
    runs = {run.run: run for run in c.runs}
    columns = ("resources", "run", "latency s", "time speed-up", "committed tokens/s", "throughput gain")
    for group in (group for group in c.groups if group.by == "resources"):
        first = runs[group.members[0].run]
        rows = []
        for member in group.members:
            run = runs[member.run]
            is_first = run is first
            saved = _saved(next((d.speed_up for d in c.differences.get(run.run, ()) if d.over == first.run), Estimate(None)))
            gain = run.tokens_per_s / first.tokens_per_s - 1 if run.tokens_per_s and first.tokens_per_s else None
            rows.append(
                (
                    member.value,
                    run.run,
                    number(run.latency_s),
                    "-" if is_first else percent(saved, sign=True),
                    plain(run.tokens_per_s),
                    "-" if is_first else plain_percent(gain, sign=True),
                )
            )
        note = "Over the smallest resources. A run has one wall time, so its throughput has no interval."
        yield Table(f"{_named(group, first)}: by resources (SpecCoT table 4)", columns, tuple(rows), note)


def _saved(speed_up: Estimate) -> Estimate:
    """Share of the time that a speed-up saves: 1 - 1/r, which is what SpecCoT table 4 prints."""
    ends = [None if r is None else 1 - 1 / r for r in (speed_up.value, speed_up.low, speed_up.high)]
    return Estimate(*ends)


def by_batch_size(c: Comparison) -> Iterator[Table]:
    """Wall time and throughput of one system: SpecCoT table 6."""
    runs = {run.run: run for run in c.runs}
    for group in (group for group in c.groups if group.by == "batch_size"):
        members = [runs[member.run] for member in group.members]
        base = runs[c.baseline].graph
        peers = [runs[member.peers[base]] if base in member.peers else None for member in group.members]
        rows = tuple(
            (
                member.value,
                plain(run.wall_time_s),
                plain(run.tokens_per_s),
                times(members[0].wall_time_s, run.wall_time_s),
                percent(run.accuracy),
                *([times(peer.wall_time_s, run.wall_time_s) if peer else "-"] if any(peers) else []),
            )
            for member, run, peer in zip(group.members, members, peers, strict=True)
        )
        columns = ("batch size", "wall time s", "tokens/s", "speed-up", "accuracy", *([f"over {base}"] if any(peers) else []))
        note = f"`over {base}`: its wall time at the same batch size over this one." if any(peers) else ""
        yield Table(f"{_named(group, members[0])}: wall time and throughput by batch size (SpecCoT table 6)", columns, rows, note)


def _named(group: Group, run: Compared) -> str:
    return f"{system(run)}, {run.schedule}" + ("" if group.by == "batch_size" else f", batch size {run.batch_size}")
