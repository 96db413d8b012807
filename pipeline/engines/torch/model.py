"""Loading: a transformers model on its device, with the KV cache and the loop over it, or one clause on why not."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import AttentionInterface

from pipeline.engine import Fact
from pipeline.engines.cores import core_facts
from pipeline.engines.process.wire import Setup
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.torch.cache import Batch, KVCache, Shape, Stretch
from pipeline.engines.torch.loop import Loop
from pipeline.engines.torch.slots import Slots
from pipeline.engines.torch.spec import TorchSpec
from pipeline.errors import PipelineError

_FIRST_CAPACITY = 256
"""Tokens a slot holds at first; it grows by doubling to what the longest sequence needs."""
_SMALL_PARAMETERS = 20_000_000
"""Below this a CPU has the weights in its caches, and float32 is faster and rounds less."""
_ATTENTION = "pipeline"


class CannotLoad(Exception):
    """The model cannot be served, for the reason given."""


class Loaded(NamedTuple):
    """A model that is ready to serve."""

    loop: Loop
    decode: Callable[[Sequence[int]], str]
    eos: frozenset[int]
    vocab_size: int
    facts: dict[str, Fact]


def load(setup: Setup) -> Loaded:
    """Load what `setup` names; raises `CannotLoad` when that is impossible here."""
    spec = setup.spec
    assert isinstance(spec, TorchSpec)
    device = _device(spec)
    if device == "cpu":
        if setup.cores:
            os.sched_setaffinity(0, setup.cores)
        torch.set_num_threads(spec.threads)
    try:
        tokenizer = HFTokenizer(setup.model, trust_remote_code=spec.trust_remote_code)
        model = _model(setup.model, spec, device)
        with torch.inference_mode():
            loop = _loop(model, spec, device)
    except PipelineError as error:
        raise CannotLoad(str(error)) from error
    except AttributeError as error:
        raise CannotLoad(f"it does not look like a decoder with ordinary attention ({_first_line(error)})") from error
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise CannotLoad(_first_line(error)) from error
    vocab_size = int(model.get_input_embeddings().num_embeddings)
    eos = tokenizer.eos_ids | _generation_eos(model)
    return Loaded(loop, tokenizer.decode, eos, vocab_size, _facts(setup, loop, device))


def _facts(setup: Setup, loop: Loop, device: str) -> dict[str, Fact]:
    """See `Engine.facts`; also torch's name of the device and the type of the weights."""
    facts: dict[str, Fact] = {"answers": "model", "device": device, "dtype": str(loop.model.dtype).removeprefix("torch.")}
    facts["kv_cache_tokens"] = len(loop.slots.length) * loop.max_model_len
    if device == "cpu":
        return facts | core_facts(setup.role, setup.cores, setup.spec.threads)
    index = torch.device(device).index or 0
    return facts | {"devices": (f"GPU {index}",), "device_model": torch.cuda.get_device_name(index), "accelerators": 1}


def _device(spec: TorchSpec) -> str:
    if spec.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if spec.device.startswith("cuda") and not torch.cuda.is_available():
        raise CannotLoad(f"device {spec.device!r} is asked for, but torch finds no CUDA here")
    return spec.device


def _model(name: str, spec: TorchSpec, device: str) -> Any:
    options = {"trust_remote_code": spec.trust_remote_code, "attn_implementation": _ATTENTION}
    dtype = "auto" if spec.dtype == "auto" else getattr(torch, spec.dtype)
    # Until the cache exists, only its name must be known.
    AttentionInterface.register(_ATTENTION, KVCache.attend)
    if spec.load_format == "dummy":
        config = AutoConfig.from_pretrained(name, trust_remote_code=spec.trust_remote_code)
        dtype = (config.dtype or torch.float32) if dtype == "auto" else dtype
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, **options)  # type: ignore[no-untyped-call]
    else:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **options)
    if device == "cpu" and spec.dtype == "auto" and model.num_parameters() < _SMALL_PARAMETERS:
        model = model.float()
    return model.to(device).eval()


def _loop(model: Any, spec: TorchSpec, device: str) -> Loop:
    config = model.config.get_text_config()
    longest = int(config.max_position_embeddings)
    if spec.max_model_len is not None and spec.max_model_len > longest:
        raise CannotLoad(f"max_model_len is {spec.max_model_len}, but the model was made for {longest} tokens")
    max_model_len = spec.max_model_len or longest
    capacity = min(_FIRST_CAPACITY, max_model_len)
    slots = spec.kv_cache_slots or 2 * spec.max_num_seqs
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    shape = Shape(config.num_hidden_layers, config.num_attention_heads, heads, head_dim)
    cache = KVCache(shape, slots, capacity, model.dtype, device)
    AttentionInterface.register(_ATTENTION, cache.attend)
    _warm_up(model, cache, device)
    book = Slots(slots, capacity)
    return Loop(model, cache, book, spec, max_model_len)


def _warm_up(model: Any, cache: KVCache, device: str) -> None:
    """Compute two tokens, so that a model whose attention is not supported fails now; nothing remembers them."""
    positions = np.arange(2)
    cache.begin(Batch(np.zeros(2, dtype=np.int64), positions, 0, [Stretch(0, 0, 2, 0)]))
    at = torch.from_numpy(positions).to(device)[None]
    model(input_ids=at, position_ids=at, past_key_values=cache, use_cache=True)


def _generation_eos(model: Any) -> frozenset[int]:
    eos = getattr(model.generation_config, "eos_token_id", None)
    return frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
