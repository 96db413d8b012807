"""Translates between the engine contract and vLLM: a spec into engine arguments, a request into sampling parameters, an output
into a completion. Pure.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from pydantic import ValidationError
from vllm import SamplingParams, exceptions
from vllm.sampling_params import RequestOutputKind

from pipeline.confidence import LIKELIEST, confidence_of
from pipeline.engine import Candidate, Completion, Request, Timing, Usage
from pipeline.engines.tokenizer import ids_to_stop
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import reason
from pipeline.system.machine import GIB

MAX_LOGPROBS = 64
"""Most log probabilities that vLLM may be asked for at a token; more than a choice has options."""

CPU_DEFAULTS: dict[str, Any] = {"kv_cache_memory_bytes": GIB, "enable_chunked_prefill": False, "block_size": 32, "enforce_eager": True}
"""What vLLM's CPU build needs to be told: a seeded request whose prefill is split kills version 0.32, and blocks of 128 tokens, its own
choice, would cache hardly any prefix of a short chain."""

REFUSALS: tuple[type[Exception], ...] = (ValueError, getattr(exceptions, "VLLMClientError", ValueError))
"""The errors of `AsyncLLM` that say that a request is flawed: it would be refused again. vLLM 0.24 raises `ValueError` alone."""


def arguments(role: str, spec: VllmSpec, model: str, *, on_cpu: bool) -> dict[str, Any]:
    """The arguments of vLLM's `AsyncEngineArgs` for a spec whose model is at `model`; what the spec leaves open is vLLM's choice."""
    chosen: dict[str, Any] = {
        "model": model,
        "served_model_name": role,
        "trust_remote_code": spec.trust_remote_code,
        "speculative_config": spec.speculative_config and dict(spec.speculative_config),
        "scheduling_policy": "priority",
        "max_logprobs": MAX_LOGPROBS,
    }
    if spec.adapters:
        # vLLM 0.32's CPU kernels (`lora/ops/torch_ops`) compute a request without an adapter with the last one: that slot stays empty.
        chosen |= {"enable_lora": True, "max_loras": len(spec.adapters) + on_cpu}
    # A whole prompt is computed in one iteration there.
    defaults = CPU_DEFAULTS | {"max_num_batched_tokens": max(8192, spec.args.get("max_model_len") or 0)} if on_cpu else {}
    return defaults | dict(spec.args) | chosen


def sampling_params(request: Request, max_model_len: int, *, speculates: bool) -> list[SamplingParams]:
    """The sampling parameters of each candidate of `request`, of one where it is greedy, with nothing left to the model's own defaults.

    Each candidate is a separate request to vLLM, with the seed that vLLM would give it. Of a request for n candidates vLLM states the
    cached tokens of the one that ends last, which are those that the others have just computed.
    """
    terms: dict[str, Any] = {
        "max_tokens": min(request.max_tokens, max_model_len - len(request.prompt_ids)),
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "min_p": request.min_p,
        "stop": list(request.stop),
        "stop_token_ids": list(request.stop_ids),
        "detokenize": bool(request.stop),
        "logprobs": LIKELIEST if request.logprobs else None,
        "output_kind": RequestOutputKind.FINAL_ONLY,
    }
    if ids := list(request.option_ids):
        # Under speculation log probabilities by id kill vLLM 0.32 (a shape mismatch in `RejectionSampler`): it gives the likeliest.
        by_id = {"logprobs": MAX_LOGPROBS} if speculates else {"logprobs": len(ids), "logprob_token_ids": ids}
        terms |= {"allowed_token_ids": ids} | by_id
    params = SamplingParams(**terms)
    if not request.temperature:
        return [params]
    found = [copy(params) for _ in range(request.n)]
    for index, each in enumerate(found):
        each.seed = request.seed + index
    return found


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or of that of its cause where it has none; of a configuration each field with its flaw."""
    if isinstance(error, ValidationError):
        return "; ".join(": ".join([*map(str, flaw["loc"]), flaw["msg"]]) for flaw in error.errors())
    return reason(error if str(error).strip() else error.__cause__ or error)


def completion(request: Request, outputs: Sequence[Any], decode: Callable[[Sequence[int]], str]) -> Completion:
    """The completion of `request` that vLLM's final `RequestOutput` of each candidate holds.

    Raises an error for what is no answer. The candidate that had the least of the prompt in the cache says what was there before them.
    """
    read = len(outputs[0].prompt_token_ids)
    sampled = [each.outputs[0] for each in outputs]
    usage = Usage(
        input_tokens=read,
        cached_input_tokens=min(read, *(each.num_cached_tokens or 0 for each in outputs)),
        output_tokens=sum(len(one.token_ids) for one in sampled),
    )
    candidates = [candidate(request, one, decode) for one in sampled] * (request.n // len(sampled))  # greedy ones are all the same
    known = sampled[0].logprobs[0] if request.option_ids else {}
    options = tuple(known[token].logprob if token in known else float("-inf") for token in request.option_ids)
    return Completion(candidates=tuple(candidates), option_logprobs=options, usage=usage, timing=timing([each.metrics for each in outputs]))


def candidate(request: Request, output: Any, decode: Callable[[Sequence[int]], str]) -> Candidate:
    """The candidate that a `CompletionOutput` holds: cut after its stop, without an end-of-sequence id that is no stop id.

    Raises `ValueError` where the model did not write it to its end.
    """
    finish = output.finish_reason
    if finish not in ("stop", "length"):  # but `abort`, `error` or `repetition`, with which a model does not end its turn
        raise ValueError(f"vLLM ended it with finish reason {finish!r}")
    ids, sampled, stop = ids_to_stop(output.token_ids, finish, output.stop_reason, request.stop_ids, decode)
    # vLLM names the sampled token beside the likeliest ones.
    places = output.logprobs[:sampled] if request.logprobs else []
    logprobs = [place[token].logprob for place, token in zip(places, output.token_ids, strict=False)]
    likeliest = [sorted((each.logprob for each in place.values()), reverse=True)[:LIKELIEST] for place in places]
    cut = request.logprobs and sampled < len(output.token_ids)
    return Candidate(
        ids=ids,
        text=decode(ids),
        cumulative_logprob=sum(logprobs) if cut else output.cumulative_logprob,
        finish_reason=finish,
        stop_reason=stop,
        confidence=confidence_of(logprobs, likeliest) if request.logprobs else None,
    )


def timing(stamps: Sequence[Any]) -> Timing:
    """Durations from vLLM's own monotonic time stamps of each candidate, from the first to the last of them."""
    queued, scheduled, first = (min(getattr(each, name) for each in stamps) for name in ("queued_ts", "scheduled_ts", "first_token_ts"))
    return Timing.of(queued, scheduled, first, max(each.last_token_ts for each in stamps))
