"""LoRA adapters on a loaded model, through PEFT: a forward pass uses one of them, or none."""

import warnings
from collections.abc import Mapping
from typing import Any

from pipeline.engines.model_card import ANEW, listed
from pipeline.engines.models import adapter_folder
from pipeline.errors import UsageError


class Adapters:
    """The adapters of a model, of which at most one is in use; without any, PEFT is not even imported."""

    def __init__(self, module: Any, paths: Mapping[str, str]) -> None:
        """Attach the adapters at `paths`, folders or `bundled:NAME`, to the layers of `module`; raises `UsageError` if one is damaged."""
        self._names = {name: f"adapter{number}" for number, name in enumerate(paths)}
        """The names that PEFT has for them: its own names must not have dots."""
        self._layers: list[Any] = []
        self._used: str | None = None
        if paths:
            self._layers = _beside(module, {self._names[name]: str(adapter_folder(path)) for name, path in paths.items()})

    def use(self, name: str | None) -> None:
        """Compute with the adapter `name` from now on; None: with the model as it is."""
        if name == self._used:
            return
        for layer in self._layers:
            if name is None:
                layer.enable_adapters(False)
            else:
                layer.enable_adapters(True)
                layer.set_adapter(self._names[name], inference_mode=True)
        self._used = name


def _beside(module: Any, paths: Mapping[str, str]) -> list[Any]:
    """Attach adapters to the layers of `module`, inactive for now; returns the layers that have one."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    wrapped: Any = None
    for name, path in paths.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of tied embeddings, which matter where an adapter is merged into its model
                wrapped, absent = _loaded(module, wrapped, name, path)
        except (ValueError, RuntimeError, KeyError, TypeError) as error:
            raise UsageError(f"the adapter in {path} does not fit: {' '.join(str(error).split()[:60])}") from error
        if absent:
            raise UsageError(f"{len(absent):,} matrices of the adapter in {path} are not in its file: {listed(sorted(absent))}; {ANEW}")
    layers = [layer for layer in module.modules() if isinstance(layer, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    module.eval().requires_grad_(False)
    return layers


def _loaded(module: Any, wrapped: Any, name: str, path: str) -> tuple[Any, list[str]]:
    """PEFT's wrapper of `module`, `wrapped` or a new one, with one more adapter; and the names of matrices that are not in its file."""
    from peft import PeftConfig, PeftModel

    wrapped = wrapped or PeftModel(module, PeftConfig.from_pretrained(path), adapter_name=name, autocast_adapter_dtype=False)
    report = wrapped.load_adapter(path, name, torch_device=str(module.device), autocast_adapter_dtype=False)
    return wrapped, report.missing_keys
