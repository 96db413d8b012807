"""The figures of a run: the tables of a run folder and its `run.json` enter, one frozen `Summary` leaves.

Works on a run that is in progress or cut short: it counts what is on disk, in parts or write-ahead files. Nothing is written.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from pipeline.analysis.choices import majority
from pipeline.analysis.facts import answers, engine_facts, of_engines, replica_count
from pipeline.analysis.figures import NOTHING, Estimate, outcomes, pass_at
from pipeline.analysis.steps import LOW, STEP_SUMS
from pipeline.analysis.time.occupancy import Occupancy, occupancy
from pipeline.analysis.time.work import RunTimes, read_work
from pipeline.graph.spec import OpenSpec
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

SUMS = """
WITH of_chains AS (
    SELECT count(*) AS chains, count(*) FILTER (finished) AS done, count(*) FILTER (stop_reason = 'error') AS failed,
           count(*) FILTER (stop_reason = 'cancelled') AS cancelled, count(counted) AS graded, count(*) FILTER (counted) AS correct,
           count(*) FILTER (finished AND coalesce(answer_text, '') !~ '\\S') AS empty_answers,
           coalesce(sum(thought_tokens) FILTER (finished), 0)::BIGINT AS kept_of_thoughts,
           (max(end_unix_ns) - min(start_unix_ns)) / 1e9 AS span_of_chains_s, arg_min(problem_id, input_row) FILTER (finished) AS example
    FROM chains),
of_problems AS (  -- count(DISTINCT) takes 40 MiB more for 200,000 chains
    SELECT count(*) AS problems, count(*) FILTER (done) AS done_problems
    FROM (SELECT bool_or(finished) AS done FROM chains GROUP BY input_row)),
of_steps AS (
    SELECT coalesce(sum(steps), 0)::BIGINT AS steps, coalesce(sum(steps) FILTER (verify_kind IS NOT NULL), 0)::BIGINT AS verified_steps,
           coalesce(sum(steps) FILTER (decision = 'accepted'), 0)::BIGINT AS accepted_steps,
           coalesce(sum(steps) FILTER (decision = 'fallback'), 0)::BIGINT AS fallback_steps,
           coalesce(sum(steps) FILTER (decision = 'unverified'), 0)::BIGINT AS unverified_steps,
           coalesce(sum(steps * tokens), 0)::BIGINT AS thought_tokens,
           coalesce(sum(cut_steps) FILTER (NOT list_contains($thoughts, stage)), 0)::BIGINT AS cut_steps,
           coalesce(sum(steps * tokens) FILTER (decision IN ('accepted', 'unverified')), 0)::BIGINT AS drafted_tokens,
           coalesce(sum(steps * tokens) FILTER (list_contains($finishing, stage)), 0)::BIGINT AS finishing_tokens,
           coalesce(sum(kept_draft_tokens), 0)::BIGINT AS kept_draft_tokens,
           (SELECT avg((score_mass < $low)::INT) FROM steps WHERE len(score_probs) > 0) AS doubtful_share
    FROM step_sums)
SELECT *, accepted_steps / nullif(verified_steps, 0) AS acceptance_rate, drafted_tokens / nullif(thought_tokens, 0) AS draft_share
FROM of_chains, of_problems, of_steps
"""
"""One row, most of whose columns are fields of `Summary`. `kept_of_thoughts`: tokens of the thoughts of the chains that are done;
`finishing_tokens`: of thoughts within whole responses."""
CALLS = """
WITH told AS (
    SELECT engine, stage, count(*) AS calls, count(error_type) AS failed_calls, count(*) FILTER (attempt > 0) AS retried_calls,
           sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
           sum(output_tokens) FILTER (purpose = 'draft') AS draft_tokens,
           sum(output_tokens) FILTER (list_contains($finishing, stage)) AS ending_tokens,
           sum(cached_input_tokens) AS cached, sum(input_tokens) FILTER (cached_input_tokens IS NOT NULL) AS stated,
           sum(client_wait_s) + coalesce(sum(queue_time_s), 0) AS wait_s, sum("end" - submit) AS in_flight_ns,
           min(submit) AS first, max("end") AS last, min(end_unix_ns) AS ended
    FROM flights GROUP BY engine, stage)
SELECT coalesce(engine, '') AS engine, coalesce(stage, '') AS stage, coalesce(sum(COLUMNS('calls|_tokens$')), 0)::BIGINT AS '\\0',
       sum(cached) / nullif(sum(stated), 0) AS cached_share, sum(wait_s) AS wait_s, sum(in_flight_ns) / 1e9 AS in_flight_s,
       (max(last) - min(first)) / 1e9 AS span_s
FROM told GROUP BY GROUPING SETS ((), (engine), (stage))
ORDER BY grouping(engine) + grouping(stage) DESC, nullif(list_position($stages, stage), 0), min(ended), engine, stage
"""
"""A row of the whole run, then one for each engine, with an empty stage, and one for each stage, with an empty engine, in the order of the
graph; those that are not in it last. `ending_tokens`: of calls that end a chain. Grouping sets over all calls would take much memory."""
OUTCOMES = 'SELECT count(*) AS graded, count(*) FILTER (counted) AS "right" FROM chains WHERE counted IS NOT NULL GROUP BY input_row'
VOTES = """
SELECT list({'correct': counted, 'answer': answer} ORDER BY sample_index) FROM chains WHERE counted IS NOT NULL GROUP BY input_row
"""
ENDS = """
SELECT field, ending, count(*), coalesce(arg_min(error_message, end_unix_ns), '') FROM (
    SELECT stop_reason AS stop_reasons, error_type AS errors, grading_error AS grading_errors, error_message, end_unix_ns FROM chains)
UNPIVOT (ending FOR field IN (stop_reasons, errors, grading_errors))
WHERE ending <> '' GROUP BY field, ending ORDER BY count(*) DESC, min(end_unix_ns), ending
"""
"""How chains ended, by fields of `Summary`, most frequent first; with the first message of each."""


class EngineSummary(Struct, frozen=True, kw_only=True):
    """The figures of one engine of a run; of several replicas of all their engines of one role."""

    calls: int
    input_tokens: int
    """Prompt tokens, cached ones included."""
    cached_share: float | None
    """Share of the prompt tokens that were in the prefix cache, 0 to 1, of the calls whose engine states it; null where none does."""
    output_tokens: int
    busy_s: float
    """Seconds in which at least one request was in flight."""
    busy_share: float
    """`busy_s` over the span of the calls, 0 to 1."""
    mean_in_flight: float
    """Requests in flight, averaged over the span of the calls."""
    retried_calls: int
    """Attempts at a call after the first one."""
    restarts: int | None
    """Times that the engine was started again after it died, by its own count; null where a session left no count."""
    speculated_tokens: int | None
    """Tokens that token-level speculation inside the engine proposed, by its own count; null where it does not speculate."""
    accepted_speculated_tokens: int | None
    """Those of `speculated_tokens` that were accepted."""


class StageSummary(Struct, frozen=True):
    """The figures of one stage of the graph."""

    calls: int
    failed_calls: int
    input_tokens: int
    output_tokens: int
    in_flight_s: float
    """Seconds that its requests were in flight, added up over the requests."""
    wait_s: float
    """Seconds that its requests were queued, here and at the engine where that reports it, added up over the requests."""


class Baseline(Struct, frozen=True, kw_only=True):
    """The run of the target alone over the same problems, and how a run compares with it. What is not known is null."""

    run: str
    """Name of its folder."""
    status: str
    """Its state; only of a finished run the figures are known."""
    problems_per_s: float | None = None
    accuracy: float | None = None
    times_as_fast: float | None = None
    """Problems a second of the run over those of the baseline; each of the two has one wall time, so that there is no interval."""
    speed_up: Estimate = NOTHING
    """Time of a problem in the baseline over that in the run."""
    flags: tuple[str, ...] = ()
    """Reasons other than the graph why the two may differ, as clauses."""


class Summary(Struct, frozen=True, kw_only=True):
    """The figures of a run. A rate is null where its denominator is zero or not known."""

    run: str
    """Name of the run folder."""
    status: str
    """As in `run.json`: `finished`, for example."""
    error: str | None = None
    """What ended it early, as in `run.json`; null where nothing did, or a person."""
    graph: str
    models: dict[str, str]
    """By role, without their folders."""
    has_toy_models: bool = False
    """Whether all of them are the bundled toy models."""
    drafters: tuple[str, ...] = ()
    """Roles that draft."""
    planned: int
    """Chains of the run, those that have not started included."""
    schedule: str
    resumable: bool = True
    """Whether the command line can resume it: not where its graph or its engines were given as values in Python."""
    simulated: bool = False
    """Whether its clock was simulated."""
    simulator: str = ""
    """How far simulated speeds are from measured ones; empty where they are measured."""
    answers: str | None = None
    """`simulated` or `recorded` where models did not give the answers; see `facts.answers`."""
    example: str | None = None
    """A problem of which a chain gave an answer."""
    baseline: Baseline | None = None
    """The run of the target alone (`run --baseline`), where `headline.summary_of` has read it."""
    batch_size: int
    """The most chains in flight at once, on each replica where there are several."""
    pauses: int | None = None
    """Times that a chain had to pause for room in a cache; null where the run does not say."""
    wall_time_s: float | None
    """As in `run.json`; without one, from the first chain's start until the last one's end. Null where no session and no chain ended."""
    problems: int
    """Distinct input rows that have a chain."""
    chains: int
    """Chains that have ended; of a chain that was resumed only the last attempt counts."""
    done: int
    """Chains that neither failed nor were cancelled."""
    empty_answers: int = 0
    """Those of `done` whose answer has no text."""
    failed: int
    cancelled: int
    """These continue from a recorded call when the run is resumed."""
    graded: int
    """Chains that count as right or wrong: those whose answer was graded, and failed ones with a reference answer."""
    correct: int
    """Those of `graded` that are right."""
    grading_errors: dict[str, int] = {}
    """Chains whose answer was not compared with the reference to the end, by the reason, most frequent first; some are graded as wrong."""
    accuracy: float | None
    """`correct` over `graded`, 0 to 1; of several samples a problem this is pass@1."""
    doubtful_share: float | None = None
    """Share of the verifications that gave less than `steps.LOW` of the probability to their valid options, 0 to 1; null without any that
    says."""
    accuracy_interval: dict[str, float] | None
    """The ends `low` and `high` of the 95 % interval of `accuracy`; null below 30 problems."""
    samples: int
    """Chains of one problem."""
    pass_at: dict[str, float]
    """pass@k by k, for 1, 2, 4, ... up to `samples`; see `figures.pass_at`."""
    majority_accuracy: float | None
    """Share of problems whose most frequent answer is right, 0 to 1; null with one sample a problem."""
    problems_per_s: float | None
    """Problems with a chain that is done, over the wall time."""
    steps: int
    """Committed steps, guidance included."""
    output_tokens: int
    """Generated tokens: those that all engines sampled, whatever became of them."""
    kept_tokens: int
    """Tokens of the thoughts of chains that are done, and of answers: what a chain's last stage samples, without any thought in it."""
    kept_tokens_per_s: float | None
    verified_steps: int
    """Committed steps whose candidates were verified."""
    may_reject: bool
    """Whether a judge may reject all candidates."""
    accepted_steps: int
    """Steps of which a candidate was accepted."""
    fallback_steps: int
    """Steps that were written after all candidates were rejected."""
    unverified_steps: int
    """Steps by the draft that a gate let pass: neither accepted nor rejected."""
    acceptance_rate: float | None
    """Accepted over verified steps, 0 to 1."""
    cut_steps: int
    """Steps that ended at a token limit, neither guidance nor whole thoughts."""
    thought_tokens: int
    """Tokens of all committed steps."""
    draft_share: float | None
    """Share of `thought_tokens` that are in steps by the draft, accepted or unverified, 0 to 1."""
    draft_tokens: int
    """Tokens that were sampled for candidates, also where no step came of them."""
    wasted_draft_tokens: int
    """Those of `draft_tokens` that were not committed."""
    replicas: int = 1
    """How many solved its problems."""
    engines: dict[str, EngineSummary]
    """By role."""
    stages: dict[str, StageSummary]
    """By the stage's name."""
    stop_reasons: dict[str, int]
    """Chains by what ended them, most frequent first."""
    errors: dict[str, int]
    """Failed chains by the type of their error, most frequent first."""
    error_examples: dict[str, str]
    """One message for each type of error."""


def summarize(run: Path) -> Summary:
    """The summary of the run folder `run`; raises `InputError` when that is not a run folder or its tables cannot be read."""
    with Query(run) as db:
        return summarize_work(read_work(db))


def summarize_work(work: RunTimes, over_time: Occupancy | None = None) -> Summary:
    """The same of a run that is open; `over_time` where that is known already."""
    db, file = work.db, work.run
    over_time, finishing = over_time or occupancy(work, 1), list(file.plan.finishing)
    db.execute(STEP_SUMS)
    nodes = [*file.plan.stages()]
    thoughts = [node.name for node in nodes if getattr(node.spec, "unit", "step") in ("thought", "response")]
    [sums] = db.arrow(SUMS, finishing=finishing, thoughts=thoughts, low=LOW).to_pylist()
    total, *calls = db.arrow(CALLS, finishing=finishing, stages=[node.name for node in nodes]).to_pylist()
    wall_s = file.wall_time_s or sums["span_of_chains_s"] or None
    kept = int(sums["kept_of_thoughts"] + total["ending_tokens"] - sums["finishing_tokens"])
    found = {
        "run": db.folders[0].resolve().name,
        "wall_time_s": wall_s,
        "problems_per_s": _over(sums["done_problems"], wall_s),
        "wasted_draft_tokens": total["draft_tokens"] - sums["kept_draft_tokens"],
        "kept_tokens": kept,
        "kept_tokens_per_s": _over(kept, wall_s),
        "engines": {each["engine"]: _engine(each, file, over_time, total["span_s"]) for each in calls if each["engine"]},
        "stages": {each["stage"]: each for each in calls if each["stage"]},
    }
    return msgspec.convert(total | sums | _decided(file, sums["chains"]) | _chain_figures(db, file.input.samples) | found, Summary)


def _decided(run: RunFile, chains: int) -> dict[str, Any]:
    """What `run.json` says of the run.

    A run that was resumed with a smaller limit has more chains than its input by now.
    """
    facts, plan = engine_facts(run), run.plan
    return {
        "status": run.status,
        "error": run.error,
        "graph": plan.name,
        "models": plan.models,
        "has_toy_models": plan.has_toy_models,
        "drafters": tuple(dict.fromkeys(plan.drafters)),
        "may_reject": any(node.spec.may_reject for node in plan.stages()),
        "planned": max(run.input.chains, chains),
        "schedule": run.options.schedule,
        "resumable": not (run.options.served or any(isinstance(spec, OpenSpec) for spec in plan.engines.values())),
        "simulated": run.virtual_time,
        "simulator": of_engines(facts.values()) if run.virtual_time else "",
        "answers": answers(facts.values()),
        "batch_size": run.options.batch_size,
        "pauses": run.totals.pauses,
        "samples": run.input.samples,
        "replicas": replica_count(run),
    }


def _engine(sums: dict[str, Any], run: RunFile, over_time: Occupancy, span_s: float) -> dict[str, Any]:
    busy_s, own = over_time.engines[sums["engine"]].total_busy_s, run.engine_statistics.get(sums["engine"])
    speculation = own.speculation if own else None
    return sums | {
        "busy_s": busy_s,
        "busy_share": _over(busy_s, span_s) or 0.0,
        "mean_in_flight": _over(sums["in_flight_s"], span_s) or 0.0,
        "restarts": own.restarts if own else None,
        "speculated_tokens": speculation.draft_tokens if speculation else None,
        "accepted_speculated_tokens": speculation.accepted_tokens if speculation else None,
    }


def _chain_figures(db: Query, samples: int) -> dict[str, Any]:
    graded, right = db.columns(OUTCOMES).values()
    accuracy, ends = outcomes(right, graded), list(db.stream(ENDS))
    return {
        **{
            field: {ending: chains for of, ending, chains, _ in ends if of == field}
            for field in ("stop_reasons", "errors", "grading_errors")
        },
        "accuracy": accuracy.value,
        "accuracy_interval": None if accuracy.low is None else {"low": accuracy.low, "high": accuracy.high},
        "error_examples": {ending: example for of, ending, _, example in ends if of == "errors"},
        "pass_at": {str(k): share for k, share in pass_at(graded, right).items()},
        "majority_accuracy": majority([tuple(each.values()) for each in row] for (row,) in db.stream(VOTES)) if samples > 1 else None,
    }


def _over(over: float, under: float | None) -> float | None:
    return over / under if under else None
