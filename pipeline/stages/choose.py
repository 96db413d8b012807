"""`choose`: shows the engine all candidates in one prompt; one token names the best of them, or none."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from pipeline.engine import Completion, Request
from pipeline.graph.spec import CallSpec, StageSpec
from pipeline.reasoning.chain import Chain, Outcome, Scale, Span, Verdict
from pipeline.reasoning.prompts import OptionPrompt, PromptBuilder
from pipeline.stages.base import ALONE, TOO_LONG, EngineStage, StageKind, StagePlace
from pipeline.stages.draft import DraftSpec

SCALE = Scale("probability of the chosen option", 0.0, 1.0)


class ChooseSpec(CallSpec, frozen=True, kw_only=True, tag="choose"):
    """Accept the candidate that one token names, if its probability reaches `threshold`, or reject all (SpecCoT eq. 4, SCoT eq. 3)."""

    unit: Literal["step", "thought"] = "step"
    """What the candidates are, and so which prompt is used: next steps, or whole thoughts (SCoT 3.4)."""
    reject: bool = True
    """`false`: one of the candidates is always accepted (best of N; SCoT 4.3, without error correction)."""
    threshold: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Minimum probability of the chosen candidate among the options; below it all are rejected. 0: the likeliest option decides, as in the
    papers (SpecCoT 3.1 speaks of a quality threshold and states none)."""

    judges: ClassVar[bool] = True

    @property
    def needs(self) -> Mapping[str, object]:
        return {"options": True} | ({"probabilities": True} if self.threshold else {})

    @property
    def may_reject(self) -> bool:
        return self.reject

    def flaws(self, before: Mapping[str, StageSpec], *, inside_repeat: bool) -> Iterator[tuple[str, str]]:
        if self.threshold and not self.reject:
            what = f"is {self.threshold:g}, below which all are rejected, but `reject: false` always accepts one; drop one of the two"
            yield "threshold", what
        for name, draft in before.items():
            if isinstance(draft, DraftSpec) and draft.unit != self.unit:
                yield "unit", f"asks for the best {self.unit} and `{name}` drafts a {draft.unit}; set `unit: {draft.unit}`"


class ChooseStage(EngineStage):
    """Takes the option of highest probability: one of the candidates, or `0` for none (SpecCoT 3.4, eq. 4; SCoT 3.4, eq. 3).

    A chosen candidate whose probability is below the threshold is rejected with the others, and still named by the verdict's label. Where
    the stage may not reject, 0 is no option and the question does not mention it (SCoT 4.3). Identical candidates are
    shown once. Where there are no candidates nothing is asked and no verdict given. Candidates that do not fit into the engine's
    context together are all rejected where the stage may reject, without a call.
    """

    spec: ChooseSpec

    def __init__(self, name: str, spec: ChooseSpec, builders: Mapping[str, PromptBuilder], place: StagePlace = ALONE) -> None:
        super().__init__(name, spec, builders, place)
        self._alone = self.builder.asked_of(spec.unit).form == "alone"
        self._around: dict[int, int] = {}
        """Tokens of the question in addition to the context and that many candidates; of a separate chat, those of the last chain."""

    def check(self, candidates: int) -> str | None:
        asked = self.builder.asked_of(self.spec.unit)
        options = self.builder.options(self.spec.unit, candidates, self.spec.reject)
        if len(options.labels) < candidates:
            return f"its prompt has {len(asked.labels)} labels, too few for {candidates} candidates; add more under `labels`"
        return self.builder.flaw(asked, options.all)

    def requests(self, chain: Chain) -> list[Request]:
        if not chain.candidates:
            return []
        candidates = [chain.candidates[i] for i in chain.distinct_candidates()]
        if self.spec.unit == "thought":
            candidates = [self._unclosed(each) for each in candidates]
        prompt = self._asked(chain, [chain.translate(each, self.role) for each in candidates])
        if self.spec.reject and chain.left(self.role, len(prompt.ids)) < 1:
            return []
        return [self.request(chain, prompt.ids, 1, option_ids=prompt.option_ids, judged=prompt.judged)]

    def room_for(self, chain: Chain, candidates: int) -> int:
        context, around = len(chain.contexts[self.role]), self._around.get(candidates)
        if around is None or self._alone:
            around = self._around[candidates] = len(self._asked(chain, [()] * candidates).ids) - context
        return (chain.left(self.role, context + around) - 1) // candidates

    def _asked(self, chain: Chain, shown: Sequence[Sequence[int]]) -> OptionPrompt:
        """The question for the best of the candidates, which are shown as these ids."""
        return self.builder.choose(
            chain.contexts[self.role],
            shown,
            unit=self.spec.unit,
            reject=self.spec.reject,
            problem=chain.problem.told(self.builder.prompts),
            begin=chain.begins[self.role],
        )

    def _unclosed(self, candidate: Span) -> Span:
        """A whole thought without its closing reasoning tag, as the judge sees it (SCoT figure 3)."""
        mark = self.builder.prompts.thought.close
        if not (candidate.closes and candidate.text.endswith(mark)):
            return candidate
        return Span(candidate.role, candidate.ids[:-1], candidate.text.removesuffix(mark))

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        if not (distinct := chain.distinct_candidates()):
            return self.unjudged(chain)
        if not completions:
            return Outcome(
                verdict=Verdict(kind="choose", chosen=None, label=TOO_LONG, value=0.0, scale=SCALE, mass=0.0, distinct=len(distinct))
            )
        options, logprobs = self.builder.options(self.spec.unit, len(distinct), self.spec.reject), completions[0].option_logprobs
        if options.none is not None:  # which a verdict has first, wherever its label stands
            logprobs = (logprobs[options.none], *logprobs[: options.none], *logprobs[options.none + 1 :])
        probs, mass = probabilities(logprobs)
        best = max(range(len(probs)), key=probs.__getitem__)
        named = options.labels if options.none is None else (options.all[options.none], *options.labels)
        place = best - (options.none is not None)
        accepted = place >= 0 and probs[best] >= self.spec.threshold
        verdict = Verdict(
            kind="choose",
            chosen=distinct[place] if accepted else None,
            label=named[best],
            value=max(probs),
            scale=SCALE,
            options=named,
            of_candidates=True,
            probs=probs,
            mass=mass,
            threshold=self.spec.threshold or None,
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
