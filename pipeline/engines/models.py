"""Finds the model or the adapter that a spec names: a folder, one that comes with this package or, of models, a name on the hub."""

from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pipeline.engine import Tokenizer
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, boundary, did_you_mean
from pipeline.graph.bundled import BUNDLED

_FOLDER = Path(str(files("pipeline"))) / "models"
_CONFIGS = {"model": "config.json", "adapter": "adapter_config.json"}
"""The file that a bundled folder of each kind has."""


def tokenizer_of(role: str, spec: Any) -> Tokenizer:
    """The tokenizer of the model that the `spec` of an engine names; raises `GraphError`."""
    with boundary(GraphError, f"engine {role!r}", foreign=GraphError):
        return load_tokenizer(resolve(role, spec.model), spec)


def load_tokenizer(model: str, spec: Any) -> HFTokenizer:
    """The tokenizer of `model`, a folder or a hub name, as the `spec` of an engine has it; raises `GraphError`."""
    return HFTokenizer(model, trust_remote_code=spec.trust_remote_code, template_arguments=spec.chat_template_kwargs)


def resolve(role: str, model: str) -> str:
    """`model` as a folder or a hub name; raises `GraphError` for a `bundled:NAME` that does not exist."""
    with boundary(GraphError, f"engine {role!r}", foreign=LookupError):
        folder = _bundled("model", model)
    return model if folder is None else str(folder)


def adapter_folder(adapter: str) -> Path:
    """The folder that `adapter` means, whether there is one or not; raises `LookupError`, whose text is a clause, for a `bundled:NAME`
    that does not exist."""
    return _bundled("adapter", adapter) or Path(adapter).expanduser()


def bundled_name(model: str) -> str | None:
    """The `bundled:NAME` of a model that is named so, or by the folder in which it comes with the package; None for any other."""
    if model.startswith(BUNDLED):
        return model
    return f"{BUNDLED}{Path(model).name}" if Path(model).parent == _FOLDER else None


def _bundled(kind: Literal["model", "adapter"], named: str) -> Path | None:
    """The folder of a `bundled:NAME`, None for any other name; raises `LookupError`."""
    if not named.startswith(BUNDLED):
        return None
    name = named.removeprefix(BUNDLED)
    folders = {path.parent.name: path.parent for path in _FOLDER.glob(f"*/{_CONFIGS[kind]}")}
    if name not in folders:
        raise LookupError(f"no bundled {kind} is named {name!r} ({did_you_mean(name, folders)})")
    return folders[name]
