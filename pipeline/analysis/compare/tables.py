"""A comparison as the tables of `compare --all`; those of single papers are the SQL files of `papers`. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from pipeline.analysis.compare.cells import Table, number, percent, plain, plain_percent, reward, signed, times
from pipeline.analysis.compare.compare import Comparison, Group, Member
from pipeline.analysis.compare.figures import THINKING, Compared, Difference
from pipeline.analysis.compare.written import as_markdown
from pipeline.analysis.quality.estimates import NOTHING, Estimate
from pipeline.analysis.quality.option_mass import FLAGGED, LOW
from pipeline.analysis.quality.reward_agreement import BINS
from pipeline.analysis.resources import of_answers
from pipeline.analysis.simulated import of_facts

INTERVALS = (
    "Brackets: 95% intervals. For an accuracy: Wilson's, or with several samples a problem, clustered by problem; for all "
    "else: bootstrap over problems, paired by problem for differences."
)
SIMULATED = (
    "Simulated runs: times are those of a simulated clock, and answers are right only as far as the references are simulated too; "
    "a replay's answers are those of the recorded run."
)
FACTORS = (
    "r = tokens x rate. tokens: the baseline's committed tokens over the run's, above 1 where its text is shorter; rate: its committed "
    "tokens per second of a problem's latency over the baseline's. At batch sizes above 1 a latency includes waiting for other problems."
)
"""What the two factors of a speed-up are."""
LENGTHS = ("drafted", "longest", "accepted", "rejected", "fallback")
REFLECTIVE = ("drafted", "accepted", "fallback")
Column = tuple[str, Callable[[Compared], str]]
"""A heading, and the cell of a run below it."""
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
    return f"{SIMULATED} {of_facts([each for run in runs for each in run.table.facts.values()])}" if runs else ""


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


NAMES: tuple[Column, ...] = (("run", lambda run: run.run), ("system", system))


def _of_runs(title: str, runs: Iterable[Compared], columns: Iterable[Column], note: str = "") -> Table:
    """A table with a row for each of `runs`, which begins with its names."""
    headings, cells = zip(*NAMES, *columns, strict=True)
    return Table(title, headings, tuple(tuple(cell(run) for cell in cells) for run in runs), note)


def _over(c: Comparison, heading: str, pick: Callable[[Difference], Estimate], form: Callable[[Estimate], str] = signed) -> Column:
    """A column with differences from the baseline."""
    return heading, lambda run: "baseline" if run.run == c.baseline else form(pick(run.over_baseline))


def systems(c: Comparison) -> Table:
    """Accuracy, committed tokens, latency and speed-up: SpecCoT table 2 and figure 3, SpecReason figure 3."""
    title = "Accuracy, committed tokens and latency per problem, speed-up r over the baseline (SpecCoT table 2, SpecReason figure 3)"
    columns: tuple[Column, ...] = (
        ("models", pair),
        ("batch", lambda run: str(run.table.batch_size)),
        ("schedule", lambda run: run.table.schedule),
        ("accuracy", accuracy),
        _over(c, "gain", lambda over: over.accuracy_gain),
        ("tokens", lambda run: number(run.tokens)),
        _over(c, "change", lambda over: over.token_change),
        ("latency s", lambda run: number(run.latency_s)),
        _over(c, "r", lambda over: over.speed_up, number),
        _over(c, "= tokens", lambda over: over.token_factor, number),
        _over(c, "x rate", lambda over: over.rate_factor, number),
    )
    return _of_runs(title, c.runs, columns, FACTORS)


def tokens(c: Comparison) -> Table:
    """Output tokens by model, one row for each role of a run: SpecCoT table 6."""
    columns = (
        *("run", "system", "role", "model", "tokens per problem", "speculated inside", "of these accepted"),
        *("wall time s", "generated tokens/s", "kept tokens/s"),
    )
    rows = tuple(
        (
            *(run.run, system(run), role, run.table.models.get(role, "-"), number(sampled)),
            *(plain(run.speculated_tokens.get(role)), _accepted(run, role)),
            *(plain(run.wall_time_s), plain(run.generated_tokens_per_s), plain(run.kept_tokens_per_s)),
        )
        for run in c.runs
        for role, sampled in sorted(run.output_tokens.items(), key=lambda each: [*run.table.models, each[0]].index(each[0]))
    )
    note = (
        "All tokens sampled by each model, kept or not; `speculated inside` is the engine's own count over the whole run. "
        "Tokens/s: of all roles together, over the wall time; kept are those of thoughts and answers."
    )
    return Table("Tokens by model, per problem (SpecCoT table 6: throughput)", columns, rows, note)


def _accepted(run: Compared, role: str) -> str:
    proposed = run.speculated_tokens.get(role)
    return plain_percent(run.accepted_speculated_tokens[role] / proposed if proposed else None)


def lengths(c: Comparison) -> Table:
    """Tokens of thought and answer: SpecReason figure 4a, SCoT table 3."""
    columns: tuple[Column, ...] = (
        ("thought", lambda run: number(run.thought_tokens)),
        _over(c, "change", lambda over: over.thought_change),
        ("answer", lambda run: number(run.answer_tokens)),
        _over(c, "change", lambda over: over.answer_change),
    )
    return _of_runs("Tokens of the thought (SpecReason figure 4a) and of the answer after it (SCoT table 3), per problem", c.runs, columns)


def samples(c: Comparison) -> Table:
    """pass@k and the majority vote, of runs with several samples a problem."""
    runs = [run for run in c.runs if run.table.samples > 1]
    powers = sorted({int(k) for run in runs for k in run.pass_at if k != "1"})

    def at(k: int) -> Column:
        return f"pass@{k}", lambda run: plain_percent(run.pass_at.get(str(k)))

    columns: tuple[Column, ...] = (
        ("samples", lambda run: str(run.table.samples)),
        ("pass@1", accuracy),
        *map(at, powers),
        ("majority vote", lambda run: of_answers(plain_percent(run.majority_accuracy), run.answers)),
    )
    return _of_runs("Several samples a problem (SpecCoT figure 1a, SpecReason 5.1)", runs, columns)


def by_resources(c: Comparison) -> Iterator[Table]:
    """For each group of runs by resources, times and throughput over those on the smallest: SpecCoT table 4."""
    runs = {run.run: run for run in c.runs}
    columns = ("resources", "run", "latency s", "time speed-up", "generated tokens/s", "kept tokens/s", "throughput gain")
    for group in (group for group in c.groups if group.by == "resources"):
        first = runs[group.members[0].run]
        rows = [(member.value, *_more(c, runs[member.run], first)) for member in group.members]
        note = "Over the smallest resources. A run has one wall time, so its throughput, in kept tokens/s, has no interval."
        yield Table(f"{_named(group, first)}: by resources (SpecCoT table 4)", columns, tuple(rows), note)


def _more(c: Comparison, run: Compared, first: Compared) -> tuple[str, ...]:
    """What a run on more resources gains over the `first` one."""
    over, gained = _over_run(c, run.run, first.run), _less_one(run.kept_tokens_per_s, first.kept_tokens_per_s)
    saved, gain = ("-", "-") if over is None else (signed(_saved(over.speed_up)), plain_percent(gained, sign=True))
    return run.run, number(run.latency_s), saved, plain(run.generated_tokens_per_s), plain(run.kept_tokens_per_s), gain


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
        further = (f"over {base}",) if any(peers) else ()
        columns = ("batch size", "wall time s", "generated tokens/s", "kept tokens/s", "speed-up", "accuracy", *further)
        note = f"`over {base}`: its wall time at the same batch size over this one." if any(peers) else ""
        yield Table(f"{_named(group, members[0])}: wall time and throughput by batch size (SpecCoT table 6)", columns, rows, note)


def _named(group: Group, run: Compared) -> str:
    return f"{system(run)}, {run.table.schedule}" + ("" if group.by == "batch_size" else f", batch size {run.table.batch_size}")


def thinking(c: Comparison) -> Table:
    """Time of the thinking stage and what it goes into: SCoT 4.2."""

    def share(kind: str) -> Column:
        return kind, lambda run: percent(run.thinking_shares[kind])

    columns: tuple[Column, ...] = (
        ("thinking s", lambda run: number(run.thinking_s)),
        _over(c, "speed-up", lambda over: over.thinking_speed_up, number),
        *map(share, THINKING),
    )
    note = (
        "From a chain's first call to the end of its thought, without the answer; the shares are those of the time in which calls of each "
        "kind were waiting or at an engine; drafting includes steps that a drafting engine writes in place of the target."
    )
    return _of_runs("The thinking stage per problem, and shares of its time (SCoT table 1 and 4.2)", c.runs, columns, note)


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
    columns = ("run", "system", "verifications", "mean", "5th percentile", f"share under {LOW:.0%}")
    rows = tuple(
        (run.run, system(run), f"{m.verifications:,}", f"{m.mean:.1%}", f"{m.p5:.1%}", f"{m.low_share:.1%}" + (" (!)" if m.flagged else ""))
        for run in c.runs
        if (m := run.option_mass)
    )
    note = f"(!): in more than {FLAGGED:.0%} of the verifications the verifier preferred other tokens; check its prompt."
    return Table("Probability of the valid options in verifications, before renormalising", columns, rows, note)


def pairs(c: Comparison) -> Table:
    """Fallback rate, tokens and time of pairs of models: SpecCoT table 3."""
    columns: tuple[Column, ...] = (
        ("models", pair),
        ("accuracy", accuracy),
        ("tokens", lambda run: number(run.tokens)),
        ("time s", lambda run: number(run.latency_s)),
        ("fallback", lambda run: percent(run.fallback_rate)),
        ("steps by the draft", lambda run: percent(run.draft_share)),
        ("of all unverified", lambda run: percent(run.unverified_share)),
    )
    title = "Fallback of verified steps by pair (SpecCoT table 3), steps by the draft (SpecReason 5.2), and those that nothing verified"
    return _of_runs(title, (run for run in c.runs if run.draft_share.value is not None), columns)


def selection(c: Comparison) -> Table:
    """How well verifiers choose among whole thoughts: SCoT 4.4."""
    columns = ("run", "system", "class 1", "a right draft selected", "by chance", "class 2", "all rejected", "agreement")
    chosen = [(run, found) for run in c.runs if (found := run.selection)]
    rows = tuple(
        (
            *(run.run, system(run), f"{found.class_1:,}", percent(found.class_1_right), percent(found.by_chance)),
            *(f"{found.class_2:,}", percent(found.class_2_right), percent(found.agreement)),
        )
        for run, found in chosen
    )
    note = (
        "Class 1: at least one of the drafted thoughts comes to the right answer; class 2: none does. By chance: share of the drafts "
        "that are right. Agreement: selected drafts whose own answer, as found in the thought, has the verdict that the chain got."
    )
    if unknown := sum(found.unknown for _, found in chosen):
        note += f" Left out: {unknown:,} choices whose class or verdict is unknown, because drafts state no answer."
    return Table("Selection among whole thoughts, by class (SCoT 4.4)", columns, rows, note)


def quality(c: Comparison) -> Table:
    """Rewards of drafted and selected steps: SpecCoT table 5."""
    columns = ("run", "system", "reward model", "drafts", "drafts of steps with a selection", "selected", "gain", "fallback steps")
    rows = tuple(
        (
            *(run.run, system(run), q.model, reward(q.drafted), reward(q.selected_from), reward(q.selected)),
            *(reward(q.gain, sign=True), reward(q.fallback)),
        )
        for run in c.runs
        if (q := run.quality)
    )
    note = (
        "Rewards, 0 to 1. The gain is that of selecting, on the same steps: selected less the mean of the candidates it was selected from."
    )
    return Table("Quality of drafted and of selected steps (SpecCoT table 5)", columns, rows, note)


def _by_kind(
    c: Comparison, kinds: Sequence[str], pick: Callable[[Compared], Mapping[str, Estimate]]
) -> tuple[list[Compared], list[Column]]:
    """Runs with drafts, and a column for each kind of text that any of them has."""
    runs = [run for run in c.runs if "drafted" in pick(run)]

    def column(kind: str) -> Column:
        return kind, lambda run: number(pick(run).get(kind, NOTHING))

    return runs, [column(kind) for kind in kinds if any(kind in pick(run) for run in runs)]


def draft_lengths(c: Comparison) -> Table:
    """Tokens of drafts: SCoT tables 1 and 2."""
    note = "Of all candidates, of the longest of each round, of accepted ones, of those rejected together, of what was written instead."
    return _of_runs("Tokens of a drafted step or thought (SCoT tables 1 and 2)", *_by_kind(c, LENGTHS, lambda run: run.text_tokens), note)


def reflective(c: Comparison) -> Table:
    """Words of second thoughts by kind of text: SpecCoT A.1."""
    runs, columns = _by_kind(c, REFLECTIVE, lambda run: run.reflective)
    over: Column = ("fallback over drafts", lambda run: number(run.reflective_gain, sign=True))
    return _of_runs("Words of second thoughts per 1,000 words (SpecCoT A.1)", runs, [*columns, over])


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
    over = _over_run(c, run.run, first)
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
    over = _over_run(c, member.run, member.peers.get(base, ""))
    return percent(over.accuracy_gain, sign=True) if over else "-"


def _over_run(c: Comparison, run: str, other: str) -> Difference | None:
    return next((each for each in c.differences.get(run, ()) if each.over == other), None)
