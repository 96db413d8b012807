"""No folder grows unnoticed: `ceiling.json` has the sizes that landed last. `python -m tests.test_ceiling` writes them anew."""

import json
from pathlib import Path

import pytest

from tests.support.paths import ROOT

CEILING = Path(__file__).with_name("ceiling.json")
CODE = {".py", ".sql", ".html", ".css", ".js"}
TEXT = CODE | {".md", ".yml", ".yaml", ".json"}
KINDS = {"pipeline": CODE, "tests": CODE, "bench": CODE, "tools": CODE, "docs": TEXT, "graphs": TEXT}
"""What counts in each folder; each folder of `pipeline` has a ceiling, too."""
Sizes = dict[str, dict[str, int]]


def sizes() -> Sizes:
    """Files, lines and bytes of each folder."""
    inner = [f"pipeline/{path.name}" for path in sorted((ROOT / "pipeline").iterdir()) if path.is_dir()]
    found: Sizes = {}
    for name in [*KINDS, *inner]:
        texts = [path.read_bytes() for path in (ROOT / name).rglob("*") if _counts(path, name)]
        if any(texts):
            found[name] = {"files": len(texts), "lines": sum(text.count(b"\n") for text in texts), "bytes": sum(map(len, texts))}
    return found


def _counts(path: Path, name: str) -> bool:
    """Whether a file under the folder `name` counts; schemas are generated."""
    return path.suffix in KINDS[name.partition("/")[0]] and path.is_file() and path.parent.name != "schemas"


def written(found: Sizes) -> str:
    """One line a folder, so that a change of one shows as one."""
    return "{\n" + ",\n".join(f'  "{name}": {json.dumps(size)}' for name, size in found.items()) + "\n}\n"


@pytest.fixture(scope="module")
def now() -> Sizes:
    return sizes()


@pytest.mark.parametrize(("name", "most"), json.loads(CEILING.read_text()).items())
def test_no_folder_is_larger_than_it_was(name: str, most: dict[str, int], now: Sizes) -> None:
    for unit, count in now.get(name, {}).items():
        assert count <= most[unit], f"{name}/ has {count:,} {unit}, its ceiling is {most[unit]:,}"


def test_every_folder_has_a_ceiling(now: Sizes) -> None:
    assert now.keys() <= json.loads(CEILING.read_text()).keys()


if __name__ == "__main__":
    CEILING.write_text(written(sizes()))
