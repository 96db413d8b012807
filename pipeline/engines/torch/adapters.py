"""LoRA adapters beside a loaded model, by PEFT: one of them, or none, takes part in a forward pass."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.engines.checkpoint import ANEW, listed
from pipeline.engines.process.worker import CannotLoad


class Adapters:
    """The adapters of a model, of which at most one is in use; without any, PEFT is not even imported."""

    def __init__(self, module: Any, paths: Mapping[str, str]) -> None:
        """Put the adapters in the folders `paths` beside the layers of `module`; raises `CannotLoad` where one is not whole."""
        self._names = {name: f"adapter{number}" for number, name in enumerate(paths)}
        """What PEFT calls them: its own names must not have dots."""
        self._layers: list[Any] = []
        self._used: str | None = None
        if paths:
            self._layers = _beside(module, {self._names[name]: str(Path(path).expanduser()) for name, path in paths.items()})

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
    """Put adapters beside the layers of `module`, which computes as before for now; returns the layers that have one."""
    from peft import PeftConfig, PeftModel
    from peft.tuners.tuners_utils import BaseTunerLayer

    first, path = next(iter(paths.items()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tied embeddings, which matter where an adapter is merged into its model
        wrapped = PeftModel(module, PeftConfig.from_pretrained(path), adapter_name=first, autocast_adapter_dtype=False)
        loaded = {
            path: wrapped.load_adapter(path, name, torch_device=str(module.device), autocast_adapter_dtype=False)
            for name, path in paths.items()
        }
    for path, report in loaded.items():
        if absent := report.missing_keys:
            what = f"{len(absent):,} matrices of the adapter in {path} are not in its file: {listed(sorted(absent))}"
            raise CannotLoad(f"{what}; {ANEW}")
    layers = [layer for layer in module.modules() if isinstance(layer, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    module.to(module.device).eval().requires_grad_(False)
    return layers
