"""Counts of a run while it goes on: steps, tokens, ends and grades of its chains, for the live display, the summary and `run.json`."""

from collections import Counter
from collections.abc import Callable

from pipeline.graph.plan import Plan
from pipeline.runtime.admission.admission import Admission
from pipeline.runtime.clock import Clock
from pipeline.runtime.rows import NoRows, Setbacks
from pipeline.store.resume import NO_STAGE, ResumeState
from pipeline.store.rows import CallRow, ChainRow, counted
from pipeline.store.run_file import Totals


class Progress(NoRows):
    """Counts since the run began, earlier sessions included; as a `RowSink` it counts grades, and sees why engines answer nothing."""

    def __init__(
        self, plan: Plan, resume_state: ResumeState, tell: Callable[[str], object], clock: Clock, admission: Admission | None = None
    ) -> None:
        """`tell` receives notices for the user during the run; `admission` lets chains pause, and None does where nothing does."""
        totals = resume_state.totals
        self.done, self.failed, self.cancelled, self.live = totals.chains_done, totals.chains_failed, 0, 0
        self.graded, self.correct, self.steps, self.decisions = totals.graded, totals.correct, totals.steps, Counter(totals.decisions)
        self.errors = {error: Counter(stages) for error, stages in totals.errors.items()}
        """The number of chains that failed, by the error and the stage in which they met it (`NO_STAGE` before the first)."""
        self.output_tokens = {role: totals.output_tokens.get(role, 0) for role in plan.engines}
        self.kept_tokens = 0
        """Tokens of committed steps and of answers, of this session alone."""
        self.oldest: dict[str, float] = {}
        """When each live chain started, by `chain_id`, oldest first."""
        self._finishing, self._clock, self._setbacks = plan.finishing, clock, Setbacks(tell)
        self._admission = admission

    @property
    def over(self) -> int:
        """Chains that are done or failed."""
        return self.done + self.failed

    @property
    def paused(self) -> int:
        """Live chains that pause."""
        return 0 if self._admission is None else self._admission.paused

    def begin(self, chain_id: str, now: float) -> None:
        """A chain has begun."""
        self.live += 1
        self.oldest[chain_id] = now

    def end(self, chain_id: str, stop_reason: str, error: str | None, stage: str | None) -> None:
        """A chain is over; if it failed, with an `error` of this type in `stage`."""
        self.live -= 1
        self.oldest.pop(chain_id, None)
        if error is not None:
            self.failed += 1
            self.errors.setdefault(error, Counter())[stage or NO_STAGE] += 1
        elif stop_reason == "cancelled":
            self.cancelled += 1
        else:
            self.done += 1

    def sampled(self, role: str, stage: str, tokens: int) -> None:
        """A call of `stage` to the engine `role` has ended, which sampled that many tokens."""
        self.output_tokens[role] += tokens
        if stage in self._finishing:
            self.kept_tokens += tokens

    def committed(self, stage: str, decision: str, tokens: int) -> None:
        """`stage` committed a step of that many tokens. Those of a stage that finishes its chain count as they are sampled."""
        self.steps += 1
        self.decisions[decision] += 1
        if stage not in self._finishing:
            self.kept_tokens += tokens

    def call(self, row: CallRow) -> None:
        self._setbacks.call(row)

    def chain(self, row: ChainRow) -> None:
        """Count the grade of a chain that is over."""
        self._setbacks.chain(row)
        verdict = counted(row.correct, row.stop_reason, row.reference_answer)
        self.graded += verdict is not None
        self.correct += bool(verdict)

    def setbacks(self) -> list[str]:
        """Why engines answer nothing, a sentence for each that does so now."""
        return self._setbacks.reasons(self._clock.unix_ns(self._clock.now()))

    def totals(self) -> Totals:
        """The counts as `run.json` holds them."""
        return Totals(
            chains_done=self.done,
            chains_failed=self.failed,
            chains_cancelled=self.cancelled,
            pauses=None if self._admission is None else self._admission.pauses,
            graded=self.graded,
            correct=self.correct,
            errors={error: dict(sorted(stages.items())) for error, stages in sorted(self.errors.items())},
            steps=self.steps,
            decisions=dict(self.decisions),
            output_tokens=self.output_tokens,
        )
