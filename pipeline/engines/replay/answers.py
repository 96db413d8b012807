"""What a recorded call says to a request that may ask for less than it did. Pure.

A candidate depends on the seed and its own number alone (`Request.seed`), and its text on nothing that comes after: of
recorded candidates the first few, and of recorded texts the beginning, are what the model would have written.
"""

from pipeline.engine import Candidate, Request, Tokenizer
from pipeline.engines.replay.calls import RecordedCall
from pipeline.engines.sim.text import Output


def misfit(call: RecordedCall, request: Request, role: str) -> str | None:
    """Why `call` is no answer to `request` though it asked about the same, as a clause; None where it is one."""
    if call.engine != role:
        return f"the recorded call went to the engine `{call.engine}`"
    for name, then, now in (
        ("temperature", call.temperature, request.temperature),
        ("top_p", call.top_p, request.top_p),
        ("seed", call.seed, request.seed),
        ("stop", call.stop_sequences, request.stop),
        ("options", call.option_ids, request.option_ids),
    ):
        if then != now:
            return f"the call asks with another {name} than the recorded one"
    if request.n > call.choice_count:
        return f"the call asks for {request.n} candidates, of which {call.choice_count} were recorded"
    return None


def answer_of(call: RecordedCall, request: Request, limit: int, tokenizer: Tokenizer) -> Output | None:
    """What `request` gets where its candidates may have `limit` tokens; None where a recorded text was cut before that."""
    if request.scored_ids:
        return Output((), (1,), scored_logprobs=call.scored_logprobs)
    each = list(zip(call.output_token_ids, call.finish_reason, call.stop_reason, strict=True))[: request.n]
    candidates, lengths = [], []
    for ids, finish, stop in each:
        sampled = len(ids) + (finish == "stop" and stop is None)  # the end of the sequence was sampled and is not kept
        if request.max_tokens != call.max_tokens:
            if finish == "length" and len(ids) < limit:
                return None
            if sampled > limit:
                ids, finish, stop, sampled = ids[:limit], "length", None, limit
        text = tokenizer.decode(ids)
        candidates.append(Candidate(ids=ids, text=text, cumulative_logprob=None, finish_reason=finish, stop_reason=stop))
        lengths.append(max(sampled, 1))
    return Output(tuple(candidates), tuple(lengths), call.option_logprobs)
