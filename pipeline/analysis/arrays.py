"""Columns of record batches as numpy arrays."""

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
NO_REPLICA = -1
"""Stands for the number of a replica where a row has none."""


class Names(dict[str, int]):
    """Numbers strings from 0, in the order in which it meets them: a dict from strings to their numbers."""

    def codes(self, column: pa.Array) -> Array:
        """The number of each string in `column`; new ones are added, and null counts as the empty string."""
        column = column.fill_null("") if column.null_count else column
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        places = [self.setdefault(name, len(self)) for name in coded.dictionary.to_pylist()]
        return np.asarray(np.array(places, np.int32)[coded.indices.to_numpy()])
