"""No file and no option of others brings a command down: exit code 0, 2 or 3, one sentence, nothing a terminal obeys.

The same examples every time; `tools/fuzz.py` looks for others.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.fuzzing import TARGETS

EXAMPLES = {"graph-bytes": 80, "graph-values": 60, "engines": 80, "settings": 40, "text": 120, "parquet": 200, "run": 25}
FINDS = sorted((Path(__file__).parent.parent / "fuzz_finds").glob("*/*"))
"""What the longer search found, in folders by target, and is right now."""


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_brings_it_down(tmp_path: Path, target: str) -> None:
    act, examples, *_ = TARGETS[target]

    @settings(max_examples=EXAMPLES[target], deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(example=examples)
    def always(example: object) -> None:
        act(tmp_path, example)

    always()


@pytest.mark.parametrize("path", FINDS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_is_right_now(tmp_path: Path, path: Path) -> None:
    target = TARGETS[path.parent.name]
    example = target.example_of(path.read_bytes())
    target.act(tmp_path, (path.name, path.read_bytes()) if isinstance(example, tuple) else example)
