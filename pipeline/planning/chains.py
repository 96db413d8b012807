"""The chains of a pilot as their calls: a run folder enters, what each chain asked of which engine leaves. Texts do not."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from pipeline.calibration.recorded import written_lengths
from pipeline.errors import InputError
from pipeline.store.query import Query

CALLS = """
SELECT chain_id, problem_id, engine, submit_unix_ns - (client_wait_s * 1e9)::BIGINT AS ready, end_unix_ns, input_tokens,
       if(cached_input_tokens IS NULL, 0, least(cached_input_tokens, input_tokens - 1)), output_tokens,
       list_transform(output_token_ids, lambda ids: len(ids))
FROM calls WHERE error_type IS NULL AND chain_id IN (SELECT chain_id FROM chains WHERE finished)
ORDER BY chain_id, ready, call_index
"""


class Asked(Struct, frozen=True):
    """One answered call."""

    role: str
    prompt: int
    """Tokens."""
    cached: int
    """Those of them that were in the prefix cache; 0 where the engine did not say."""
    lengths: tuple[int, ...]
    """Tokens sampled for each candidate."""


class PilotChain(Struct, frozen=True):
    """One finished chain."""

    problem: str
    levels: tuple[tuple[Asked, ...], ...]
    """Calls that were made side by side, level after level."""
    gaps: tuple[float, ...]
    """Seconds from the end of each level to the next one, and of the first from the chain's start."""

    def tokens(self, role: str) -> tuple[int, int, int]:
        """Prompt tokens of a role's calls, those of them that were cached, and those sampled."""
        own = [call for level in self.levels for call in level if call.role == role]
        return sum(call.prompt for call in own), sum(call.cached for call in own), sum(sum(call.lengths) for call in own)

    def peak(self, role: str) -> int:
        """The greatest context of a role, with what is sampled beside it."""
        return max((call.prompt + sum(call.lengths) for level in self.levels for call in level if call.role == role), default=0)


def read_chains(run: Path) -> list[PilotChain]:
    """The finished chains of a run, in the order in which they began; raises `InputError` where there are none."""
    found: dict[str, list[tuple[float, float, Asked]]] = {}
    problems: dict[str, str] = {}
    with Query(run) as db:
        for chain, problem, role, ready, end, prompt, cached, sampled, lengths in db.stream(CALLS):
            call = Asked(role, prompt, cached, written_lengths(lengths, sampled))
            found.setdefault(chain, []).append((ready / 1e9, end / 1e9, call))
            problems[chain] = problem
    if not found:
        raise InputError(str(run), "has no finished chain, so that nothing can be planned from it")
    return [_chain(problems[name], found[name]) for name in sorted(found, key=lambda each: found[each][0][0])]


def _chain(problem: str, calls: Sequence[tuple[float, float, Asked]]) -> PilotChain:
    """Calls that are ready before an earlier one has ended are of its level."""
    levels: list[list[Asked]] = []
    gaps: list[float] = []
    until = calls[0][0]
    for ready, end, call in calls:
        if levels and ready < until:
            levels[-1].append(call)
        else:
            levels.append([call])
            gaps.append(max(0.0, ready - until))
        until = max(until, end)
    return PilotChain(problem, tuple(map(tuple, levels)), tuple(gaps))


def roles_of(chains: Sequence[PilotChain]) -> list[str]:
    """The roles that the chains ask, in order."""
    return list(dict.fromkeys(call.role for chain in chains for level in chain.levels for call in level))


def mean_tokens(chains: Sequence[PilotChain]) -> Mapping[str, tuple[float, float, float]]:
    """Of each role the mean over the chains of `PilotChain.tokens`."""
    found = {}
    for role in roles_of(chains):
        prompt, cached, sampled = (sum(each) / len(chains) for each in zip(*(chain.tokens(role) for chain in chains), strict=True))
        found[role] = (prompt, cached, sampled)
    return found
