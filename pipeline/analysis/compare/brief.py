"""A comparison in one table, and a sentence about each run but the baseline: what `compare` and a report of several runs show. Pure."""

from collections.abc import Iterator

from pipeline.analysis.compare.cells import Table, number, percent, plain, times
from pipeline.analysis.compare.compare import Comparison
from pipeline.analysis.resources import of_answers
from pipeline.analysis.simulated import of_facts

SIMULATED = (
    "Simulated runs: times are those of a simulated clock, and answers are right only as far as the references are simulated too; "
    "a replay's answers are those of the recorded run."
)
NOTE = (
    "times as fast: problems/s over the baseline's; speed-up: time of a problem of the baseline over that of the run, problem by problem. "
    "It is tokens, how many times shorter the text is, times rate, how many times as many kept tokens a problem gets per second. "
    "Brackets: 95% intervals."
)
ALONE = "Nothing to compare with: name a second run over the same problems; for a baseline, solve them with `pipeline run target`."


def brief(c: Comparison) -> list[str | Table]:
    """The table, the sentences, and how runs differ otherwise."""
    pooled = "\n".join(["Pooled, as they differ only in the seed:", "", *(f"- {run}: the runs {names}" for run, names in pooled_runs(c))])
    flags = "\n".join(["Not the same in all runs:", "", *(f"- {flag.run}: {flag.what}" for flag in c.flags)])
    found: list[str | Table] = [speeds(c), "\n".join(sentences(c)) or ALONE]
    found += [pooled] if any(run.table.pooled for run in c.runs) else []
    return [*found, *filter(None, [simulated(c)]), *([flags] if c.flags else [])]


def pooled_runs(c: Comparison) -> Iterator[tuple[str, str]]:
    """The runs that pool others, which differ only in the seed, and the names of these."""
    return ((run.run, ", ".join(run.table.pooled)) for run in c.runs if run.table.pooled)


def simulated(c: Comparison) -> str:
    """What is to be known of simulated runs, and how far their times may be off; empty where there are none."""
    runs = [run for run in c.runs if run.table.simulated]
    return f"{SIMULATED} {of_facts([each for run in runs for each in run.table.facts.values()])}" if runs else ""


def speeds(c: Comparison) -> Table:
    """Accuracy and speed of each run, a row each."""
    several, rows = len(c.baselines) > 1, []
    rates = {run.run: run.problems_per_s for run in c.runs}
    for run in c.runs:
        base = c.baselines[run.dataset]
        row = (run.run, *([run.dataset] if several else []), run.table.graph + (" (simulated)" if run.table.simulated else ""))
        row = (*row, " + ".join(run.table.models.values()), str(run.table.batch_size), of_answers(percent(run.accuracy), run.answers))
        row = (*row, plain(rates[run.run]), plain(run.kept_tokens_per_s))
        if run.run == base:
            rows.append((*row, "baseline" if len(c.runs) > 1 else "-", "-", "-", "-"))
        else:
            over = run.over_baseline
            factors = map(number, (over.speed_up, over.token_factor, over.rate_factor))
            rows.append((*row, times(rates[run.run], rates[base]), *factors))
    data = ("data",) if several else ()
    speed = ("problems/s", "kept tokens/s", "times as fast", "speed-up", "= tokens", "x rate")
    columns = ("run", *data, "system", "models", "batch", "accuracy", *speed)
    return Table("Accuracy and speed", columns, tuple(rows), NOTE)


def sentences(c: Comparison) -> Iterator[str]:
    """How each run but the baseline compares with it."""
    runs = {run.run: run for run in c.runs}
    for run in c.runs:
        base = runs[c.baselines[run.dataset]]
        if run is not base:
            ratio = times(run.problems_per_s, base.problems_per_s)
            speed = "has no speed to compare" if ratio == "-" else f"is {ratio} times as fast as {base.run}"
            gain = run.over_baseline.accuracy_gain.value if run.answers is None else None
            points = "" if gain is None else f", accuracy {100 * gain:+.1f} points"
            yield f"{run.run} {speed}{points}"
