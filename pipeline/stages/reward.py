"""`reward`: judges candidates by a process reward model, which rates the thought up to and including each."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from pipeline.engine import Completion, Request
from pipeline.graph.rewards import ChatPrompt, TextPrompt
from pipeline.graph.spec import CallSpec
from pipeline.reasoning.chain import Chain, Outcome, Scale, Verdict
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.reasoning.reward_prompts import RewardPromptBuilder, Thought
from pipeline.stages.base import ALONE, EngineStage, StageKind, StagePlace
from pipeline.stages.choose import probabilities

SCALE = Scale("reward", 0.0, 1.0)
_STEP = "x"
"""Stands for a step, to count what a prompt adds to it."""
_FAR = 4096
"""Tokens that no step has."""


class RewardJudgeSpec(CallSpec, frozen=True, kw_only=True, tag="reward"):
    """Accept the candidate with the highest reward, if that reaches `threshold` (RSD, section 3; GSI for several candidates)."""

    prm: str
    """The file of the reward model, a name of `pipeline list rewards` or a path. It says how the model is asked and, where the engines file
    does not have the role, what serves it."""
    prompt: TextPrompt | ChatPrompt | None = None
    """How it is asked; null: as `prm` says."""
    threshold: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.7
    """Minimum reward that is accepted, 0 to 1."""

    judges: ClassVar[bool] = True

    @property
    def needs(self) -> Mapping[str, object]:
        return {"options": True}


class RewardStage(EngineStage):
    """Compares the best candidate's reward, P(good) / (P(good) + P(bad)) after its text, with a threshold (RSD, arXiv 2501.19324).

    Every distinct candidate is a request; one of several steps, such as a whole thought, is a request for each and has the least of their
    rewards. One that only closes the thought has the reward of the thought as it is; one without any text is not accepted. In the verdict
    the options are the two answers of the reward model about the best candidate. Where there are no candidates nothing is asked and no
    verdict given.
    """

    spec: RewardJudgeSpec

    def __init__(self, name: str, spec: RewardJudgeSpec, builders: Mapping[str, PromptBuilder], place: StagePlace = ALONE) -> None:
        super().__init__(name, spec, builders, place)
        assert spec.prompt is not None, "the loader fills it in"
        self._prompt = spec.prompt
        self._builder = RewardPromptBuilder(self.builder.tokenizer, spec.prompt, spec.prm)
        self._said = next((each.prompts for role, each in builders.items() if role != self.role), self.builder.prompts)
        """The prompts of the graph, which say what ends a step and a thought."""
        self._added = len(self._builder.ids("", [_STEP, _STEP]))
        """Tokens that a prompt adds to a step, at most."""

    def requests(self, chain: Chain) -> list[Request]:
        problem, requests = chain.problem.told(self._said), []
        for i, steps in self._asked(chain).items():
            long = len(chain.translate(chain.candidates[i], self.role)) + 2
            for j, thought in enumerate(steps):
                ids = self._builder.ids(problem, thought)
                judged = ((max(0, len(ids) - long), len(ids)), (0, 0))
                requests.append(self.request(chain, ids, 1, part=f"/{i}.{j}", option_ids=self._builder.option_ids, judged=judged))
        return requests

    def room_for(self, chain: Chain, candidates: int) -> int:
        """Each candidate has its own prompt. Above `_FAR` tokens of room an estimate by bytes suffices."""
        problem, steps = chain.problem.told(self._said), self._thought(chain).steps
        most = len(problem.encode()) + sum(len(step.encode()) + self._added for step in steps) + self._added
        if (room := chain.left(self.role, most)) > _FAR:
            return room
        return chain.left(self.role, len(self._builder.ids(problem, [*steps, _STEP]))) - 1

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        if not chain.candidates:
            return self.unjudged(chain)
        answers = iter(completions)
        found = {i: [probabilities(next(answers).option_logprobs) for _ in steps] for i, steps in self._asked(chain).items()}
        least = {i: min(each, key=lambda answer: answer[0][0]) if each else ((0.0, 0.0), 0.0) for i, each in found.items()}
        best = max(least, key=lambda i: least[i][0][0])
        probs, mass = least[best]
        accepted = bool(found[best]) and probs[0] >= self.spec.threshold
        verdict = Verdict(
            kind="reward",
            chosen=best if accepted else None,
            label=self._prompt.good if probs[0] >= probs[1] else self._prompt.bad,
            value=probs[0],
            scale=SCALE,
            options=(self._prompt.good, self._prompt.bad),
            probs=probs,
            mass=mass,
            threshold=self.spec.threshold,
            distinct=len(found),
        )
        return Outcome(verdict=verdict)

    def _asked(self, chain: Chain) -> dict[int, list[list[str]]]:
        """For each distinct candidate, by its index: the steps of the thought up to each of the candidate's own steps."""
        thought, asked = self._thought(chain), {}
        for i in chain.distinct_candidates():
            candidate = chain.candidates[i]
            own = thought.steps_of(candidate.text)
            closes = candidate.closes and not own and bool(thought.steps)
            asked[i] = [thought.steps] if closes else [[*thought.steps, *own[: j + 1]] for j in range(len(own))]
        return asked

    def _thought(self, chain: Chain) -> Thought:
        thought = Thought(self._prompt.thought_end, self._said)
        for span in chain.thought:
            thought.commit(span.text)
        return thought


KIND = StageKind(spec=RewardJudgeSpec, build=RewardStage)
