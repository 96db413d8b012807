"""Columns of record batches as numpy arrays."""

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
NO_REPLICA = -1
"""Stands for the number of a replica where a row has none."""
