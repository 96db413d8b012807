"""`choose`: shows the engine all candidates in one prompt; one token names the best of them, or none."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from pipeline.engine import Completion, Request
from pipeline.graph.spec import Name, StageSpec
from pipeline.reasoning.chain import Chain, Outcome, Scale, Verdict
from pipeline.reasoning.prompts import LABELS
from pipeline.stages.base import EngineStage, StageKind
from pipeline.stages.draft import DraftSpec

SCALE = Scale("probability of the chosen option", 0.0, 1.0)


class ChooseSpec(StageSpec, frozen=True, kw_only=True, tag="choose"):
    """One token names the best candidate, or 0 for none (SpecCoT eq. 4, SCoT eq. 3)."""

    engine: Name
    unit: Literal["step", "thought"] = "step"
    """What the candidates are, which decides the words of the question: next steps, or whole thoughts (SCoT 3.4)."""
    reject: bool = True
    """false: 0 is not offered and one of the candidates is always accepted (best of N; SCoT 4.3, without error correction)."""

    judges: ClassVar[bool] = True

    @property
    def may_reject(self) -> bool:
        """See `StageSpec.may_reject`."""
        return self.reject

    def flaws(self, before: Mapping[str, StageSpec], *, inside_repeat: bool) -> Iterator[tuple[str, str]]:
        """See `StageSpec.flaws`."""
        for name, draft in before.items():
            if isinstance(draft, DraftSpec) and draft.unit != self.unit:
                yield "unit", f"asks for the best {self.unit} and `{name}` drafts a {draft.unit}; set `unit: {draft.unit}`"


class ChooseStage(EngineStage):
    """Takes the option of highest probability: one of the candidates, or `0` for none (SpecCoT 3.4, eq. 4; SCoT 3.4, eq. 3).

    Where the stage may not reject, 0 is no option and the question does not mention it (SCoT 4.3). Identical candidates are
    shown once. Where there are no candidates nothing is asked and no verdict given.
    """

    spec: ChooseSpec

    def check(self, candidates: int) -> str | None:
        """See `Stage.check`."""
        most = self.builder.most_candidates
        if candidates <= most:
            return None
        return f"its engine's tokenizer names only {most} options with one token and {candidates} candidates are drafted"

    def requests(self, chain: Chain) -> list[Request]:
        """See `Stage.requests`."""
        if not chain.candidates:
            return []
        shown = [chain.translate(chain.candidates[i], self.role) for i in chain.distinct_candidates()]
        prompt = self.builder.choose(chain.contexts[self.role], shown, unit=self.spec.unit, reject=self.spec.reject)
        return [self.request(chain, prompt.ids, 1, option_ids=prompt.option_ids)]

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        """See `Stage.apply`."""
        if not completions:
            return Outcome()
        distinct = chain.distinct_candidates()
        probs, mass = probabilities(completions[0].option_logprobs)
        best = max(range(len(probs)), key=probs.__getitem__) + (not self.spec.reject)
        chosen = distinct[best - 1] if best else None
        verdict = Verdict(
            kind="choose",
            chosen=chosen,
            label=LABELS[best],
            value=max(probs),
            scale=SCALE,
            options=tuple(LABELS[not self.spec.reject : len(distinct) + 1]),
            of_candidates=True,
            probs=probs,
            mass=mass,
            distinct=len(distinct),
        )
        return Outcome(verdict=verdict)


def probabilities(logprobs: Sequence[float]) -> tuple[tuple[float, ...], float]:
    """The options' probabilities, renormalised to sum to 1, and their sum before that; all are 0 where every log probability is -inf."""
    top = max(logprobs)
    if top == -math.inf:
        return (0.0,) * len(logprobs), 0.0
    weights = [math.exp(logprob - top) for logprob in logprobs]
    total = sum(weights)
    return tuple([weight / total for weight in weights]), min(1.0, total * math.exp(top))


KIND = StageKind(spec=ChooseSpec, build=ChooseStage)
