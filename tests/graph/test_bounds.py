"""Every whole number that a user may write into a file has a least and a greatest value."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.graph.rewards import RewardFile
from pipeline.graph.spec import GraphSpec
from pipeline.options import RunOptions

WRITTEN = [GraphSpec, RewardFile, RunOptions, *stage_specs().values(), *engine_specs().values()]

ANY = ("seed", "params.*", "only.*[]")
"""Numbers of any size: a seed only enters a hash, a param becomes the value of fields that have bounds, values of rows are compared."""


def unbounded(kind: Any, place: str = "$") -> Iterator[str]:
    """The places of whole numbers without bounds in a type."""
    match kind:
        case inspect.IntType():
            if (kind.ge is None and kind.gt is None) or (kind.le is None and kind.lt is None):
                yield place
        case inspect.StructType():
            for field in kind.fields:
                yield from unbounded(field.type, f"{place}.{field.name}")
        case inspect.UnionType():
            for each in kind.types:
                yield from unbounded(each, place)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
            yield from unbounded(kind.item_type, f"{place}[]")
        case inspect.DictType():
            yield from unbounded(kind.value_type, f"{place}.*")


@pytest.mark.parametrize("struct", WRITTEN, ids=lambda struct: struct.__name__)
def test_every_whole_number_has_bounds(struct: type[msgspec.Struct]) -> None:
    assert [place for place in unbounded(inspect.type_info(struct)) if not place.endswith(ANY)] == []
