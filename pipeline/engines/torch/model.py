"""Loads a model: a `Setup` enters, a `BatchRunner` with the model on its device leaves, or a `PipelineError` says why there is none."""

import os
import warnings
from collections.abc import Mapping
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import AttentionInterface

from pipeline.engine import Fact
from pipeline.engines.models import adapter_folder, load_tokenizer
from pipeline.engines.process.wire import Setup
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.torch.cache import AttentionShape, BatchLayout, KVCache, PrefillChunk, SlotTable
from pipeline.engines.torch.runner import BatchRunner, LoadedModel
from pipeline.engines.torch.spec import TorchSpec
from pipeline.errors import UsageError, reason, require

_FIRST_CAPACITY = 256
"""Tokens that a slot holds at first; the size is doubled whenever the longest sequence needs more."""
_ATTENTION = "pipeline"
_SMALL_PARAMETERS = 20_000_000
"""Below this number of parameters a CPU has the weights in its caches, and float32 is faster there and rounds less."""
_ANEW = "copy or download it again, or use another model"


def load_model(setup: Setup) -> BatchRunner:
    """Load the model that `setup` names; raises `PipelineError` when that is impossible here."""
    spec = setup.spec_as(TorchSpec)
    device = spec.device if spec.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        if setup.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, setup.cores)
        torch.set_num_threads(spec.threads)
    elif not torch.cuda.is_available():
        raise UsageError(f"device {spec.device!r} is set, but torch finds no CUDA device")
    try:
        tokenizer = load_tokenizer(setup.model, spec)
        module = _module(setup.model, spec, device)
        with torch.inference_mode():
            return _runner(module, tokenizer, setup, spec)
    except AttributeError as error:
        raise UsageError(f"it does not look like a decoder with ordinary attention ({reason(error)})") from error
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, UnpicklingError) as error:
        raise UsageError(reason(error)) from error


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
        loaded: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, output_loading_info=True, **options)
        model, report = loaded
        if absent := report["missing_keys"]:
            raise UsageError(f"{len(absent):,} of the model's tensors are not in its files, such as {min(absent)}; {_ANEW}")
    if device == "cpu" and spec.dtype == "auto" and (model.num_parameters() < _SMALL_PARAMETERS or not cpu_has_bfloat16()):
        model = model.float()
    return model.to(device).eval()


def cpu_has_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16; without any, a product of matrices takes 40 times as long as in float32."""
    found = torch.cpu.get_capabilities()
    return any(found.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _runner(module: Any, tokenizer: HFTokenizer, setup: Setup, spec: TorchSpec) -> BatchRunner:
    config = module.config.get_text_config()
    longest = int(config.max_position_embeddings)
    if spec.max_model_len is not None and spec.max_model_len > longest:
        raise UsageError(f"max_model_len is {spec.max_model_len}, but the model supports {longest}")
    max_model_len, slots = spec.max_model_len or longest, 2 * spec.max_num_seqs
    capacity = min(_FIRST_CAPACITY, max_model_len)
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    shape = AttentionShape(config.num_hidden_layers, heads, getattr(config, "num_key_value_heads", None) or heads, head_dim)
    cache = KVCache(shape, slots, capacity, module.dtype, str(module.device))
    AttentionInterface.register(_ATTENTION, cache.attend)
    adapters = Adapters(module, spec.adapters)
    for adapter in (*spec.adapters, None):
        adapters.use(adapter)
        _warm_up(module, cache)
    eos = getattr(module.generation_config, "eos_token_id", None)
    model = LoadedModel(
        module=module,
        decode=tokenizer.decode,
        eos_ids=tokenizer.eos_ids | frozenset(() if eos is None else [eos] if isinstance(eos, int) else eos),
        max_model_len=max_model_len,
        vocab_size=int(module.get_input_embeddings().num_embeddings),
        facts=_facts(module, setup, spec) | {"kv_cache_tokens": slots * max_model_len, "kv_cache_sequences": slots},
        use_adapter=adapters.use,
    )
    return BatchRunner(model, cache, SlotTable(slots, capacity), spec)


def _facts(module: Any, setup: Setup, spec: TorchSpec) -> dict[str, Fact]:
    """Also torch's name of the device and the type of the weights."""
    device: torch.device = module.device
    facts: dict[str, Fact] = {"answers": "model", "device": str(device), "dtype": str(module.dtype).removeprefix("torch.")}
    if device.type == "cpu":
        return facts | setup.core_facts(spec.threads)
    index = device.index or 0
    return facts | {"devices": (f"GPU {index}",), "device_model": torch.cuda.get_device_name(index), "accelerators": 1}


def _warm_up(module: Any, cache: KVCache) -> None:
    """Compute two tokens, so that a model whose attention is not supported fails now; `SlotTable` does not list them as cached."""
    positions = np.arange(2)
    cache.begin(BatchLayout(np.zeros(2, dtype=np.int64), positions, 0, [PrefillChunk(0, 0, 2, 0)]))
    at = torch.from_numpy(positions).to(module.device)[None]
    module(input_ids=at, position_ids=at, past_key_values=cache, use_cache=True)


class Adapters:
    """The LoRA adapters of a model, through PEFT; at most one is in use. Without any, PEFT is not even imported."""

    def __init__(self, module: Any, paths: Mapping[str, str]) -> None:
        """Attach the adapters at `paths`, folders or `bundled:NAME`, to the layers of `module`; raises `UsageError` if one is damaged."""
        self._names = {name: f"adapter{number}" for number, name in enumerate(paths)}
        """PEFT's names for them, which must not have dots."""
        self._used: str | None = None
        wrapped: Any = None
        for name, path in paths.items():
            wrapped = _attached(wrapped or module, self._names[name], str(adapter_folder(path)))
        self._layers: list[Any] = []
        if paths:
            from peft.tuners.tuners_utils import BaseTunerLayer

            self._layers = [layer for layer in module.modules() if isinstance(layer, BaseTunerLayer)]
            module.eval().requires_grad_(False)
        for layer in self._layers:
            layer.enable_adapters(False)

    def use(self, name: str | None) -> None:
        """Compute with the adapter `name` from now on; None: with the model as it is."""
        if name == self._used:
            return
        for layer in self._layers:
            layer.enable_adapters(name is not None)
            if name is not None:
                layer.set_adapter(self._names[name], inference_mode=True)
        self._used = name


def _attached(model: Any, name: str, path: str) -> Any:
    """PEFT's wrapper of `model`, a plain or a wrapped one, with one more adapter; raises `UsageError`."""
    require("an adapter", "train", "peft")
    from peft import PeftConfig, PeftModel

    try:
        with warnings.catch_warnings(action="ignore"):  # of tied embeddings, which matter where an adapter is merged into its model
            if not isinstance(model, PeftModel):
                model = PeftModel(model, PeftConfig.from_pretrained(path), adapter_name=name, autocast_adapter_dtype=False)
            absent = model.load_adapter(path, name, torch_device=str(model.device), autocast_adapter_dtype=False).missing_keys
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        raise UsageError(f"the adapter in {path} does not fit: {' '.join(str(error).split()[:60])}") from error
    if absent:
        raise UsageError(f"{len(absent):,} matrices of the adapter in {path} are not in its file, such as {min(absent)}; {_ANEW}")
    return model
