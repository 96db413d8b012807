"""Translates between the engine contract and vLLM: a spec into engine arguments, a request into sampling parameters, an output
into a completion. Pure; what only some versions of vLLM have is looked up in the installed one.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from pydantic import ValidationError
from vllm import SamplingParams, exceptions
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

from pipeline.confidence import LIKELIEST, confidence_of
from pipeline.engine import Candidate, Completion, FinishReason, Request, Timing, Usage
from pipeline.engines.models import adapter_folder
from pipeline.engines.tokenizer import count_through_stop
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.system.machine import GIB

MAX_LOGPROBS = 64
"""Most log probabilities that vLLM may be asked for at a token; more than a choice has options."""

CPU_DEFAULTS: dict[str, Any] = {"kv_cache_memory_bytes": GIB, "enable_chunked_prefill": False, "block_size": 32, "enforce_eager": True}
"""What vLLM's CPU build needs to be told: a seeded request whose prefill is split kills version 0.32, and blocks of 128 tokens, its own
choice, would cache hardly any prefix of a short chain."""
CPU_BATCHED_TOKENS = 8192
_PARAMETERS = frozenset(SamplingParams.__struct_fields__)

REFUSALS: tuple[type[Exception], ...] = (ValueError, getattr(exceptions, "VLLMClientError", ValueError))
"""The errors of `AsyncLLM` that say that a request is flawed: it would be refused again. Earlier versions raise `ValueError` alone."""
DEAD = EngineDeadError
"""What `AsyncLLM` raises once its engine is gone. Whatever else it raises concerns one request, which may be sent again."""


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
        slots = len(spec.adapters) + on_cpu
        chosen |= {"enable_lora": True, "max_loras": slots}
    # A whole prompt is computed in one iteration there.
    defaults = CPU_DEFAULTS | {"max_num_batched_tokens": max(CPU_BATCHED_TOKENS, spec.args.get("max_model_len") or 0)} if on_cpu else {}
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
    params = SamplingParams(**terms | _options(request.option_ids, speculates))
    if not request.temperature:
        return [params]
    found = [copy(params) for _ in range(request.n)]
    for index, each in enumerate(found):
        each.seed = request.seed + index
    return found


def _options(ids: Sequence[int], speculates: bool) -> dict[str, Any]:
    """Parameters for a choice among `ids`: their log probabilities by id where vLLM can; under speculation that kills vLLM 0.32 (a
    shape mismatch in `RejectionSampler`), so the most likely `MAX_LOGPROBS` are asked for then."""
    if not ids:
        return {}
    terms: dict[str, Any] = {"allowed_token_ids": list(ids)}
    if "logprob_token_ids" in _PARAMETERS and not speculates:
        return terms | {"logprob_token_ids": list(ids), "logprobs": len(ids)}
    return terms | {"logprobs": MAX_LOGPROBS}


def lora_requests(spec: VllmSpec) -> dict[str, LoRARequest]:
    """vLLM's words for each of the adapters, by its name."""
    return {name: LoRARequest(name, number, str(adapter_folder(path))) for number, (name, path) in enumerate(spec.adapters.items(), 1)}


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or of that of its cause where it has none; of a configuration each field with its flaw."""
    if isinstance(error, ValidationError):
        return "; ".join(": ".join([*map(str, flaw["loc"]), flaw["msg"]]) for flaw in error.errors())
    text = str(error).strip() or str(error.__cause__ or "").strip()
    return text.splitlines()[0] if text else type(error).__name__


def completion(request: Request, outputs: Sequence[Any], decode: Callable[[Sequence[int]], str], eos: frozenset[int]) -> Completion:
    """The completion of `request` that vLLM's final `RequestOutput` of each candidate holds; `eos` are the end-of-sequence ids.

    Raises an error for what is no answer. The candidate that had the least of the prompt in the cache says what was there before them.
    """
    read = len(outputs[0].prompt_token_ids)
    sampled = [each.outputs[0] for each in outputs]
    usage = Usage(
        input_tokens=read,
        cached_input_tokens=min(read, *(each.num_cached_tokens or 0 for each in outputs)),
        output_tokens=sum(len(one.token_ids) for one in sampled),
    )
    times = timing([each.metrics for each in outputs])
    candidates = [candidate(request, one, decode, eos) for one in sampled]
    if len(candidates) < request.n:  # greedy: all are the same
        candidates *= request.n
    known = sampled[0].logprobs[0] if request.option_ids else {}
    options = tuple(known[token].logprob if token in known else float("-inf") for token in request.option_ids)
    return Completion(candidates=tuple(candidates), option_logprobs=options, usage=usage, timing=times)


_FINISH: dict[str | None, FinishReason] = {"stop": "stop", "length": "length"}
"""vLLM has others, such as `abort`, `error` and `repetition`, with which a model does not end its turn."""


def candidate(request: Request, output: Any, decode: Callable[[Sequence[int]], str], eos: frozenset[int]) -> Candidate:
    """The candidate that a `CompletionOutput` holds: cut after its stop, without an end-of-sequence id that is no stop id.

    Raises `ValueError` where the model did not write it to its end.
    """
    if (finish := _FINISH.get(output.finish_reason)) is None:
        raise ValueError(f"vLLM ended it with finish reason {output.finish_reason!r}")
    ids, stop = list(output.token_ids), output.stop_reason
    sampled = len(ids)
    if isinstance(stop, str):
        sampled = count_through_stop(ids, stop, decode)
        del ids[sampled:]
    elif finish == "stop":
        stop = ids[-1] if ids and ids[-1] in request.stop_ids else None
        if stop is None and ids and (ids[-1] in eos or output.stop_reason is not None):
            del ids[-1:]
    # vLLM names the sampled token beside the likeliest ones.
    places = output.logprobs[:sampled] if request.logprobs else []
    logprobs = [place[token].logprob for place, token in zip(places, output.token_ids, strict=False)]
    likeliest = [sorted((each.logprob for each in place.values()), reverse=True)[:LIKELIEST] for place in places]
    cut = request.logprobs and sampled < len(output.token_ids)
    return Candidate(
        ids=tuple(ids),
        text=decode(ids),
        cumulative_logprob=sum(logprobs) if cut else output.cumulative_logprob,
        finish_reason=finish,
        stop_reason=stop,
        confidence=confidence_of(logprobs, likeliest) if request.logprobs else None,
    )


def timing(stamps: Sequence[Any]) -> Timing:
    """Durations from vLLM's own monotonic time stamps of each candidate, from the first to the last of them; all None where they are
    missing."""
    known = [each for each in stamps if each is not None and each.queued_ts and each.scheduled_ts and each.first_token_ts]
    if not known:
        return Timing()
    queued, scheduled, first = (min(getattr(each, name) for each in known) for name in ("queued_ts", "scheduled_ts", "first_token_ts"))
    return Timing(
        queue_time_s=max(0.0, scheduled - queued),
        prefill_time_s=max(0.0, first - scheduled),
        decode_time_s=max(0.0, max(each.last_token_ts for each in known) - first),
        time_to_first_token_s=max(0.0, first - queued),
    )
