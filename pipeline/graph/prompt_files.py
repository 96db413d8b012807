"""Prompts files and the blocks `prompts` of a graph: the document of a graph and its engines enter, whole blocks are written into it.

What is wrong with a block is noted in the document, with the line and the path.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.bundled import BUNDLED, FileKind, find_file
from pipeline.errors import GraphError, UsageError
from pipeline.graph.document import Document
from pipeline.graph.prompts import Prompts, flaws
from pipeline.graph.spec import EngineSpec, StageSpec
from pipeline.graph.yaml_file import Keys

AUTO, OWN, PUBLISHED = "auto", "default", "published"
"""Prompts that the model that judges decides: the first prompts file where it is bundled, else the second."""


def choose_prompts(
    document: Document, stages: Sequence[Keys], kinds: Mapping[str, type[StageSpec]], engines: Mapping[str, EngineSpec | None], param: Keys
) -> None:
    """Where the prompts of a graph are `auto`, write in their place, and in that of their `param`, the file that suits the model that
    judges; `stages` are the paths of all stages."""
    if document.at(("prompts",)) != AUTO:
        return
    raw = [document.at(keys) for keys in stages]
    judges = {str(stage.get("engine")) for stage in raw if getattr(kinds.get(str(stage.get("kind"))), "judges", False)}
    named = [engine.tokenizer_name for role, engine in engines.items() if engine is not None and role in judges]
    chosen = OWN if all(name is None or name.startswith(BUNDLED) for name in named) else PUBLISHED
    document.values["prompts"] = chosen
    if document.at(param) == AUTO:
        document.at(param[:-1])[param[-1]] = chosen


def fill_prompts(document: Document, stages: Sequence[Keys], path: Path) -> Prompts | None:
    """Make the prompts of the graph at `path` whole, and those of each stage that has its own; those of the graph, None where they have a
    flaw."""
    _merge_prompts(document, ("prompts",), path, {})
    found = _prompts(document, ("prompts",))
    under = {} if found is None else document.at(("prompts",))
    for keys in stages:
        if document.at((*keys, "prompts")) is not None:
            _merge_prompts(document, (*keys, "prompts"), path, under)
    return found


def load_prompts(path: Path) -> Prompts:
    """The texts of a prompts file, alone; raises `GraphError`."""
    document = Document.read(path)
    found = _prompts(document, ())
    document.check()
    assert found is not None
    return found


def _prompts(document: Document, keys: Keys) -> Prompts | None:
    """The prompts at `keys`; None, and flaws, where something is wrong with them."""
    found = document.decode(keys, Prompts)
    return None if found is None or check_prompts(document, keys, found) else found


def check_prompts(document: Document, keys: Keys, prompts: Prompts) -> bool:
    """Note what is wrong with `prompts` beyond their types; True where something is."""
    found = list(flaws(prompts))
    for key, what in found:
        document.flaw((*keys, *key.split(".")), what)
    return bool(found)


def _merge_prompts(document: Document, keys: Keys, path: Path, under: Mapping[str, Any]) -> None:
    """Put what a block `prompts` leaves out into it: what the prompts file says that it is `like`, else what is in `under`."""
    said = document.at(keys)
    also = (AUTO,) if isinstance(said, str) and len(keys) == 1 else ()
    said = {} if said is None else {"like": said} if isinstance(said, str) else document.mapping(keys)
    try:
        if said and (name := said.pop("like", None)) is not None:
            like = Document.read(said_file(str(name), path, also=also))
            _prompts(like, ())
            like.check()
            under = like.values
    except UsageError as error:
        if isinstance(error, GraphError):
            document.add(error)
        else:
            document.flaw((*keys, "like"), str(error))
        said = None
    if said is None:
        document.close(keys)
    document.put(keys, {} if said is None else _merged(under, said))


def said_file(name: str, graph: Path, kind: FileKind = "prompts file", also: Sequence[str] = ()) -> Path:
    """The file of that `kind` that `name` refers to: from a graph, one next to it or a bundled one; from `--set`, also one in the working
    folder. `also`: as of `find_file`."""
    file = find_file(name, kind, beside=graph.parent, also=also)
    return Path(name) if not file.exists() and Path(name).exists() else file


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`under` with the values of `over`, mappings within them likewise."""
    nested = {key: _merged(under[key], each) for key, each in over.items() if isinstance(each, dict) and isinstance(under.get(key), dict)}
    return {**under, **over, **nested}
