"""The response of a chain that may be switched: the stage's own request for what is left, interruptible."""

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from pipeline.engine import Completion, Request
from pipeline.reasoning.chain import Chain, Outcome
from pipeline.runtime.speculation.switch import ModeSwitch
from pipeline.stages.base import Stage


class SwitchedResponse:
    """A `Stage` around the response of a `switch`."""

    def __init__(self, stage: Stage, switch: ModeSwitch) -> None:
        self._stage, self._switch = stage, switch
        self.name: str = stage.name
        self.spec: Any = stage.spec
        self.role: str = stage.role
        self._key: str = getattr(stage, "context", stage.role)

    def requests(self, chain: Chain) -> list[Request]:
        """None where the chain is to speculate by now."""
        if not self._switch.send(chain):
            return []
        [request] = self._stage.requests(chain)
        most = chain.room(request.max_tokens, self._key)  # what a whole response may have, less the steps before it
        return [structs.replace(request, max_tokens=most, interruptible=True)]

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        """Without an answer nothing was asked."""
        return self._stage.apply(chain, completions) if completions else Outcome()

    def check(self, candidates: int) -> str | None:
        return self._stage.check(candidates)
