"""The one queue of a run on replicas: which chains wait, which replica has which, and what is recorded of those. Never waits.

A chain is in one of three places: it waits here, it is at one replica, or it is over. What a replica has reported of a chain is kept until
the chain is over, so that it can continue elsewhere from its last recorded call; of a chain that is over nothing is kept.
"""

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator

from msgspec import Struct, structs

from pipeline.cluster.messages import Assignment
from pipeline.engine import Usage
from pipeline.reasoning.chain import chain_id
from pipeline.runtime.admission.feed import Start
from pipeline.runtime.resume_state import ResumedCall, ResumedChain, ResumeState
from pipeline.store.events import CallRow, StepRow


class UnfinishedChain(Struct):
    """A chain that is not over, with all that is recorded of it."""

    start: Start
    resumed: ResumedChain
    """What another replica needs to continue it; grows with every reported row."""
    replica: int | None = None
    """The replica that has it; None while it waits."""
    life: int = 0
    """The number of its life at the replica; negative, as those of earlier sessions are not."""
    failed_on: int | None = None
    """The replica on whose engines it has failed."""


class ChainQueue:
    """The chains of a run that are not over."""

    def __init__(self, resume_state: ResumeState) -> None:
        """`resume_state`: what earlier sessions left, from which each chain takes its own."""
        self._resume_state = resume_state
        self._waiting: deque[str] = deque()
        self._chains: dict[str, UnfinishedChain] = {}
        self.counts = Counter[int]()
        """The number of chains that each replica has."""
        self.exhausted = False
        """True once the input has no further chains."""

    def __len__(self) -> int:
        return len(self._chains)

    @property
    def waiting(self) -> int:
        """Chains that wait to be handed out."""
        return len(self._waiting)

    @property
    def handed(self) -> int:
        """Chains that are at some replica."""
        return len(self._chains) - len(self._waiting)

    @property
    def over(self) -> bool:
        """True if no chain is left and none will come."""
        return self.exhausted and not self._chains

    def add(self, start: Start) -> None:
        """Add a chain of the input."""
        name = chain_id(start.item.problem_id, start.sample_index)
        self._chains[name] = UnfinishedChain(start, self._resume_state.chain(name))
        self._waiting.append(name)

    def take(self, replica: int, count: int, *, alone: bool) -> tuple[Assignment, ...]:
        """Hand out up to `count` chains to `replica`; unless it is `alone`, none that has failed on it."""
        taken, left = list[Assignment](), list[str]()
        while self._waiting and len(taken) < count:
            name = self._waiting.popleft()
            chain = self._chains[name]
            if chain.failed_on == replica and not alone:
                left.append(name)
                continue
            chain.replica, chain.life = replica, chain.life - 1
            self.counts[replica] += 1
            taken.append(_assignment(chain))
        self._waiting.extendleft(reversed(left))
        return tuple(taken)

    def names(self, replica: int) -> Iterator[str]:
        """The names of the chains at `replica`, in the order of the input."""
        return (name for name, chain in self._chains.items() if chain.replica == replica)

    def call(self, row: CallRow) -> None:
        """Keep a reported call of a chain that is at a replica."""
        chain = self._chains[row.chain_id]
        resumed = chain.resumed
        resumed.attempt(chain.life, row.submit_unix_ns, row.client_wait_s, row.end_unix_ns)
        if row.error_type is None:
            resumed.calls[row.request_id] = _recorded(row)

    def step(self, row: StepRow) -> None:
        """Keep a reported step of a chain that is at a replica."""
        self._chains[row.chain_id].resumed.steps.append(row.step_token_ids)

    def end(self, name: str) -> None:
        """A chain is over."""
        self._leave(self._chains.pop(name))

    def put_back(self, names: Iterable[str]) -> None:
        """Let chains wait again, before all others, because their replica is lost or has ended."""
        back = list(names)
        for name in back:
            self._leave(self._chains[name])
        self._waiting.extendleft(reversed(back))

    def try_elsewhere(self, name: str) -> bool:
        """Let a chain that its replica's engines failed wait for another one; False where that has happened to it before."""
        chain = self._chains[name]
        if chain.failed_on is not None:
            return False
        chain.failed_on = chain.replica
        self.put_back([name])
        return True

    def _leave(self, chain: UnfinishedChain) -> None:
        if chain.replica is not None:
            self.counts[chain.replica] -= 1
            chain.replica = None


def _assignment(chain: UnfinishedChain) -> Assignment:
    start, resumed = chain.start, chain.resumed
    # A replica takes calls out of what it gets, and one of this process would take them out of ours.
    own = structs.replace(resumed, calls=dict(resumed.calls), steps=list(resumed.steps))
    return Assignment(
        item=start.item,
        sample_index=start.sample_index,
        order=start.order,
        resumed=own if resumed.attempts or resumed.steps else None,
    )


def _recorded(row: CallRow) -> ResumedCall:
    """The answer in a row of the calls table; ids as arrays, which take a tenth of the memory."""
    return ResumedCall(
        request_id=row.request_id,
        prompt_digest=row.prompt_digest,
        usage=Usage(input_tokens=row.input_tokens, cached_input_tokens=row.cached_input_tokens, output_tokens=row.output_tokens),
        wait_s=row.client_wait_s,
        submit_unix_ns=row.submit_unix_ns,
        end_unix_ns=row.end_unix_ns,
        output_token_ids=[array("I", ids) for ids in row.output_token_ids],
        finish_reason=row.finish_reason,  # type: ignore[arg-type]  # a column of the trace is any text
        stop_reason=row.stop_reason,
        option_logprobs=row.option_logprobs,
        scored_logprobs=row.scored_logprobs,
    )
