"""Whether the bundled toy models can know the problems of a run: a plan and problems enter, a warning leaves.

A toy model was trained on the problems of one bundled data set, which its model card names, and knows their words alone. A problem is of
that kind where all of its words and numbers but one, such as a name, occur there.
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from pipeline.bundled import FOLDERS
from pipeline.data.many_files import open_files
from pipeline.data.problems import Problem, Problems
from pipeline.engines.models import bundled_name, resolve
from pipeline.graph.plan import Plan
from pipeline.graph.yaml_file import parse

LOOKED_AT = 100
"""So many problems of a run are looked at, from its first on."""
_FRONT_MATTER = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)


def strange_problems(plan: Plan, problems: Problems) -> Iterator[str]:
    """A warning if the plan has toy models and the problems are of a kind that these do not know."""
    named = (bundled_name(str(getattr(spec, "model", ""))) for spec in plan.engines.values())
    toys = {name: data for name in named if name is not None and (data := _trained_on(name))}
    for data in set(toys.values()):
        first, known = _kind(data)
        seen = [item.problem for item in islice(problems, LOOKED_AT) if isinstance(item, Problem)]
        strange = sum(len(_words(text) - known) > 1 for text in seen)
        if strange:
            models = " and ".join(name.partition(":")[2] for name, other in toys.items() if other == data)
            what = f"know only problems like {first!r}; {strange} of the first {len(seen)} problems are of another kind"
            yield f"toy models: {models} {what}; name your own models with --model, or in an engines file"


@cache
def _trained_on(model: str) -> str | None:
    """The bundled data set that the card of a bundled model names."""
    front = _FRONT_MATTER.match(Path(resolve("toy", model), "README.md").read_text(encoding="utf-8"))
    return None if front is None else str(parse(front[1])["datasets"][0])


@cache
def _kind(data: str) -> tuple[str, frozenset[str]]:
    """The first problem of a bundled data set, and the words of all of them."""
    texts = [item.problem for item in open_files([FOLDERS["data set"] / data / "test.parquet"]) if isinstance(item, Problem)]
    return texts[0], frozenset().union(*map(_words, texts))


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))
