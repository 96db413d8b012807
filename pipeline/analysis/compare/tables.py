"""A comparison as the tables that the papers print. Pure."""

from collections.abc import Iterator, Sequence

from msgspec import structs

from pipeline.analysis.compare.cells import Table, number, percent, plain, plain_percent, reward, times
from pipeline.analysis.compare.compare import Comparison, Group, Member
from pipeline.analysis.compare.figures import THINKING, Compared, Difference
from pipeline.analysis.compare.written import as_markdown
from pipeline.analysis.quality.estimates import Estimate
from pipeline.analysis.quality.option_mass import FLAGGED, LOW
from pipeline.analysis.quality.reward_agreement import BINS
from pipeline.analysis.resources import of_answers
from pipeline.analysis.simulated import stated

INTERVALS = (
    "Brackets: 95% intervals. For an accuracy: Wilson's, or with several samples a problem, clustered by problem; for all "
    "else: bootstrap over problems, paired by problem for differences."
)
SIMULATED = (
    "Simulated runs: times are those of a simulated clock, and answers are right only as far as the references are simulated too; "
    "a replay's answers are those of the recorded run."
)
LENGTHS = ("drafted", "longest", "accepted", "rejected", "fallback")
REFLECTIVE = ("drafted", "accepted", "fallback")
FIGURES = {
    "threshold": "SpecReason figure 5; figure 4 of its first version",
    "first_steps": "SpecReason figure 6",
    "token_budget": "SpecReason figure 4b",
    "candidates": "SpecCoT figure 4b and c, SCoT 4.3",
    "guidance_tokens": "SpecCoT figure 4a",
}
"""Where the papers show the effect of a param, by its name."""


def tables(c: Comparison) -> tuple[Table, ...]:
    """All tables that have rows for the runs of `c`; with several data sets those of each, named in their titles."""
    if len(c.baselines) > 1:
        parts = [(dataset, table) for dataset in c.baselines for table in tables(c.of(dataset))]
        return tuple(structs.replace(table, title=f"{dataset}: {table.title}") for dataset, table in parts)
    whole = [systems(c), tokens(c), lengths(c), samples(c), *by_resources(c), *by_batch_size(c), *by_param(c)]
    return tuple(table for table in (*whole, *_of_steps(c)) if table.rows)


def _of_steps(c: Comparison) -> tuple[Table, ...]:
    return thinking(c), pairs(c), selection(c), quality(c), *agreements(c), masses(c), draft_lengths(c), reflective(c)


def parts(comparison: Comparison, first: Sequence[Table] = ()) -> list[str | Table]:
    """The tables, with what an interval is before them and the flags after them; `first` are tables to begin with."""
    bases = comparison.baselines
    over = ", ".join(f"{base} over {dataset}" for dataset, base in bases.items()) if len(bases) > 1 else comparison.baseline
    found: list[str | Table] = [f"Baseline: {over}. {INTERVALS}"]
    if clock := simulated(comparison):
        found.append(clock)
    found += filter(None, [pooled_lines(comparison)])
    return [*found, *first, *tables(comparison), *filter(None, [flag_lines(comparison)])]


def pooled_lines(comparison: Comparison) -> str:
    """Which runs are pooled, a line each; empty where none are."""
    pooled = [f"- {run.run}: the runs {', '.join(run.table.pooled)}" for run in comparison.runs if run.table.pooled]
    return "\n".join(["Pooled, as they differ only in the seed:", "", *pooled]) if pooled else ""


def flag_lines(comparison: Comparison) -> str:
    """Why runs may differ from their baseline, a line each; empty where nothing is known."""
    flags = [f"- {flag.run}: {flag.what}" for flag in comparison.flags]
    return "\n".join(["Not the same in all runs:", "", *flags]) if flags else ""


def simulated(comparison: Comparison) -> str:
    """What is to be known of simulated runs, and how far their times may be off; empty where there are none."""
    runs = [run for run in comparison.runs if run.table.simulated]
    return f"{SIMULATED} {stated(run.fit_error for run in runs)}" if runs else ""


def markdown(comparison: Comparison, first: Sequence[Table] = ()) -> str:
    """`parts` as Markdown."""
    return as_markdown(parts(comparison, first))


def pair(run: Compared) -> str:
    """The models of a run, joined; those that draft come last."""
    return " + ".join(run.table.models.values())


def system(run: Compared) -> str:
    """The graph of a run, and whether its times are simulated."""
    return run.table.graph + (" (simulated)" if run.table.simulated else "")


def accuracy(run: Compared) -> str:
    """The accuracy of a run with its interval, and what gave the answers where models did not."""
    return of_answers(percent(run.accuracy), run.answers)


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
                str(run.table.batch_size),
                run.table.schedule,
                accuracy(run),
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
    """Output tokens by model, one row for each role of a run: SpecCoT table 6."""
    columns = (
        *("run", "system", "role", "model", "tokens per problem", "speculated inside", "of these accepted"),
        *("wall time s", "generated tokens/s", "kept tokens/s"),
    )
    rows = [
        (
            run.run,
            system(run),
            role,
            run.table.models.get(role, "-"),
            number(sampled),
            plain(run.speculated_tokens.get(role)),
            _accepted(run, role),
            plain(run.wall_time_s),
            plain(run.generated_tokens_per_s),
            plain(run.kept_tokens_per_s),
        )
        for run in c.runs
        for role, sampled in _in_order(run)
    ]
    note = (
        "All tokens sampled by each model, kept or not; `speculated inside` is the engine's own count over the whole run. "
        "Tokens/s: of all roles together, over the wall time; kept are those of thoughts and answers."
    )
    return Table("Tokens by model, per problem (SpecCoT table 6: throughput)", columns, tuple(rows), note)


def _in_order(run: Compared) -> list[tuple[str, Estimate]]:
    """Output tokens by role, in the order of the models."""
    return sorted(run.output_tokens.items(), key=lambda each: [*run.table.models, each[0]].index(each[0]))


def _accepted(run: Compared, role: str) -> str:
    proposed = run.speculated_tokens.get(role)
    return plain_percent(run.accepted_speculated_tokens[role] / proposed if proposed else None)


def lengths(c: Comparison) -> Table:
    """Tokens of thought and answer: SpecReason figure 4a, SCoT table 3."""
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


def samples(c: Comparison) -> Table:
    """pass@k and the majority vote, of runs with several samples a problem."""
    runs = [run for run in c.runs if run.table.samples > 1]
    powers = sorted({int(k) for run in runs for k in run.pass_at})
    rows = [
        (
            run.run,
            system(run),
            str(run.table.samples),
            accuracy(run),
            *(plain_percent(run.pass_at.get(str(k))) for k in powers if k > 1),
            of_answers(plain_percent(run.majority_accuracy), run.answers),
        )
        for run in runs
    ]
    columns = ("run", "system", "samples", "pass@1", *(f"pass@{k}" for k in powers if k > 1), "majority vote")
    return Table("Several samples a problem (SpecCoT figure 1a, SpecReason 5.1)", columns, tuple(rows))


def by_resources(c: Comparison) -> Iterator[Table]:
    """For each group of runs by resources, times and throughput over those on the smallest: SpecCoT table 4."""
    runs = {run.run: run for run in c.runs}
    columns = ("resources", "run", "latency s", "time speed-up", "generated tokens/s", "kept tokens/s", "throughput gain")
    for group in (group for group in c.groups if group.by == "resources"):
        first = runs[group.members[0].run]
        rows = []
        for member in group.members:
            run = runs[member.run]
            is_first = run is first
            saved = _saved(next((d.speed_up for d in c.differences.get(run.run, ()) if d.over == first.run), Estimate(None)))
            gain = _less_one(run.kept_tokens_per_s, first.kept_tokens_per_s)
            rows.append(
                (
                    member.value,
                    run.run,
                    number(run.latency_s),
                    "-" if is_first else percent(saved, sign=True),
                    plain(run.generated_tokens_per_s),
                    plain(run.kept_tokens_per_s),
                    "-" if is_first else plain_percent(gain, sign=True),
                )
            )
        note = "Over the smallest resources. A run has one wall time, so its throughput, in kept tokens/s, has no interval."
        yield Table(f"{_named(group, first)}: by resources (SpecCoT table 4)", columns, tuple(rows), note)


def _saved(speed_up: Estimate) -> Estimate:
    """Share of the time that a speed-up saves: 1 - 1/r, which is what SpecCoT table 4 prints."""
    ends = [None if r is None else 1 - 1 / r for r in (speed_up.value, speed_up.low, speed_up.high)]
    return Estimate(*ends)


def _less_one(over: float | None, under: float | None) -> float | None:
    return over / under - 1 if over and under else None


def by_batch_size(c: Comparison) -> Iterator[Table]:
    """For each group of runs by batch size, wall time and throughput: SpecCoT table 6."""
    runs = {run.run: run for run in c.runs}
    for group in (group for group in c.groups if group.by == "batch_size"):
        members = [runs[member.run] for member in group.members]
        base = runs[c.baseline].table.graph
        peers = [runs[member.peers[base]] if base in member.peers else None for member in group.members]
        rows = tuple(
            (
                member.value,
                plain(run.wall_time_s),
                plain(run.generated_tokens_per_s),
                plain(run.kept_tokens_per_s),
                times(members[0].wall_time_s, run.wall_time_s),
                accuracy(run),
                *([times(peer.wall_time_s, run.wall_time_s) if peer else "-"] if any(peers) else []),
            )
            for member, run, peer in zip(group.members, members, peers, strict=True)
        )
        columns = (
            "batch size",
            "wall time s",
            "generated tokens/s",
            "kept tokens/s",
            "speed-up",
            "accuracy",
            *([f"over {base}"] if any(peers) else []),
        )
        note = f"`over {base}`: its wall time at the same batch size over this one." if any(peers) else ""
        yield Table(f"{_named(group, members[0])}: wall time and throughput by batch size (SpecCoT table 6)", columns, rows, note)


def _named(group: Group, run: Compared) -> str:
    return f"{system(run)}, {run.table.schedule}" + ("" if group.by == "batch_size" else f", batch size {run.table.batch_size}")


def thinking(c: Comparison) -> Table:
    """Time of the thinking stage and what it goes into: SCoT 4.2."""
    columns = ("run", "system", "thinking s", "speed-up", *THINKING)
    rows = [
        (
            run.run,
            system(run),
            number(run.thinking_s),
            "baseline" if run.run == c.baseline else number(run.over_baseline.thinking_speed_up),
            *(percent(run.thinking_shares[kind]) for kind in THINKING),
        )
        for run in c.runs
    ]
    note = (
        "From a chain's first call to the end of its thought, without the answer; the shares are those of the time in which calls of each "
        "kind were waiting or at an engine, `target` being what the engine that answers thinks itself."
    )
    return Table("The thinking stage per problem, and shares of its time (SCoT table 1 and 4.2)", columns, tuple(rows), note)


def agreements(c: Comparison) -> Iterator[Table]:
    """For each run with scores and rewards, mean scores in bins of the reward: SpecReason figure 7."""
    for run in c.runs:
        if found := run.agreement:
            bins = zip(found.counts, found.means, strict=True)
            rows = [(f"{i / BINS:.1f} to {(i + 1) / BINS:.1f}", f"{count:,}", number(mean)) for i, (count, mean) in enumerate(bins)]
            note = (
                f"All {found.steps:,} speculated steps with both, accepted and rejected ones. Spearman's rank correlation of score and "
                f"reward: {plain(found.rank_correlation)}."
            )
            title = f"{run.run}: mean {found.scale} of speculated steps by their reward (SpecReason figure 7)"
            yield Table(title, ("reward", "steps", f"mean {found.scale}"), tuple(rows), note)


def masses(c: Comparison) -> Table:
    """Probability that verifiers gave to their valid options."""
    rows = [
        (run.run, system(run), f"{m.verifications:,}", f"{m.mean:.1%}", f"{m.p5:.1%}", f"{m.low_share:.1%}" + (" (!)" if m.flagged else ""))
        for run in c.runs
        if (m := run.option_mass)
    ]
    columns = ("run", "system", "verifications", "mean", "5th percentile", f"share under {LOW:.0%}")
    note = f"(!): in more than {FLAGGED:.0%} of the verifications the verifier preferred other tokens; check its prompt."
    return Table("Probability of the valid options in verifications, before renormalising", columns, tuple(rows), note)


def pairs(c: Comparison) -> Table:
    """Fallback rate, tokens and time of pairs of models: SpecCoT table 3."""
    columns = ("run", "system", "models", "accuracy", "tokens", "time s", "fallback", "steps by the draft")
    rows = [
        (
            run.run,
            system(run),
            pair(run),
            accuracy(run),
            number(run.tokens),
            number(run.latency_s),
            percent(run.fallback_rate),
            percent(run.draft_share),
        )
        for run in c.runs
        if run.fallback_rate.value is not None
    ]
    return Table("Fallback of the pairs (SpecCoT table 3), and steps by the draft (SpecReason 5.2)", columns, tuple(rows))


def selection(c: Comparison) -> Table:
    """How well verifiers choose among whole thoughts: SCoT 4.4."""
    columns = ("run", "system", "class 1", "a right draft selected", "by chance", "class 2", "all rejected", "agreement")
    rows = []
    for run in c.runs:
        if chosen := run.selection:
            first, blind = percent(chosen.class_1_right), percent(chosen.by_chance)
            second, agreement = percent(chosen.class_2_right), percent(chosen.agreement)
            rows.append((run.run, system(run), f"{chosen.class_1:,}", first, blind, f"{chosen.class_2:,}", second, agreement))
    note = (
        "Class 1: at least one of the drafted thoughts comes to the right answer; class 2: none does. By chance: share of the drafts "
        "that are right. Agreement: selected drafts whose own answer, as found in the thought, has the verdict that the chain got."
    )
    if unknown := sum(run.selection.unknown for run in c.runs if run.selection):
        note += f" Left out: {unknown:,} choices whose class or verdict is unknown, because drafts state no answer."
    return Table("Selection among whole thoughts, by class (SCoT 4.4)", columns, tuple(rows), note)


def quality(c: Comparison) -> Table:
    """Rewards of drafted and selected steps: SpecCoT table 5."""
    columns = ("run", "system", "reward model", "drafts", "drafts of steps with a selection", "selected", "gain", "fallback steps")
    rows = []
    for run in c.runs:
        if q := run.quality:
            gain = reward(q.gain, sign=True)
            rows.append(
                (run.run, system(run), q.model, reward(q.drafted), reward(q.selected_from), reward(q.selected), gain, reward(q.fallback))
            )
    note = (
        "Rewards, 0 to 1. The gain is that of selecting, on the same steps: selected less the mean of the candidates it was selected from."
    )
    return Table("Quality of drafted and of selected steps (SpecCoT table 5)", columns, tuple(rows), note)


def draft_lengths(c: Comparison) -> Table:
    """Tokens of drafts: SCoT tables 1 and 2."""
    runs = [run for run in c.runs if "drafted" in run.text_tokens]
    kinds = [kind for kind in LENGTHS if any(kind in run.text_tokens for run in runs)]
    rows = [(run.run, system(run), *(number(run.text_tokens[kind]) if kind in run.text_tokens else "-" for kind in kinds)) for run in runs]
    note = "Of all candidates, of the longest of each round, of accepted ones, of those rejected together, of what was written instead."
    return Table("Tokens of a drafted step or thought (SCoT tables 1 and 2)", ("run", "system", *kinds), tuple(rows), note)


def reflective(c: Comparison) -> Table:
    """Words of second thoughts by kind of text: SpecCoT A.1."""
    runs = [run for run in c.runs if "drafted" in run.reflective]
    kinds = [kind for kind in REFLECTIVE if any(kind in run.reflective for run in runs)]
    rows = [
        (
            run.run,
            system(run),
            *(number(run.reflective[kind]) if kind in run.reflective else "-" for kind in kinds),
            number(run.reflective_gain, sign=True),
        )
        for run in runs
    ]
    return Table("Words of second thoughts per 1,000 words (SpecCoT A.1)", ("run", "system", *kinds, "fallback over drafts"), tuple(rows))


def by_param(c: Comparison) -> Iterator[Table]:
    """One table for each group of runs that differ in one param alone, or in the schedule alone."""
    for group in c.groups:
        if group.by == "schedule" or group.by.startswith("params."):
            yield _table(c, group)


def _table(c: Comparison, group: Group) -> Table:
    runs = {run.run: run for run in c.runs}
    name, base = group.by.removeprefix("params."), runs[c.baseline].table.graph
    first = runs[group.members[0].run]
    peers = any(base in member.peers for member in group.members)
    columns = (name, "accuracy", "gain", "latency s", "r", "tokens", "steps by the draft", "fallback", "change")
    rows = tuple(_row(c, member, runs[member.run], first.run) + ((_gap(c, member, base),) if peers else ()) for member in group.members)
    title = f"{system(first)}: by {name}" + (f" (see {FIGURES[name]})" if name in FIGURES else "")
    over = f" The last column: accuracy over that of {base} at the same {name}." if peers else ""
    note = f"Gain, r and change of the fallback rate are over the first row.{over}"
    return Table(title, (*columns, f"gain over {base}") if peers else columns, rows, note)


def _row(c: Comparison, member: Member, run: Compared, first: str) -> tuple[str, ...]:
    over = _over(c, run.run, first)
    return (
        member.value,
        accuracy(run),
        percent(over.accuracy_gain, sign=True) if over else "-",
        number(run.latency_s),
        number(over.speed_up) if over else "-",
        number(run.tokens),
        percent(run.draft_share),
        percent(run.fallback_rate),
        percent(over.fallback_change, sign=True) if over else "-",
    )


def _gap(c: Comparison, member: Member, base: str) -> str:
    over = _over(c, member.run, member.peers.get(base, ""))
    return percent(over.accuracy_gain, sign=True) if over else "-"


def _over(c: Comparison, run: str, other: str) -> Difference | None:
    return next((each for each in c.differences.get(run, ()) if each.over == other), None)
