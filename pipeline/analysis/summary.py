"""The figures of a run: the tables of a run folder and its `run.json` enter, one frozen `Summary` leaves.

Works on a run that is in progress or cut short: it counts what is on disk, in parts or write-ahead files. Nothing is written.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from pipeline.analysis.headline.figures import EngineSummary, Left, StageSummary, Summary
from pipeline.analysis.quality.option_mass import option_mass, read_masses
from pipeline.analysis.quality.samples import sample_statistics
from pipeline.analysis.quality.step_counts import STEP_SUMS
from pipeline.analysis.resources import EngineFacts, answers, devices_of, engine_facts
from pipeline.analysis.simulated import of_engines
from pipeline.analysis.time.timeline import Timeline, timeline
from pipeline.analysis.time.work import RunTimes, read_work
from pipeline.engine import EngineStatistics
from pipeline.errors import InputError
from pipeline.graph.plan import Plan
from pipeline.graph.spec import OpenSpec
from pipeline.store.folder import FILE
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

TABLES = ("calls", "steps", "chains")
CHAINS = """
SELECT count(*) AS chains, count(DISTINCT input_row) AS problems, count(DISTINCT input_row) FILTER (finished) AS done_problems,
       count(*) FILTER (finished) AS done, count(*) FILTER (stop_reason = 'error') AS failed,
       count(*) FILTER (finished AND trim(coalesce(answer_text, ''), E' \\n\\r\\t') = '') AS empty_answers,
       count(*) FILTER (finished AND thought_tokens = 0) AS empty_thoughts,
       count(*) FILTER (stop_reason = 'cancelled') AS cancelled, count(counted) AS graded, count(*) FILTER (counted) AS correct,
       count(*) FILTER (counted IS NOT NULL AND NOT finished) AS failed_as_wrong,
       coalesce(sum(thought_tokens) FILTER (finished), 0)::BIGINT AS thought_tokens, min(start_unix_ns) AS first, max(end_unix_ns) AS last,
       arg_min(problem_id, input_row) FILTER (finished) AS example
FROM chains
"""
STEPS = """
SELECT coalesce(sum(steps), 0)::BIGINT AS steps, coalesce(sum(steps) FILTER (verify_kind IS NOT NULL), 0)::BIGINT AS verified_steps,
       coalesce(sum(steps) FILTER (decision = 'accepted'), 0)::BIGINT AS accepted_steps,
       coalesce(sum(steps) FILTER (decision = 'fallback'), 0)::BIGINT AS fallback_steps,
       coalesce(sum(steps) FILTER (decision = 'unverified'), 0)::BIGINT AS unverified_steps,
       coalesce(sum(steps * tokens), 0)::BIGINT AS thought_tokens,
       coalesce(sum(steps * tokens) FILTER (decision IN ('accepted', 'unverified')), 0)::BIGINT AS drafted_tokens,
       coalesce(sum(steps * tokens) FILTER (list_contains($finishing, stage)), 0)::BIGINT AS finishing_tokens,
       coalesce(sum(kept_draft_tokens), 0)::BIGINT AS kept_draft_tokens
FROM step_sums
"""
CALLS = """
SELECT coalesce(engine, '') AS engine, coalesce(stage, '') AS stage, count(*) AS calls, count(error_type) AS failed_calls,
       count(*) FILTER (attempt > 0) AS retried_calls, sum(input_tokens)::BIGINT AS input_tokens,
       sum(output_tokens)::BIGINT AS output_tokens,
       coalesce(sum(output_tokens) FILTER (purpose = 'draft'), 0)::BIGINT AS draft_tokens,
       sum(cached_input_tokens)::BIGINT AS cached_input_tokens,
       sum(input_tokens) FILTER (cached_input_tokens IS NOT NULL)::BIGINT AS stated_input_tokens,
       sum(client_wait_s) + coalesce(sum(queue_time_s), 0) AS wait_s
FROM calls GROUP BY GROUPING SETS ((engine), (stage)) ORDER BY min(end_unix_ns), engine, stage
"""
"""A row for each engine, with an empty stage, and one for each stage, with an empty engine."""
ERROR_EXAMPLES = """
SELECT error_type, coalesce(arg_min(error_message, end_unix_ns), '') FROM chains WHERE error_type IS NOT NULL
GROUP BY error_type ORDER BY min(end_unix_ns), error_type
"""


class _Chains(Struct, frozen=True):
    """What the chains came to."""

    chains: int
    problems: int
    done_problems: int
    """Distinct input rows with a chain that is done."""
    done: int
    failed: int
    empty_answers: int
    empty_thoughts: int
    cancelled: int
    graded: int
    correct: int
    failed_as_wrong: int
    thought_tokens: int
    """Tokens of the thoughts of those that are done."""
    first: int | None
    last: int | None
    example: str | None
    """The problem of the first row of the input of which a chain gave an answer."""


class _Steps(Struct, frozen=True):
    """Counts over all steps."""

    steps: int
    verified_steps: int
    accepted_steps: int
    fallback_steps: int
    unverified_steps: int
    thought_tokens: int
    drafted_tokens: int
    """Tokens of steps by the draft, accepted or unverified."""
    finishing_tokens: int
    """Tokens of steps of stages that end a chain: the thoughts within whole responses."""
    kept_draft_tokens: int


class _Calls(Struct, frozen=True):
    """Sums over the calls of an engine, or of a stage."""

    engine: str
    stage: str
    calls: int
    failed_calls: int
    retried_calls: int
    input_tokens: int
    output_tokens: int
    draft_tokens: int
    cached_input_tokens: int | None
    stated_input_tokens: int | None
    """Prompt tokens of the calls of which the engine says how many were cached."""
    wait_s: float


def summarize(run: Path) -> Summary:
    """The summary of the run folder `run`; raises `InputError` when that is not a run folder or its tables cannot be read."""
    if not any((run / table).is_dir() for table in TABLES) and not (run / FILE).is_file():
        raise InputError(str(run), f"is not a run folder; expected {', '.join(TABLES[:2])} and {TABLES[2]} in it")
    with Query(run) as db:
        return summarize_work(read_work(db))


def summarize_work(work: RunTimes) -> Summary:
    """The same of a run that is open."""
    db, file = work.db, work.run
    db.execute(STEP_SUMS)
    chains, steps = db.row(CHAINS, _Chains), db.row(STEPS, _Steps, finishing=list(file.plan.finishing))
    calls, times = db.rows(CALLS, _Calls), timeline(work)
    wall_s, engines = _wall_s(file, chains), [each for each in calls if each.engine]
    tokens, drafted = (sum(getattr(each, name) for each in engines) for name in ("output_tokens", "draft_tokens"))
    kept = _kept(file, chains, steps, calls)
    return Summary(
        run=db.folders[0].resolve().name,
        status=file.status,
        **_decided(file, chains),
        example=chains.example,
        batch_size=file.options.batch_size,
        pauses=file.totals.pauses,
        left=_left(file, chains, tokens, wall_s),
        wall_time_s=wall_s,
        **_chain_figures(db, chains, wall_s),
        **_step_figures(steps, file.plan, wall_s),
        draft_tokens=drafted,
        wasted_draft_tokens=drafted - steps.kept_draft_tokens,
        option_mass=option_mass(read_masses(db)),
        output_tokens=tokens,
        output_tokens_per_s=_over(tokens, wall_s),
        kept_tokens=kept,
        kept_tokens_per_s=None if kept is None else _over(kept, wall_s),
        span_s=times.span_s,
        overlap_share=times.overlap_share,
        tail_time_s=times.tail_s,
        replicas=times.replicas,
        engines={each.engine: _engine(each, file.engine_statistics.get(each.engine), times, wall_s) for each in engines},
        stages={each.stage: _stage(each, times) for each in _in_order(calls, file)},
        error_examples=dict(db.stream(ERROR_EXAMPLES)),
    )


def _decided(run: RunFile, chains: _Chains) -> dict[str, Any]:
    """What `run.json` says of the run.

    A run that was resumed with a smaller limit has more chains than its input by now.
    """
    facts, plan = engine_facts(run), run.plan
    planned, problems = max(run.input.chains, chains.chains), max(run.input.rows, chains.problems)
    return {
        "error": run.error,
        "graph": plan.name,
        "models": plan.models,
        "has_toy_models": plan.has_toy_models,
        "drafters": tuple(dict.fromkeys(plan.drafters)),
        "planned": planned,
        "problems_planned": None if planned == problems else problems,
        "schedule": run.options.schedule,
        "resumable": not (run.options.served or any(isinstance(spec, OpenSpec) for spec in plan.engines.values())),
        "startup_s": run.startup_s,
        "simulated": run.virtual_time,
        "simulator": of_engines(facts.values()) if run.virtual_time else "",
        "answers": answers(facts.values()),
        "take_turns": take_turns(run, facts),
    }


def take_turns(run: RunFile, facts: Mapping[str, EngineFacts]) -> tuple[str, ...]:
    """The roles of the engines of one GPU that compute there in turns; of several such GPUs those of the first."""
    sharing: dict[str, list[str]] = {}
    for role, spec in run.plan.engines.items():
        device = getattr(spec, "device", None)
        in_turn = run.host.cuda_mps is False if facts[role].accelerators else getattr(device, "sharing", "") == "time_slices"
        for name in devices_of(role, facts[role]) if in_turn else ():
            sharing.setdefault(name, []).append(role)
    return next((tuple(roles) for roles in sharing.values() if len(roles) > 1), ())


def _kept(run: RunFile, chains: _Chains, steps: _Steps, calls: Iterable[_Calls]) -> int | None:
    """Tokens of the thoughts and answers of the chains that are done. What a stage samples that ends its chain is an answer, but for the
    thought in it."""
    if not run.plan.engines:
        return None
    return chains.thought_tokens + sum(each.output_tokens for each in calls if each.stage in run.plan.finishing) - steps.finishing_tokens


def _left(run: RunFile, chains: _Chains, tokens: int, wall_s: float | None) -> Left | None:
    """What is left of a run that sampled that many `tokens`: as much for each chain as so far, where one that has begun counts as half.
    None where nothing is left, or the run is not known."""
    over, begun = chains.done + chains.failed, chains.cancelled
    if not run.plan.engines or run.input.chains <= over or run.status in ("running", "starting"):
        return None
    if not over or not tokens:
        return Left(chains=run.input.chains - over, begun=begun)
    share = run.input.chains / (over + begun / 2) - 1
    return Left(
        chains=run.input.chains - over, begun=begun, tokens=round(tokens * share), time_s=None if wall_s is None else wall_s * share
    )


def _in_order(calls: Iterable[_Calls], run: RunFile) -> list[_Calls]:
    """The stages in the order of the graph; those that are not in it last."""
    places = {node.name: place for place, node in enumerate(run.plan.stages())}
    return sorted((each for each in calls if each.stage), key=lambda each: places.get(each.stage, len(places)))


def _engine(sums: _Calls, own: EngineStatistics | None, times: Timeline, wall_s: float | None) -> EngineSummary:
    time, speculation = times.engines[sums.engine], own.speculation if own else None
    return EngineSummary(
        calls=sums.calls,
        input_tokens=sums.input_tokens,
        cached_share=None if sums.cached_input_tokens is None else _over(sums.cached_input_tokens, sums.stated_input_tokens),
        output_tokens=sums.output_tokens,
        output_tokens_per_s=_over(sums.output_tokens, wall_s),
        busy_s=time.busy_s,
        busy_share=time.busy_share,
        mean_in_flight=time.mean_in_flight,
        retried_calls=sums.retried_calls,
        restarts=own.restarts if own else None,
        speculated_tokens=speculation.draft_tokens if speculation else None,
        accepted_speculated_tokens=speculation.accepted_tokens if speculation else None,
    )


def _stage(sums: _Calls, times: Timeline) -> StageSummary:
    in_flight_s = times.stages_s[sums.stage]
    return StageSummary(sums.calls, sums.failed_calls, sums.input_tokens, sums.output_tokens, in_flight_s, sums.wait_s)


def _step_figures(steps: _Steps, plan: Plan, wall_s: float | None) -> dict[str, Any]:
    counted = ("steps", "verified_steps", "accepted_steps", "fallback_steps", "unverified_steps", "thought_tokens")
    return {name: getattr(steps, name) for name in counted} | {
        "steps_per_s": _over(steps.steps, wall_s),
        "acceptance_rate": _over(steps.accepted_steps, steps.verified_steps),
        "fallback_rate": _over(steps.fallback_steps, steps.verified_steps),
        "unverified_share": _over(steps.unverified_steps, steps.steps) if plan.gated or steps.unverified_steps else None,
        "draft_share": _over(steps.drafted_tokens, steps.thought_tokens),
    }


def _chain_figures(db: Query, chains: _Chains, wall_s: float | None) -> dict[str, Any]:
    counted = "problems chains done empty_answers empty_thoughts failed cancelled graded failed_as_wrong correct".split()
    samples = sample_statistics(db)
    return {name: getattr(chains, name) for name in counted} | {
        "grading_errors": _counts(db, "grading_error"),
        "accuracy": _over(chains.correct, chains.graded),
        "problems_per_s": _over(chains.done_problems, wall_s),
        "stop_reasons": _counts(db, "stop_reason"),
        "errors": _counts(db, "error_type"),
        "accuracy_interval": samples.interval,
        "samples": samples.samples,
        "pass_at": {str(k): share for k, share in samples.pass_at.items()},
        "majority_accuracy": samples.majority,
    }


def _counts(db: Query, column: str) -> dict[str, int]:
    """The number of chains by each value of a column, most frequent first."""
    sql = f"SELECT {column}, count(*) FROM chains WHERE {column} <> '' GROUP BY ALL ORDER BY count(*) DESC, min(end_unix_ns), {column}"
    return dict(db.stream(sql))


def _wall_s(file: RunFile, chains: _Chains) -> float | None:
    if file.wall_time_s:
        return file.wall_time_s
    started, ended = file.started_unix_ns or None, file.ended_unix_ns
    if started is None or ended is None:
        started, ended = chains.first, chains.last
    return None if started is None or ended is None or ended <= started else (ended - started) / 1e9


def _over(over: float, under: float | None) -> float | None:
    return over / under if under else None
