"""Runs that several tests look at, each made once."""

from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import pytest

from pipeline.run.run import SessionResult
from tests.support.runs import solve_short

Recorded = Callable[..., SessionResult]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """`recorded(graph, **options)`: a finished run over the twelve problems of `write_problems`, whose folder nobody changes."""
    folder, numbers = tmp_path_factory.mktemp("recorded"), count()

    @cache
    def made(graph: str = "speccot", **options: Any) -> SessionResult:
        result = solve_short(folder, f"{graph}-{next(numbers)}", graph, **options)
        assert result.exit_code == 0, result.error
        return result

    return made
