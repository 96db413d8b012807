"""No file and no option of others brings a command down: exit code 0, 2 or 3, one sentence, nothing a terminal obeys."""

import gzip
import io
import json
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.data.problems import Problem
from pipeline.data.reading import read_problems as problems_in
from pipeline.errors import BadRow, InputError
from tests.support.commands import command
from tests.support.paths import ROOT

SPECCOT = ROOT / "graphs/speccot.yaml"
GRAPHS = [path.read_bytes() for path in sorted((ROOT / "graphs").glob("*.yaml"))]
ENGINES = [path.read_bytes() for path in sorted((ROOT / "graphs/engines").glob("*.yaml"))]
FINDS = sorted((ROOT / "tests/fuzz_finds/parquet").iterdir())
"""Files that brought an earlier reader down."""
PIECES = [
    *(b"\0", b"\x1b[2J", b"\xff", b"\xc2\x9b", b"\t", b"\n", b"\r", b" ", b"'", b'"', b"{", b"}", b"[", b"]", b",", b":", b": ", b"- "),
    *(b"&a ", b"*a", b"<<: *a", b"!!python/object/apply:os.system [id]", b"!!binary aGk=", b"!!set", b"!!int x", b"? ", b"---\n", b"..."),
    *(b"|\n", b">\n", b"%YAML 9.9\n", b"#", b"@", b"`", b"$", b"~", b"=", b"2024-99-99", b"1:1:1:1", b"0x" + b"f" * 5000, b"9" * 5000),
    *(b".inf", b".nan", b"-1", b"1e400", b"true", b"null", b"\\ud800", b'"\\ud800"', "\u202e".encode(), "\ufeff".encode(), b"[" * 3000),
]


@st.composite
def mutated(draw: st.DrawFn, originals: Sequence[bytes]) -> bytes:
    """One of `originals` with a few places overwritten, cut, doubled or filled."""
    content = draw(st.sampled_from(originals))
    for _ in range(draw(st.sampled_from([1, 1, 2, 4]))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([0, 0, 1, 1, 2, 8, 40, 1000])))
        piece = draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=6), st.just(content[start:end] * 2)))
        content = content[:start] + piece + content[end:]
    return content


SETTING_NAMES = ["candidates", "temperature", "engines.draft.model", "engines.draft.device.name", "engines.draft", "engines.x.y", ""]
SETTING_VALUES = ["{", "[" * 3000, "*a", "&a [*a]", "2024-99-99", "!!python/name:os", "0x" + "f" * 5000, "1:" * 9999]
SETTINGS = st.text(max_size=20) | st.builds(
    "{}={}".format, st.sampled_from(SETTING_NAMES), st.text(max_size=12) | st.sampled_from(SETTING_VALUES)
)
COLUMNS = {
    "problem": st.one_of(st.text(max_size=12), st.just("x" * 3000)),
    "answer": st.one_of(
        st.text(max_size=5), st.integers(), st.floats(), st.booleans(), st.lists(st.integers(0, 9), max_size=2), st.dates()
    ),
    "problem_id": st.one_of(st.text(max_size=5), st.integers(0, 9), st.sampled_from(["\x1b[31m", "=cmd()", "../x", "\u202e", "a\nb"])),
    "options": st.one_of(st.lists(st.text(max_size=3), max_size=4), st.text(max_size=3)),
    "grader": st.sampled_from(["math", "letter", "numeric", "other", "", None, 5]),
}

REST = {name: column for name, column in COLUMNS.items() if name != "problem"}


@st.composite
def text_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """Name and content of JSON lines or CSV, valid, then perhaps damaged, perhaps gzipped, perhaps damaged again."""
    rows = draw(st.lists(st.fixed_dictionaries({"problem": COLUMNS["problem"]}, optional=REST), max_size=5))
    if draw(st.booleans()):
        name, content = "p.jsonl", "".join(json.dumps(row, default=str) + "\n" for row in rows)
    else:
        cells = [[str(row.get(column, "")) for column in COLUMNS] for row in rows]
        name, content = "p.csv", "\n".join(",".join(line) for line in [[*COLUMNS], *cells])
    raw = content.encode(errors="surrogatepass")
    raw = draw(st.one_of(st.just(raw), mutated([raw]), st.binary(max_size=40)))
    if draw(st.sampled_from([False, False, True])):
        zipped = gzip.compress(raw)
        return f"{name}.gz", draw(st.one_of(st.just(zipped), mutated([zipped])))
    return name, raw


ODD_COLUMNS: list[Any] = [
    pa.array(["1 + 1?", "2 + 2?", None]),
    pa.array(["a", "b", "a"]).dictionary_encode(),
    pa.array([b"\xff\xfe", b"ok", b"z"], pa.binary()).view(pa.string()),
    pa.array([["a"], [], None], pa.list_(pa.string())),
    pa.array([{"a": 1}, {"a": None}, None], pa.struct([("a", pa.int64())])),
    pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    pa.nulls(3),
    pa.array(["x" * 2_000_000, "fine", "y" * 1_000_000]),
    pa.array(["p", "q", "r"], pa.string_view()),
    pa.array([Decimal("1.50"), Decimal(2), None], pa.decimal128(30, 10)),
    pa.array([datetime(2024, 1, 1), datetime(1, 1, 1), None], pa.timestamp("us", "UTC")),
    pa.array([2**62, -(2**62), 0], pa.timestamp("us")),
    pa.array([float("nan"), float("inf"), -0.0]),
    pa.array([2**63, 1, 2], pa.uint64()),
]


def parquet(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


PLAIN = pa.table({"problem": [f"{i} + 1?" for i in range(40)], "answer": list(range(40))})
FORMS: list[dict[str, Any]] = [{"compression": "zstd"}, {"compression": "none", "row_group_size": 7}, {"data_page_version": "2.0"}]


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def checked(*arguments: str | Path) -> bool:
    """Whether what a command is given is right, or refused."""
    return command("graph", "check", *arguments).returncode in (0, 2)


def read_problems(folder: Path, file: tuple[str, bytes]) -> bool:
    """Whether a problems file gives its rows, or a refusal that names it; anything else that is raised is the finding."""
    path = written(folder / file[0], file[1])
    try:
        return all(isinstance(item, Problem | BadRow) for item in problems_in(path))
    except InputError as error:
        return str(error).startswith(str(path))


def solve_problems(folder: Path, file: tuple[str, bytes]) -> bool:
    """Whether a whole run over it on simulated engines ends, with failed rows or without, or is refused."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    words = ("--engines", "sim-instant", "--input", written(folder / file[0], file[1]), "--output", folder / "run")
    return command("run", ROOT / "graphs/target.yaml", *words).returncode in (0, 2, 3)


PARQUET = mutated([parquet(PLAIN, **form) for form in FORMS]).map(lambda content: ("p.parquet", content))
CASES: dict[str, tuple[Callable[[Path, Any], bool], st.SearchStrategy[Any], int]] = {
    "graph": (lambda folder, text: checked(written(folder / "graph.yaml", text), "--engines", "sim-instant"), mutated(GRAPHS), 80),
    "engines": (lambda folder, text: checked(SPECCOT, "--engines", written(folder / "engines.yaml", text)), mutated(ENGINES), 60),
    "settings": (lambda folder, setting: checked(SPECCOT, "--set", setting), SETTINGS, 40),
    "text": (read_problems, text_files(), 120),
    "parquet": (read_problems, PARQUET, 200),
    "run": (solve_problems, st.one_of(text_files(), PARQUET), 15),
}
"""What is done, with what, and how often."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_nothing_brings_it_down(tmp_path: Path, case: str) -> None:
    act, examples, count = CASES[case]

    @settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(example=examples)
    def always(example: object) -> None:
        assert act(tmp_path, example)

    always()


@pytest.mark.parametrize("column", ODD_COLUMNS, ids=lambda column: str(column.type))
def test_a_column_of_an_odd_type_is_read_or_refused(tmp_path: Path, column: Any) -> None:
    for name in COLUMNS:
        table = pa.table({"problem": ["1 + 1?", "2 + 2?", "3 + 3?"]} | {name: column})
        assert read_problems(tmp_path, ("p.parquet", parquet(table)))


@pytest.mark.parametrize("path", FINDS, ids=lambda path: path.name)
def test_what_was_found_is_right_now(tmp_path: Path, path: Path) -> None:
    assert read_problems(tmp_path, ("p.parquet", path.read_bytes()))
