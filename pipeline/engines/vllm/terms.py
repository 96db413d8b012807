"""Translates between the engine contract and vLLM: a spec into engine arguments, a request into sampling parameters, an output
into a completion. Pure; what only some versions of vLLM have is looked up in the installed one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineGenerateError
from vllm.v1.metrics.loggers import StatLoggerBase

from pipeline.engine import Candidate, Completion, FinishReason, Request, Timing, Usage
from pipeline.engines.adapters import read_adapter
from pipeline.engines.models import adapter_folder
from pipeline.engines.tokenizer import count_through_stop
from pipeline.engines.vllm.memory_plan import DEFAULT_CPU_CACHE_GIB, lora_rank, lora_slots, share_of
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.machine import GIB

MAX_LOGPROBS = 64
"""Most log probabilities that vLLM may be asked for at a token; more than a choice has options."""

_CPU_BLOCK_TOKENS = 32
"""The least that vLLM's CPU attention takes; its own choice of 128 would cache hardly any prefix of a short chain."""


def _client_errors() -> tuple[type[Exception], ...]:
    """The errors that later versions of vLLM raise for a flawed request; earlier ones raise `ValueError`."""
    from vllm import exceptions

    return (exceptions.VLLMClientError,) if hasattr(exceptions, "VLLMClientError") else ()


_PARAMETERS = frozenset(SamplingParams.__struct_fields__)

REFUSALS: tuple[type[Exception], ...] = (ValueError, EngineGenerateError, *_client_errors())
"""The errors that `AsyncLLM` raises for a single request and that leave it able to serve others."""

Decode = Callable[[Sequence[int]], str]


def arguments(role: str, spec: VllmSpec, model: str, *, on_cpu: bool) -> dict[str, Any]:
    """The arguments of vLLM's `AsyncEngineArgs` for a spec whose model is at `model`; what the spec leaves open is vLLM's choice."""
    chosen: dict[str, Any] = {
        "model": model,
        "served_model_name": role,
        "dtype": spec.dtype,
        "quantization": spec.quantization,
        "load_format": spec.load_format,
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.max_num_seqs,
        "max_num_batched_tokens": spec.max_num_batched_tokens,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "gpu_memory_utilization": None if on_cpu else share_of(spec),
        "kv_cache_memory_bytes": _cache_bytes(spec, on_cpu),
        "kv_cache_dtype": spec.kv_cache_dtype,
        "enable_prefix_caching": spec.enable_prefix_caching,
        "enable_chunked_prefill": spec.enable_chunked_prefill,
        "enforce_eager": on_cpu if spec.enforce_eager is None else spec.enforce_eager,
        "enable_lora": True if spec.adapter_paths else None,
        "max_loras": lora_slots(spec, cpu=on_cpu) or None,
        "max_lora_rank": lora_rank([read_adapter(path) for path in spec.adapter_paths]),
        "speculative_config": spec.speculative_config.terms() if spec.speculative_config else None,
        "trust_remote_code": spec.trust_remote_code,
        "scheduling_policy": "priority",
        "max_logprobs": MAX_LOGPROBS,
    }
    if on_cpu:
        chosen |= _on_cpu(spec)
    return {name: value for name, value in chosen.items() if value is not None}


def _on_cpu(spec: VllmSpec) -> dict[str, Any]:
    """Arguments for the CPU alone: vLLM 0.32's CPU build dies of a seeded request whose prefill is split, so it is not split by
    default, and an iteration must hold a whole prompt."""
    split = bool(spec.enable_chunked_prefill)
    most = spec.max_num_batched_tokens or max(8192, spec.max_model_len or 0)
    return {"enable_chunked_prefill": split, "max_num_batched_tokens": most, "block_size": _CPU_BLOCK_TOKENS}


def _cache_bytes(spec: VllmSpec, on_cpu: bool) -> int | None:
    gib = spec.kv_cache_gib or (DEFAULT_CPU_CACHE_GIB if on_cpu else None)
    return None if gib is None else round(gib * GIB)


def sampling_params(request: Request, max_model_len: int, *, speculates: bool) -> SamplingParams:
    """The sampling parameters of `request`, with nothing left to the model's own defaults."""
    terms: dict[str, Any] = {
        "n": 1 if request.temperature == 0 else request.n,
        "max_tokens": min(request.max_tokens, max_model_len - len(request.prompt_ids)),
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "min_p": request.min_p,
        "seed": request.seed if request.temperature else None,
        "stop": list(request.stop),
        "stop_token_ids": list(request.stop_ids),
        "detokenize": bool(request.stop),
        "logprobs": 0 if request.logprobs else None,
        "output_kind": RequestOutputKind.FINAL_ONLY,
    }
    return SamplingParams(**terms | _options(request.option_ids, speculates) | _scoring(request))


def _options(ids: Sequence[int], speculates: bool) -> dict[str, Any]:
    """Parameters for a choice among `ids`: their log probabilities by id where vLLM can; under speculation that kills vLLM 0.32 (a
    shape mismatch in `RejectionSampler`), so the most likely `MAX_LOGPROBS` are asked for then."""
    if not ids:
        return {}
    terms: dict[str, Any] = {"allowed_token_ids": list(ids)}
    if "logprob_token_ids" in _PARAMETERS and not speculates:
        return terms | {"logprob_token_ids": list(ids), "logprobs": len(ids)}
    return terms | {"logprobs": MAX_LOGPROBS}


def _scoring(request: Request) -> dict[str, Any]:
    if not request.scored_ids:
        return {}
    terms: dict[str, Any] = {"max_tokens": 1, "prompt_logprobs": 0, "n": 1}
    return terms


def lora_requests(spec: VllmSpec) -> Mapping[str | None, LoRARequest]:
    """What vLLM is told of the adapter of a request, by its name; None: that of requests which name none, if they have one."""
    numbers = {path: number for number, path in enumerate(spec.adapter_paths, 1)}
    requests = {path: LoRARequest(f"adapter{number}", number, str(adapter_folder(path))) for path, number in numbers.items()}
    named: dict[str | None, LoRARequest] = {name: requests[path] for name, path in spec.adapters.items()}
    return named | ({None: requests[spec.lora_path]} if spec.lora_path else {})


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or of that of its cause where it has none."""
    text = str(error).strip() or str(error.__cause__ or "").strip()
    return text.splitlines()[0] if text else type(error).__name__


def stat_logger(gauges: Any) -> Any:
    """A class of vLLM's stat loggers that calls `gauges.record` after every iteration."""

    class StatLogger(StatLoggerBase):
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        record = gauges.record

        def log_engine_initialized(self) -> None:
            pass

    return StatLogger


def prompt_ids(request: Request) -> list[int]:
    """The prompt that vLLM gets: that of the request, followed by the tokens to score."""
    return [*request.prompt_ids, *request.scored_ids]


def completion(request: Request, output: Any, decode: Decode, eos: frozenset[int]) -> Completion:
    """The completion of `request` that vLLM's final `RequestOutput` holds; `eos` are the end-of-sequence ids."""
    outputs = sorted(output.outputs, key=lambda one: one.index)
    usage = Usage(
        input_tokens=len(output.prompt_token_ids),
        cached_input_tokens=min(output.num_cached_tokens or 0, len(output.prompt_token_ids)),
        output_tokens=0 if request.scored_ids else sum(len(one.token_ids) for one in outputs),
    )
    if request.scored_ids:
        scored = _scored(request, output)  # for log probabilities of a prompt vLLM computes all of it, whatever is cached
        return Completion(candidates=(), scored_logprobs=scored, usage=usage, timing=timing(output.metrics), cache_stated=False)
    candidates = [candidate(request, one, decode, eos) for one in outputs]
    if len(candidates) < request.n:  # greedy: all are the same
        candidates *= request.n
    options = _option_logprobs(request.option_ids, outputs[0])
    return Completion(candidates=tuple(candidates), option_logprobs=options, usage=usage, timing=timing(output.metrics))


_FINISH: dict[str, FinishReason] = {"length": "length", "abort": "interrupted"}


def candidate(request: Request, output: Any, decode: Decode, eos: frozenset[int]) -> Candidate:
    """The candidate that a `CompletionOutput` holds: cut after its stop, without an end-of-sequence id that is no stop id."""
    ids, stop = list(output.token_ids), output.stop_reason
    finish = _FINISH.get(output.finish_reason, "stop")
    sampled = len(ids)
    if isinstance(stop, str):
        sampled = count_through_stop(ids, stop, decode)
        del ids[sampled:]
    elif finish == "stop":
        stop = ids[-1] if ids and ids[-1] in request.stop_ids else None
        if stop is None and ids and (ids[-1] in eos or output.stop_reason is not None):
            del ids[-1:]
    logprob = output.cumulative_logprob
    if request.logprobs and sampled < len(output.token_ids):
        logprob = sum(place[token].logprob for place, token in zip(output.logprobs, ids, strict=False))
    return Candidate(ids=tuple(ids), text=decode(ids), cumulative_logprob=logprob, finish_reason=finish, stop_reason=stop)


def _option_logprobs(ids: Sequence[int], output: Any) -> tuple[float, ...]:
    if not ids:
        return ()
    known = output.logprobs[0]
    return tuple(known[token].logprob if token in known else float("-inf") for token in ids)


def _scored(request: Request, output: Any) -> tuple[float, ...]:
    places = output.prompt_logprobs[-len(request.scored_ids) :]
    return tuple(place[token].logprob for place, token in zip(places, request.scored_ids, strict=True))


def timing(stamps: Any) -> Timing:
    """Durations from vLLM's own monotonic time stamps; all None where one of them is missing."""
    if stamps is None or not (stamps.queued_ts and stamps.scheduled_ts and stamps.first_token_ts):
        return Timing()
    return Timing(
        queue_time_s=max(0.0, stamps.scheduled_ts - stamps.queued_ts),
        prefill_time_s=max(0.0, stamps.first_token_ts - stamps.scheduled_ts),
        decode_time_s=max(0.0, stamps.last_token_ts - stamps.first_token_ts),
        time_to_first_token_s=max(0.0, stamps.first_token_ts - stamps.queued_ts),
    )
