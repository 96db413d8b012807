"""Counts of a run while it goes on: steps, tokens and ends of its chains, for the live display and the summary."""

from pipeline.graph.plan import Plan
from pipeline.store.resume_state import NO_STAGE, ResumeState


class Progress:
    """Counts since the run began, earlier sessions included."""

    def __init__(self, plan: Plan, resume_state: ResumeState) -> None:
        self.live = self.cancelled = 0
        self.done, self.failed = resume_state.done, resume_state.failed
        self.decisions = resume_state.decisions.copy()
        self.steps = self.decisions.total()
        self.errors = resume_state.errors.copy()
        """The number of chains that failed, by the error and the stage in which they met it."""
        self.output_tokens = {role: resume_state.output_tokens.get(role, 0) for role in plan.engines}
        self.kept_tokens = 0
        """Tokens of committed steps and of answers, of this session alone."""
        self.oldest: dict[str, float] = {}
        """When each live chain started, by `chain_id`, oldest first."""
        self._finishing = plan.finishing

    @property
    def over(self) -> int:
        """Chains that are done or failed."""
        return self.done + self.failed

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
            self.errors[error, stage or NO_STAGE] += 1
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
