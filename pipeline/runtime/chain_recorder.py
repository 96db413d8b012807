"""Records a chain while it runs: calls, steps and its end enter, rows of the trace and counts for the display leave. Never waits."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from pipeline.data.problems import Problem
from pipeline.engine import Candidate, Completion, Request, Usage
from pipeline.errors import with_place
from pipeline.grading.answers import as_kind, form_of
from pipeline.graph.spec import Purpose
from pipeline.reasoning.chain import Chain, Reading, Span, Step, Verdict, chain_id
from pipeline.runtime.clock import Clock, CoveredTime
from pipeline.runtime.lane import Call
from pipeline.runtime.progress import Progress
from pipeline.runtime.rows import RowSink
from pipeline.store.resume import ResumeState
from pipeline.store.rows import MEASURED_IN, AnsweredCall, CallRow, ChainRow, StepRow

NO_ANSWER = Completion(candidates=(), usage=Usage(input_tokens=0))
"""The completion that stands in the row of an attempt without an answer."""


class StageLabel(Struct, frozen=True):
    """The columns of a stage that are the same in every row of its calls."""

    name: str
    kind: str
    purpose: Purpose
    role: str
    model: str


class Attempt(Struct, frozen=True, kw_only=True):
    """A call that is sent to an engine once; a call that fails may have several attempts."""

    label: StageLabel
    call: Call
    step_index: int
    number: int
    """Number of the attempt among those of its call, from 0."""
    ready: float
    """When it could have been sent, in seconds of the run's clock."""
    submit: float
    """When it was sent, in seconds of the run's clock."""


class Recording(Struct, frozen=True, kw_only=True):
    """Where the chains of a run are recorded."""

    run_id: str
    rows: RowSink
    progress: Progress
    clock: Clock
    resume_state: ResumeState = field(default_factory=ResumeState)
    """What earlier sessions recorded."""


class ChainRecorder:
    """Records one chain of a `Recording`: its rows and its counts."""

    def __init__(self, recording: Recording, problem: Problem, sample_index: int) -> None:
        self._rows, self._clock, self._problem = recording.rows, recording.clock, problem
        self._progress = progress = recording.progress
        self._chain_id = chain_id(problem.problem_id, sample_index)
        self._identity = (recording.run_id, problem.problem_id, self._chain_id, sample_index)
        """The first columns of every table."""
        self._started = self._step_started = self._clock.now()
        self._resumed = recording.resume_state.chain(self._chain_id)
        self._before_s = self._resumed.lived_s
        self.waiting = CoveredTime()
        self._calls, self._steps = self._resumed.attempts, 0
        self._input, self._output = dict.fromkeys(progress.output_tokens, 0), dict.fromkeys(progress.output_tokens, 0)
        """Tokens of its calls, by role."""
        self._wasted = self._accepted = self._fallbacks = self._unverified = 0
        self._drafted, self._waited_s = 0, 0.0
        """Drafted tokens, and seconds in which calls waited, since the last committed step."""
        self._stage: str | None = None
        progress.begin(self._chain_id, self._started)

    def enter(self, stage: str) -> None:
        """The chain is in the stage of this name from now on; an error that it meets is recorded with it."""
        self._stage = stage

    def call(self, attempt: Attempt, end: Completion | Exception) -> None:
        """Record an attempt that ended with an answer or an error."""
        label = attempt.label
        answer, error = (NO_ANSWER, end) if isinstance(end, Exception) else (end, None)
        self._count(label, answer.usage, attempt.submit - attempt.ready)
        self._progress.sampled(label.role, label.name, answer.usage.output_tokens)
        self._rows.call(self._call_row(attempt, answer, error, self._clock.now()))
        self._calls += 1

    def recall(self, label: StageLabel, request: Request) -> AnsweredCall | None:
        """The answer that `request` got in an earlier session, or None. Its tokens count; it gets no second row."""
        resumed = self._resumed.take(request)
        if resumed is not None:
            self._count(label, resumed.usage, resumed.client_wait_s)
            self.waiting.add(resumed.client_wait_s)
        return resumed

    def commit(self, step: Step) -> None:
        """Record a step that joined the thought. Raises `ResumeMismatch` where the run folder holds another one in its place."""
        started, now, verdict = self._step_started, self._clock.now(), step.verdict
        drafted, waited_s = self._drafted, self._waited_s
        self._step_started, self._drafted, self._waited_s = now, 0, 0.0
        self._accepted += step.decision == "accepted"
        self._fallbacks += step.decision == "fallback"
        self._unverified += step.decision == "unverified"
        self._wasted += drafted - (0 if step.chosen is None else len(step.span.ids))
        recorded = self._resumed.holds(self._steps, step.span.ids)
        self._steps += 1
        if recorded:
            return
        self._progress.committed(step.stage, step.decision, len(step.span.ids))
        columns = NO_VERDICT if verdict is None else _verdict_columns(verdict, step.verify_stage)
        self._rows.step(
            StepRow(
                *self._identity,
                step.index,
                step.stage,
                step.span.role,
                step.decision,
                *columns,
                len(step.candidates),
                len(step.candidates) if verdict is None else verdict.distinct,
                step.chosen,
                step.span.text,
                step.span.ids,
                len(step.span.ids),
                tuple([c.text for c in step.candidates]),
                tuple([len(c.ids) for c in step.candidates]),
                drafted,
                now - started,
                waited_s,
                self._clock.unix_ns(started),
                self._clock.unix_ns(now),
                self._calls,
                step.span.cut,
                *_gate_columns(step.readings),
            )
        )

    def end(self, chain: Chain | None, stop_reason: str, error: Exception | None = None) -> None:
        """Record the end of the chain: finished, failed with `error`, or cancelled. `chain` is None if it never began."""
        now, problem = self._clock.now(), self._problem
        stage, failure = (self._stage, type(error).__name__) if error else (None, None)
        finished = stop_reason not in ("error", "cancelled")
        self._progress.end(self._chain_id, stop_reason, failure, stage)
        grader = problem.grader or ("letter" if problem.options else "math")
        form = None if problem.answer is None else form_of(as_kind(grader), problem.answer)
        said: Span | None = chain.answer if chain else None
        self._rows.chain(
            ChainRow(
                *self._identity,
                input_row=problem.row,
                answer=chain.stated_answer(form) if chain and finished else None,
                answer_text=said.text if said else None,
                reference_answer=problem.answer,
                correct=None,  # `inline_grader` fills it in
                grader=grader,
                grading_error=None,
                stop_reason=stop_reason,
                error_type=failure,
                error_message=with_place(error) if error else None,
                error_stage=stage,
                steps=chain.steps if chain else 0,
                accepted_steps=self._accepted,
                fallback_steps=self._fallbacks,
                thought_tokens=chain.thought_tokens if chain else 0,
                engines=tuple(self._output),
                input_tokens=tuple(self._input.values()),
                output_tokens=tuple(self._output.values()),
                wasted_draft_tokens=self._wasted + self._drafted,
                calls=self._calls,
                chain_time_s=self._before_s + now - self._started,
                wait_time_s=self.waiting.total_s,
                start_unix_ns=self._resumed.started_unix_ns or self._clock.unix_ns(self._started),
                end_unix_ns=self._clock.unix_ns(now),
                unverified_steps=self._unverified,
                answer_cut=None if said is None else said.cut,
            )
        )

    def _count(self, label: StageLabel, usage: Usage, wait_s: float) -> None:
        self._input[label.role] += usage.input_tokens
        self._output[label.role] += usage.output_tokens
        self._waited_s += wait_s
        if label.purpose == "draft":
            self._drafted += usage.output_tokens

    def _call_row(self, attempt: Attempt, answer: Completion, error: Exception | None, end: float) -> CallRow:
        """The row of an attempt; `CallRow` says what each value is, in this order."""
        label, request, ready, submit = attempt.label, attempt.call.request, attempt.ready, attempt.submit
        candidates, timing, usage = answer.candidates, answer.timing, answer.usage
        ids = tuple([c.ids for c in candidates])
        decode = timing.decode_time_s
        return CallRow(
            *self._identity,
            attempt.step_index,
            self._calls,
            attempt.number,
            label.name,
            label.kind,
            label.purpose,
            label.role,
            request.request_id,
            request.temperature,
            request.top_p,
            request.max_tokens,
            request.seed,
            request.n,
            request.stop,
            request.digest() if error is None else None,
            usage.input_tokens,
            usage.cached_input_tokens,
            usage.output_tokens,
            sum([c.ended for c in candidates]),
            tuple(range(len(candidates))),
            ids,
            tuple([c.finish_reason for c in candidates]),
            tuple([None if c.stop_reason is None else str(c.stop_reason) for c in candidates]),
            request.option_ids,
            answer.option_logprobs,
            self._clock.unix_ns(submit),
            self._clock.unix_ns(end),
            submit - ready,
            timing.queue_time_s,
            timing.prefill_time_s,
            decode,
            timing.time_to_first_token_s,
            None if decode is None else _time_per_token_s(decode, ids),
            end - submit,
            None if error is None else type(error).__name__,
            None if error is None else str(error),
            request.adapter,
            answer.model,
            **_measures(request, candidates),
        )


def _measures(request: Request, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """The columns of a call that hold the confidences of its candidates."""
    if not request.logprobs:
        return {}
    found = [each.confidence for each in candidates]
    return {name: tuple([None if one is None else getattr(one, measure) for one in found]) for measure, name in MEASURED_IN.items()}


def _time_per_token_s(decode_s: float, ids: Sequence[Sequence[int]]) -> float | None:
    """The decode time divided by the tokens of the longest candidate less one; None for one token."""
    longest = max(map(len, ids), default=0)
    return decode_s / (longest - 1) if longest > 1 else None


def _gate_columns(readings: Mapping[str, Reading]) -> tuple[Any, ...]:
    """The columns of the steps table from `gate_stage` to `gate_flagged`."""
    if not readings:
        return ()
    found = readings.values()
    return (tuple(readings), *(tuple([getattr(each, name) for each in found]) for name in ("statistic", "value", "threshold", "flagged")))


VerdictColumns = tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any, Any, Any, Any, Any]


def _verdict_columns(verdict: Verdict, stage: str | None) -> VerdictColumns:
    """The columns of the steps table from `verify_kind` to `threshold`."""
    scale = verdict.scale
    return (
        verdict.kind,
        stage,
        verdict.value,
        scale.name,
        scale.low,
        scale.high,
        scale.integers,
        verdict.label,
        verdict.options,
        verdict.of_candidates,
        verdict.probs,
        verdict.mass,
        verdict.threshold,
    )


NO_VERDICT: VerdictColumns = (None, None, None, None, None, None, None, None, (), None, (), None, None)
"""The same columns of a step that was not verified."""
