"""The tables of the papers over runs: runs enter; the table `runs`, for queries, and the result of one as a `Table` leave."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import structs

from pipeline.analysis.choices import ThoughtChoice, read_choices
from pipeline.analysis.compare import Run, data_sets
from pipeline.analysis.figures import CHANGES, FIGURES, NOTHING, Estimate, changes
from pipeline.analysis.rules import differences, of_work
from pipeline.analysis.tables import Table, printed, read_query
from pipeline.errors import UsageError
from pipeline.graph.files import model_name
from pipeline.store.query import Query, words_of

FIGURE = pa.struct([("value", pa.float64()), ("low", pa.float64()), ("high", pa.float64()), ("text", pa.string())])
NOTES = {"simulated": "Simulated accuracies are left out.", "recorded": "Accuracies are of recorded answers."}


def paper_table(name: str, runs: Sequence[Run]) -> Table:
    """The table of a paper, or of an SQL file, over `runs`; raises `UsageError` where there is none, or none of the runs is in it."""
    query = read_query(name)
    with Query(*(folder for run in runs for folder in run.folders)) as db, db.errors_of_sql():
        make_runs(db, runs, query.sql)
        found = db.select(query.sql)
        columns, rows = found.columns, [tuple(map(printed, row)) for row in found.fetchall()]
    if not rows:
        raise UsageError(f"{query.source or name}: the runs give none of its figures{'. ' * bool(query.note)}{query.note}")
    title = f"{query.title} ({query.source})" if query.source else query.title
    return Table(
        title, tuple(each.replace("_", " ") for each in columns), tuple(rows), " ".join([query.note, *_notes(runs, query.sql)]).strip()
    )


def _notes(runs: Sequence[Run], sql: str) -> Iterator[str]:
    if failed := sum(run.ends.failed for run in runs):
        yield f"Failed chains: {failed:,}; they count as wrong and are in no other figure."
    yield from dict.fromkeys(NOTES[run.answers] for run in runs if run.answers and "accuracy.text" in sql)
    for run in runs if "over_target" in sql else ():
        if (base := target_of(run, runs)) and (
            clauses := [said for name, said in differences(run.rules, base.rules).items() if of_work(name)]
        ):
            yield f"{run.name} over {base.name}: {', '.join(clauses)}."


def make_runs(db: Query, runs: Sequence[Run], sql: str) -> None:
    """Make the tables for a query: `runs`, with a row for each run: what was decided about it, its figures as structs of `value`, `low`,
    `high` and `text`, and in `over_target` its changes from the target alone; `members`, with the run of each folder; and, if the query
    names it, `choices` among whole thoughts."""
    data = data_sets(runs)
    db.register("runs", **_columns([_row(run, data[run.name], target_of(run, runs)) for run in runs]))
    members = [(name, run.name) for run in runs for name in run.pooled or (run.name,)]
    db.register("members", run=[name for name, _ in members], member=[run for _, run in members])
    if "choices" in words_of(sql):
        found = [{"run": run.name} | structs.asdict(choice) for run in runs for choice in read_choices(run.folders, run.file.plan)]
        kinds = {"run": pa.string()} | dict.fromkeys(ThoughtChoice.__struct_fields__, pa.bool_())
        db.register("choices", **{name: pa.array([each[name] for each in found], kind) for name, kind in kinds.items()})


def _row(run: Run, data: str, target: Run | None) -> dict[str, Any]:
    found = run.resources
    drafters = dict.fromkeys(run.file.plan.drafters)
    writers = [model for role, model in run.models.items() if role not in drafters]
    named = {
        "run": run.name,
        "data": data,
        "models": " + ".join(run.models.values()),
        "draft": " + ".join(run.models[role] for role in drafters if role in run.models) or "-",
        "target": writers[0] if writers else "-",
        "speculation": _speculation(run),
        "gpus": found.gpus,
        "cores": found.cores,
        "flops_per_s": found.flops_per_s,
    }
    plain_ones = {name: value for name, value in run.decided().items() if name not in ("pooled", "models", "params")}
    params = [(name, str(value)) for name, value in run.file.plan.params.items()]
    estimates = {each.name: _figure(run.figures[each.name], each.form) for each in FIGURES}
    if run.answers == "simulated":  # its value stays for queries
        estimates["accuracy"]["text"] = NOTHING.shown()
    over = None if target is None else {name: _figure(each) for name, each in changes(run.sums, target.sums).items()}
    return {**named, **plain_ones, "params": params, **estimates, "over_target": over}


def _figure(e: Estimate, form: str = "number") -> dict[str, Any]:
    return structs.asdict(e) | {"text": e.shown(form)}


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
    kinds = {each.name: FIGURE for each in FIGURES} | {"params": pa.map_(pa.string(), pa.string())}
    kinds |= {"over_target": pa.struct([(name, FIGURE) for name in ("accuracy_gain", *CHANGES)])}
    kinds |= dict.fromkeys(("wall_time_s", "problems_per_s", "kept_tokens_per_s"), pa.float64()) | {"answers": pa.string()}
    return {name: pa.array([row[name] for row in rows], kinds.get(name)) for name in rows[0]}


def _speculation(run: Run) -> str:
    """What proposes tokens inside its engines: the draft's model, or else the method."""
    configs = (
        spec.get("speculative_config") or (spec.get("speculative") and {"method": "simulated"}) for spec in run.file.engines.values()
    )
    return ", ".join(model_name(str(each.get("model") or each.get("method"))) for each in configs if each) or "-"


def target_of(run: Run, runs: Sequence[Run]) -> Run | None:
    """The run of the target alone over the same data with the same model that has most in common with `run`: settings and engines."""
    if run.file.graph == "target":
        return None
    alike = [each for each in runs if each.file.graph == "target" and each.file.input.sha256 == run.file.input.sha256]
    alike = [each for each in alike if each.models.get("target") == run.models.get("target")]

    def agreeing(other: Run) -> int:
        ours, theirs = ({**each.settings, "on": each.resources, **each.rules} for each in (run, other))
        return sum(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())

    return max(alike, key=agreeing, default=None)
