"""Finds the model that a spec names: a folder, a name on the hub, or one that comes with this package."""

from importlib.resources import files
from pathlib import Path

from pipeline.errors import GraphError, did_you_mean

_BUNDLED = "bundled:"


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
