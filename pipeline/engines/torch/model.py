"""Loads a model: a `Setup` enters, a `BatchRunner` with the model on its device leaves, or `UsageError` says why there is none."""

import os
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import AttentionInterface

from pipeline.engine import Fact
from pipeline.engines.cores import core_facts
from pipeline.engines.model_card import ANEW
from pipeline.engines.models import load_tokenizer
from pipeline.engines.process.wire import Setup
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.torch.adapters import Adapters
from pipeline.engines.torch.cache import AttentionShape, BatchLayout, KVCache, PrefillChunk
from pipeline.engines.torch.runner import BatchRunner, LoadedModel
from pipeline.engines.torch.slots import SlotTable
from pipeline.engines.torch.spec import TorchSpec, float32_on_cpu
from pipeline.engines.torch.tensors import flaw_in_conversion, flaw_in_loading, flaw_in_pickle
from pipeline.errors import UsageError

_FIRST_CAPACITY = 256
"""Tokens that a slot holds at first; the size is doubled whenever the longest sequence needs more."""
_ATTENTION = "pipeline"


def load_model(setup: Setup) -> BatchRunner:
    """Load the model that `setup` names; raises `UsageError` when that is impossible here."""
    spec = setup.spec_as(TorchSpec)
    device = _device(spec)
    if device == "cpu":
        if setup.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, setup.cores)
        torch.set_num_threads(spec.threads)
    try:
        tokenizer = load_tokenizer(setup.model, spec)
        module = _module(setup.model, spec, device)
        with torch.inference_mode():
            runner = _runner(module, tokenizer, setup, spec)
    except AttributeError as error:
        raise UsageError(f"it does not look like a decoder with ordinary attention ({_first_line(error)})") from error
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise UsageError(_first_line(error)) from error
    return runner


def _device(spec: TorchSpec) -> str:
    if spec.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if spec.device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"device {spec.device!r} is set, but torch finds no CUDA device")
    return spec.device


def _module(name: str, spec: TorchSpec, device: str) -> Any:
    options = {"trust_remote_code": spec.trust_remote_code, "attn_implementation": _ATTENTION}
    dtype = "auto" if spec.dtype == "auto" else getattr(torch, spec.dtype)
    # Loading only checks that an attention function of this name is registered; `_runner` registers the real one.
    AttentionInterface.register(_ATTENTION, KVCache.attend)
    if spec.load_format == "dummy":
        config = AutoConfig.from_pretrained(name, trust_remote_code=spec.trust_remote_code)
        dtype = (config.dtype or torch.float32) if dtype == "auto" else dtype
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, **options)
    else:
        model = _whole(name, dtype=dtype, **options)
    if device == "cpu" and spec.dtype == "auto" and float32_on_cpu(model.num_parameters()):
        model = model.float()
    return model.to(device).eval()


def _whole(name: str, **options: Any) -> Any:
    """The model with every one of its weights from its files; raises `UsageError` where transformers would make some up."""
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(name, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    except (RuntimeError, UnpicklingError) as error:
        flaw = flaw_in_pickle(error) or flaw_in_conversion(error)
        raise UsageError(f"{flaw}; {ANEW}" if flaw else _first_line(error)) from error
    model, report = loaded
    if (flaw := flaw_in_loading(report, model)) is not None:
        raise UsageError(f"{flaw}; {ANEW}")
    return model


def _runner(module: Any, tokenizer: HFTokenizer, setup: Setup, spec: TorchSpec) -> BatchRunner:
    config = module.config.get_text_config()
    longest = int(config.max_position_embeddings)
    if longest < 1:
        raise UsageError(f"its config.json says max_position_embeddings: {longest}, which is not a number of tokens")
    if spec.max_model_len is not None and spec.max_model_len > longest:
        raise UsageError(f"max_model_len is {spec.max_model_len}, but the model supports {longest}")
    max_model_len, slots = spec.max_model_len or longest, spec.kv_cache_slots or 2 * spec.max_num_seqs
    capacity = min(_FIRST_CAPACITY, max_model_len)
    cache = KVCache(_attention(config), slots, capacity, module.dtype, str(module.device))
    AttentionInterface.register(_ATTENTION, cache.attend)
    vocab_size = int(module.get_input_embeddings().num_embeddings)
    adapters = Adapters(module, spec.adapters)
    for adapter in (*spec.adapters, None):
        adapters.use(adapter)
        _warm_up(module, cache)
    model = LoadedModel(
        module=module,
        decode=tokenizer.decode,
        eos_ids=tokenizer.eos_ids | _generation_eos(module),
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        facts=_facts(module, setup, spec) | {"kv_cache_tokens": slots * max_model_len, "kv_cache_sequences": slots},
        adapters=adapters,
    )
    return BatchRunner(model, cache, SlotTable(slots, capacity), spec)


def _attention(config: Any) -> AttentionShape:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return AttentionShape(config.num_hidden_layers, config.num_attention_heads, heads, head_dim)


def _facts(module: Any, setup: Setup, spec: TorchSpec) -> dict[str, Fact]:
    """Also torch's name of the device and the type of the weights."""
    device: torch.device = module.device
    facts: dict[str, Fact] = {"answers": "model", "device": str(device), "dtype": str(module.dtype).removeprefix("torch.")}
    if device.type == "cpu":
        return facts | core_facts(setup.role, setup.cores, spec.threads)
    index = device.index or 0
    return facts | {"devices": (f"GPU {index}",), "device_model": torch.cuda.get_device_name(index), "accelerators": 1}


def _warm_up(module: Any, cache: KVCache) -> None:
    """Compute two tokens, so that a model whose attention is not supported fails now; `SlotTable` does not list them as cached."""
    positions = np.arange(2)
    cache.begin(BatchLayout(np.zeros(2, dtype=np.int64), positions, 0, [PrefillChunk(0, 0, 2, 0)]))
    at = torch.from_numpy(positions).to(module.device)[None]
    module(input_ids=at, position_ids=at, past_key_values=cache, use_cache=True)


def _generation_eos(module: Any) -> frozenset[int]:
    eos = getattr(module.generation_config, "eos_token_id", None)
    return frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
