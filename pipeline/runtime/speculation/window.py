"""Sums over a stretch of time: steps and calls enter as they end, the average round leaves."""

from pipeline.runtime.speculation.cost_model import SHORTEST_S, Round
from pipeline.runtime.speculation.modes import CallFacts, Mode


class ObservationWindow:
    """Sums over the time since `start`."""

    def __init__(self, start: float, written: int | None, running: int) -> None:
        self.start, self.written, self.running = start, written, running
        """The time, the tokens that the target had sampled by then, where that is known, and the chains that had a round under way."""
        self.seconds: dict[Mode, float] = {"speculative": 0.0, "direct": 0.0}
        """Seconds that chains spent in each mode, added up over the chains."""
        self.tokens = self.rounds = self.accepted = 0
        """Committed by rounds."""
        self.round_s = 0.0
        """Seconds of these rounds, added up."""
        self.excess = self.excess_squared = 0.0
        """Seconds by which these rounds took longer than direct mode would have for the same tokens, and the squares of these."""
        self.direct_tokens = 0
        """Written by direct requests that began in this time and ended."""
        self.other_tokens = 0
        """Written by the target in answer to requests that were not direct."""
        self.draft_s = self.drafted = self.verified = 0.0
        self.drafts = self.candidates = self.judges = 0
        self._last_judged, self._last_judges = start, 0

    def observe_round(self, tokens: int, accepted: bool, seconds: float, direct_speed: float) -> None:
        """A round of `seconds` committed `tokens`, which direct mode writes at `direct_speed` tokens a second."""
        seconds = max(seconds, SHORTEST_S)
        excess = seconds - tokens / direct_speed
        self.tokens += tokens
        self.rounds += 1
        self.accepted += accepted
        self.round_s += seconds
        self.excess += excess
        self.excess_squared += excess * excess

    def observe_call(self, call: CallFacts) -> None:
        """A call was answered."""
        if call.purpose == "draft":
            self.drafts += 1
            self.draft_s += max(call.end - call.submit, SHORTEST_S)
            self.drafted += call.output_tokens / call.n
            self.candidates += call.n
        elif call.direct:
            self.direct_tokens += call.output_tokens if call.submit >= self.start else 0
        elif call.purpose == "answer":  # what direct mode writes behind the thought in the same request
            self.direct_tokens += call.output_tokens if call.submit >= self.start else 0
            self.seconds["direct"] += call.end - max(call.submit, self.start)
        else:
            self.other_tokens += call.output_tokens
            if call.purpose == "judge":
                self.judges += 1
                self._last_judges = self._last_judges + 1 if call.end == self._last_judged else 1
                self._last_judged = call.end
                self.verified += call.input_tokens - call.cached_input_tokens

    def round(self, before: Round) -> Round:
        """The average round; what was not seen is as in `before`."""
        return Round(
            tokens=max(self.tokens / self.rounds, 1.0),
            drafted=self.drafted / self.drafts if self.drafts else before.drafted,
            candidates=self.candidates / self.drafts if self.drafts else before.candidates,
            verified=self.verified / self.judges if self.judges else before.verified,
            acceptance=self.acceptance(before.acceptance, 0.0),
        )

    @property
    def verdicts(self) -> int:
        """Rounds whose candidates were judged; after a rejection the step itself may still be under way.

        Those of the last moment do not count yet: their chains may still be about to commit what was accepted.
        """
        return min(self.judges - self._last_judges, self.drafts)

    def acceptance(self, before: float, weight: float) -> float:
        """The share of accepted rounds, where it was taken to be `before`, with the `weight` of that many verdicts."""
        verdicts = max(self.verdicts, self.accepted)
        return (before * weight + self.accepted) / (weight + verdicts) if verdicts else before
