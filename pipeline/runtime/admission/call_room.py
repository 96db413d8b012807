"""How many calls of whole texts fit into the cache of their engine together: what they are expected to come to, from those that have ended.

Calls enter as they begin and end. Decides synchronously; knows of no queue and no clock.
"""

from pipeline.engine import Request


class _Stage:
    """The calls of one stage that are in flight, and how long its texts are."""

    __slots__ = ("ended", "most", "prompts", "running", "sequences", "written")

    def __init__(self) -> None:
        self.prompts = self.sequences = self.ended = self.written = self.most = 0
        """Tokens of the prompts in flight, texts in flight, calls that have ended, the tokens of their mean texts, and how many a text may
        have."""
        self.running: dict[str, int] = {}
        """By the id of the request, oldest first, the tokens that a text of each call in flight has at least."""

    @property
    def length(self) -> float:
        """Tokens that a text is expected to come to.

        All tokens that were written, over the texts that have ended, as for lifetimes of which some still run: the short texts end first,
        and would represent all if those in flight did not count. One text of half of what it may have is taken to have ended before, so
        that a single short one is not believed.
        """
        return min(self.most, (self.most / 2 + self.written + sum(self.running.values())) / (1 + self.ended))

    def end(self, request_id: str, tokens: int) -> None:
        """A call has ended with a mean text of that many tokens: those that began before it have written as much by now."""
        for other in self.running:
            if other == request_id:
                break
            self.running[other] = max(self.running[other], tokens)
        self.ended, self.written = self.ended + 1, self.written + tokens


class CallRoom:
    """The cache of one engine, as far as calls in flight fill it."""

    def __init__(self, tokens: float) -> None:
        """`tokens`: whose keys and values are to fit into it."""
        self._tokens = tokens
        self._stages: dict[str, _Stage] = {}

    @property
    def is_full(self) -> bool:
        """True if the calls in flight are expected to fill it. The last of them may go beyond it: a part that is smaller than a call
        would stay empty."""
        return sum(each.prompts + each.sequences * each.length for each in self._stages.values()) >= self._tokens

    def begin(self, stage: str, request: Request) -> None:
        """A call of the stage is sent."""
        found = self._stages.setdefault(stage, _Stage())
        found.most = max(found.most, 1 if request.scored_ids else request.max_tokens)
        found.prompts += _prompt(request)
        found.sequences += request.n
        found.running[request.request_id] = 0

    def end(self, stage: str, request: Request, tokens: int | None) -> None:
        """A call that had begun has ended; `tokens` is the mean of its texts, None where it has none."""
        found = self._stages[stage]
        if tokens is not None:
            found.end(request.request_id, tokens)
        del found.running[request.request_id]
        found.prompts -= _prompt(request)
        found.sequences -= request.n


def _prompt(request: Request) -> int:
    return len(request.prompt_ids) + len(request.scored_ids)
