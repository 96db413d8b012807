"""Finds the model that a spec names: a folder, a name on the hub, or one that comes with this package."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from pipeline.engine import Tokenizer
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, boundary, did_you_mean

_BUNDLED = "bundled:"


def tokenizer_of(role: str, spec: Any) -> Tokenizer:
    """The tokenizer of the model that the `spec` of an engine names; raises `GraphError`."""
    with boundary(GraphError, f"engine {role!r}", foreign=GraphError):
        return HFTokenizer(resolve(role, spec.model), trust_remote_code=spec.trust_remote_code)


def resolve(role: str, model: str) -> str:
    """`model` as a folder or a hub name; raises `GraphError` for a `bundled:NAME` that does not exist."""
    if not model.startswith(_BUNDLED):
        return model
    name = model.removeprefix(_BUNDLED)
    folder = Path(str(files("pipeline"))) / "models"
    known = sorted(path.parent.name for path in folder.glob("*/config.json"))
    if name not in known:
        raise GraphError(f"engine {role!r}", f"no bundled model is named {name!r}; {did_you_mean(name, known)}")
    return str(folder / name)
