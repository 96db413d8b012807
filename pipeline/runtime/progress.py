"""Counts of a run while it goes on: steps, tokens and ends of its chains, for the live display and the summary."""

from collections.abc import Callable

from pipeline.engines.validate import is_another_model
from pipeline.graph.plan import Plan
from pipeline.store.resume_state import ResumeState


class Progress:
    """Counts since the run began, earlier sessions included, for the live display and the summary."""

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
        self._finishing = plan.finishing
        self.oldest: dict[str, float] = {}
        """When each live chain started, by `chain_id`, oldest first."""
        self.tell: Callable[[str], object] = lambda sentence: None
        """Receives notices for the user during the run."""
        self._strangers: set[tuple[str, str]] = set()

    @property
    def over(self) -> int:
        """Chains that are done or failed."""
        return self.done + self.failed

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

    def answered(self, role: str, asked: str, model: str) -> None:
        """The engine `role` answered as the `model` where it was asked for `asked`: said once, if that is another one."""
        if (role, model) not in self._strangers and is_another_model(asked, model):
            self._strangers.add((role, model))
            self.tell(f"engine {role!r} answers as the model {model!r} where {asked!r} is asked for")
