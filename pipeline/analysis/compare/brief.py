"""A comparison in one table, and a sentence about each run but the baseline: what `compare` prints unless it is asked for all."""

from collections.abc import Iterator

from pipeline.analysis.compare.cells import Table, number, plain, times
from pipeline.analysis.compare.compare import Comparison
from pipeline.analysis.compare.tables import accuracy, flag_lines, pair, pooled_lines, simulated, system

NOTE = (
    "times as fast: problems/s over the baseline's; speed-up: time of a problem of the baseline over that of the run, problem by problem. "
    "It is tokens, how many times shorter the text is, times rate, how many times as many kept tokens a problem gets per second. "
    "Brackets: 95% intervals."
)
ALONE = "Nothing to compare with: name a second run over the same problems; for a baseline, solve them with `pipeline run target`."


def brief(c: Comparison) -> list[str | Table]:
    """The table, the sentences, and how runs differ otherwise."""
    found: list[str | Table] = [_table(c), "\n".join(_sentences(c)) or ALONE]
    return [*found, *filter(None, (pooled_lines(c), simulated(c), flag_lines(c)))]


def _table(c: Comparison) -> Table:
    several, rows = len(c.baselines) > 1, []
    speeds = {run.run: run.problems_per_s for run in c.runs}
    for run in c.runs:
        base = c.baselines[run.dataset]
        row = (run.run, *([run.dataset] if several else []), system(run), pair(run), str(run.table.batch_size), accuracy(run))
        row = (*row, plain(speeds[run.run]), plain(run.kept_tokens_per_s))
        if run.run == base:
            rows.append((*row, "baseline" if len(c.runs) > 1 else "-", "-", "-", "-"))
        else:
            over = run.over_baseline
            factors = map(number, (over.speed_up, over.token_factor, over.rate_factor))
            rows.append((*row, times(speeds[run.run], speeds[base]), *factors))
    data = ("data",) if several else ()
    speed = ("problems/s", "kept tokens/s", "times as fast", "speed-up", "= tokens", "x rate")
    columns = ("run", *data, "system", "models", "batch", "accuracy", *speed)
    return Table("Accuracy and speed", columns, tuple(rows), NOTE)


def _sentences(c: Comparison) -> Iterator[str]:
    runs = {run.run: run for run in c.runs}
    for run in c.runs:
        base = runs[c.baselines[run.dataset]]
        if run is not base:
            ratio = times(run.problems_per_s, base.problems_per_s)
            speed = "has no speed to compare" if ratio == "-" else f"is {ratio} times as fast as {base.run}"
            gain = run.over_baseline.accuracy_gain.value if run.answers is None else None
            points = "" if gain is None else f", accuracy {100 * gain:+.1f} points"
            yield f"{run.run} {speed}{points}"
