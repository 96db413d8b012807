"""The sums over live chains, however they come, pause, go on and end."""

import math

from hypothesis import given
from hypothesis import strategies as st

from pipeline.runtime.speculation.live_chains import LiveChains

EVENTS = st.lists(st.tuples(st.sampled_from(["enter", "step", "pause", "resume", "leave", "interrupt", "write"]), st.integers(0, 1 << 16)))


class Counted:
    """The same chains, each with its context and mode; every sum is counted anew."""

    def __init__(self) -> None:
        self.going: dict[int, list[float]] = {}
        """Tokens at the last boundary, and those written directly since."""
        self.paused: dict[int, list[float]] = {}
        self.direct: set[int] = set()
        self.rounds: set[int] = set()

    def context_sum(self) -> float:
        return sum(context + (since if order in self.direct else 0) for order, (context, since) in self.going.items())


@given(EVENTS)
def test_the_sums_are_those_of_the_chains_that_go_on(events: list[tuple[str, int]]) -> None:
    chains, counted, orders = LiveChains(), Counted(), iter(range(1 << 20))
    for what, number in events:
        here = sorted(counted.paused if what == "resume" else {**counted.going, **counted.paused} if what == "leave" else counted.going)
        order = here[number % len(here)] if here else None
        if what == "enter":
            new = next(orders)
            chains.enter(new)
            counted.going[new] = [0, 0]
        elif what == "write":
            chains.direct_tokens += number % 100
            for each in counted.direct & set(counted.going):
                counted.going[each][1] += number % 100
        elif what == "interrupt":
            assert set(chains.to_interrupt()) <= counted.direct
            assert not set(chains.to_interrupt())
        elif order is None:
            continue
        elif what == "step":
            direct = number % 3 > 0
            chains.step(order, number, "direct" if direct else "speculative", 0.0)
            (counted.direct if direct else counted.rounds).add(order)
            (counted.rounds if direct else counted.direct).discard(order)
            counted.going[order] = [number, 0]
        elif what == "pause":
            chains.pause(order)
            counted.paused[order] = [counted.going.pop(order)[0], 0]
        elif what == "resume":
            chains.resume(order, 0.0)
            counted.going[order] = counted.paused.pop(order)
        else:
            chains.leave(order)
            counted.going.pop(order, None)
            counted.paused.pop(order, None)
        assert len(chains.running) == len(counted.going)
        assert chains.counts == {
            "direct": len(counted.direct & set(counted.going)),
            "speculative": len(counted.rounds & set(counted.going)),
        }
        assert math.isclose(chains.context, max(counted.context_sum() / max(len(chains.running), 1), 1), rel_tol=1e-9)


def test_a_chain_that_pauses_in_direct_mode_is_interrupted_once_when_it_goes_on() -> None:
    chains = LiveChains()
    chains.enter(0)
    chains.step(0, 100, "direct", 1.0)
    chains.pause(0)
    assert (len(chains.running), list(chains.to_interrupt())) == (0, [])
    chains.resume(0, 5.0)
    assert (chains.running[0].step_began, list(chains.to_interrupt()), list(chains.to_interrupt())) == (5.0, [0], [])
