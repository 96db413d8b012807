"""The least time in which simulated devices could compute given calls, in closed form: specs and answered calls enter, seconds leave.

Pure. No schedule of these calls is faster, because only what none can avoid is counted: every iteration reads the weights and has its
overhead, and there are at least as many as full batches or the longest sequence need; every sequence reads its own keys and values; a
prompt is computed from where it first differs from all earlier ones, as if nothing were ever evicted. That work can be divided evenly,
and that no call waits for another, is assumed in the schedule's favour.
"""

import math
import sys
from collections.abc import Mapping, Sequence

from msgspec import Struct

from pipeline.engine import Completion, Request
from pipeline.engines.sim.cache import PrefixCache
from pipeline.engines.sim.roofline import Roofline
from pipeline.engines.sim.spec import SimSpec
from pipeline.engines.sim.speculation import iterations_of


class AnsweredCall(Struct, frozen=True, kw_only=True):
    """A request and its answer."""

    request: Request
    completion: Completion


class Work(Struct, frozen=True):
    """What one engine has to do for its calls, in seconds on a separate device."""

    compute: float
    """Arithmetic."""
    memory: float
    """Memory traffic."""
    least: float
    """The time that it takes when no other engine computes, overhead included."""


class _Call(Struct, frozen=True):
    """The sizes of one call, in tokens."""

    prompt: int
    cached: int
    """Prompt tokens that are never computed."""
    iterations: tuple[int, ...]
    """Iterations that sample the tokens of each candidate: as many as tokens, unless the engine speculates."""
    rates: tuple[float, ...]
    """Tokens by which the context of each candidate grows with an iteration."""

    @property
    def decoded(self) -> int:
        """Iterations of all candidates after their first tokens."""
        return sum(self.iterations) - len(self.iterations)

    @property
    def reads(self) -> float:
        """Tokens whose keys and values all candidates read in these iterations."""
        each = zip(self.iterations, self.rates, strict=True)
        return sum((count - 1) * (self.prompt + 1) + rate * ((count - 1) * (count - 2) / 2) for count, rate in each)


def least_s(specs: Mapping[str, SimSpec], calls: Mapping[str, Sequence[AnsweredCall]], sequences: Mapping[str, int]) -> dict[str, float]:
    """Seconds by the device's name; all mappings are by role. `sequences`: the maximum that an engine may compute together.

    In time slices the engines' times add up; under MPS their memory traffic does, and their arithmetic, but overhead overlaps.
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(spec.device.name for spec in specs.values()):
        here = {role: spec for role, spec in specs.items() if spec.device.name == name}
        works = [work_of(spec, calls[role], min(sequences[role], spec.max_num_seqs)) for role, spec in here.items() if calls[role]]
        mps = any(spec.device.sharing == "mps" for spec in here.values())
        found[name] = _together(works) if mps else sum(work.least for work in works)
    return found


def _together(works: Sequence[Work]) -> float:
    """The least time of engines that run side by side."""
    alone = max((work.least for work in works), default=0.0)
    return max(alone, sum(work.compute for work in works), sum(work.memory for work in works))


def work_of(spec: SimSpec, answered: Sequence[AnsweredCall], sequences: int) -> Work:
    """What the engine of `spec` has to do for its calls, in batches of at most `sequences`."""
    roofline, calls = Roofline(spec), _sizes(spec, answered)
    rates, proposals = roofline.rates, roofline.proposals
    prompts, decoded = sum(call.prompt - call.cached for call in calls), sum(call.decoded for call in calls)
    tokens = prompts + decoded * (1 + proposals)
    longest = max((count for call in calls for count in call.iterations), default=0)
    batches = math.ceil(sum(sum(call.iterations) for call in calls) / sequences)
    iterations = max(longest, batches, math.ceil(tokens / spec.max_num_batched_tokens))
    asked, reads = sum(call.prompt for call in calls), sum(call.reads for call in calls)
    compute = tokens * rates.token_s
    memory = iterations * rates.weights_s + (asked + reads + decoded * proposals) * rates.kv_s
    overhead = iterations * rates.overhead_s
    if draft := roofline.draft:
        passes = proposals * max(longest - 1, math.ceil(decoded / sequences))
        compute += (prompts + decoded * proposals) * draft.token_s
        memory += passes * draft.weights_s + (asked + proposals * reads) * draft.kv_s
        overhead += passes * draft.overhead_s
    least = max(compute, memory) + overhead
    if sequences == 1:  # no two calls share an iteration, so that each iteration takes what it takes
        least = max(least, sum(_alone(call, roofline, spec.max_num_batched_tokens) for call in calls))
    return Work(compute, memory, least)


def _sizes(spec: SimSpec, answered: Sequence[AnsweredCall]) -> list[_Call]:
    """The sizes of the calls; the cached part of a prompt is what was in the cache, or would have been in one of endless size."""
    cache, found = PrefixCache(sys.maxsize), []
    for each in answered:
        asked = tuple(each.request.prompt_ids)
        prompt, lengths = asked + each.request.scored_ids, _lengths(each)
        node, length = cache.match(prompt, len(asked) - 1, each.request.adapter)
        node = cache.extend(node, prompt[length:])
        for candidate, sampled in zip(each.completion.candidates, lengths, strict=False):
            cache.insert(node, candidate.ids[: sampled - 1])
        iterations, rates = _iterations(spec, each, lengths)
        found.append(_Call(len(prompt), max(length, each.completion.usage.cached_input_tokens or 0), iterations, rates))
    return found


def _iterations(spec: SimSpec, each: AnsweredCall, lengths: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The iterations that candidates of these lengths take, and by how much the context of each grows with one."""
    if spec.speculative is None:
        return lengths, (1,) * len(lengths)
    drawn = [iterations_of(spec.speculative, each.request, candidate, length) for candidate, length in enumerate(lengths)]
    return tuple(one.iterations for one in drawn), tuple(one.rate for one in drawn)


def _lengths(each: AnsweredCall) -> tuple[int, ...]:
    """Sampled tokens of each candidate, end-of-sequence tokens included; what only scores samples one token, which is dropped."""
    return tuple(max(len(candidate.ids) + candidate.ended, 1) for candidate in each.completion.candidates) or (1,)


def _alone(call: _Call, roofline: Roofline, most: int) -> float:
    """Seconds of a call whose sequences are computed one after the other, prompts in chunks of at most `most` tokens."""
    seconds = sum(
        roofline.iteration(0, 0, tokens=end - start, reads=end).duration(1)
        for start in range(call.cached, call.prompt, most)
        for end in [min(start + most, call.prompt)]
    )
    again = roofline.iteration(0, 0, tokens=1, reads=call.prompt).duration(
        1
    )  # each further sequence computes the prompt's last token once more
    each = zip(call.iterations, call.rates, strict=True)
    decoded = sum(roofline.iteration(1, call.prompt + 1, rate).duration(count - 1) for count, rate in each if count > 1)
    return seconds + (len(call.iterations) - 1) * again + decoded
