"""The rules of the tree, one test each: a test lists everything that breaks its rule."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "pipeline").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

LEVELS = [
    ["errors", "files", "confidence", "system"],
    ["graph", "grading", "options", "tasks", "local_web"],
    ["engine", "data"],
    ["store", "reasoning"],
    ["stages", "engines", "analysis", "remote"],
    ["runtime", "show", "export", "calibration"],
    ["run", "rewards", "training"],
    ["study", "cluster", "serve"],
    ["api", "cli"],
]
"""Folders and modules of `pipeline`; each imports from lines above its own, and from itself."""
DOORS = {
    "torch": ["engines/torch/", "engines/vllm/server", "training/trainer"],
    "peft": ["engines/torch/", "training/trainer"],
    "trl": ["training/trainer"],
    "accelerate": ["training/trainer"],
    "vllm": ["engines/vllm/server", "engines/vllm/terms"],
    "transformers": ["engines/torch/", "engines/tokenizer", "training/trainer"],
    "aiohttp": ["engines/openai/"],
    "duckdb": ["store/query"],
    "latex2mathml": ["show/maths"],
    "jinja2": ["show/page", "engines/tokenizer"],
    "tokenizers": ["engines/tokenizer"],
    "starlette": ["show/pages", "serve/"],
    "uvicorn": ["show/pages", "serve/server"],
    "numba": ["analysis/time/walk"],
    "math_verify": ["grading/expressions"],
    "latex2sympy2_extended": ["grading/expressions"],
    "sympy": ["grading/expressions"],
    "pyarrow": ["store/", "data/", "remote/store", "analysis/", "export/", "training/", "api"],
    "datasets": ["data/prepare", "training/trainer"],
    "prometheus_client": ["cli/metrics"],
    "pynvml": ["system/machine"],
    "ray": ["cluster/ray"],
    "filelock": ["store/"],
    "rich": ["cli/", "run/stream", "show/graph_text"],
    "yaml": ["graph/files"],
}
"""The only places of `pipeline` that may import a package."""
WORKERS = ("engines/vllm/worker.py",)
"""Programs of their own, which must ignore SIGINT before they spend seconds on importing."""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def statements(root: ast.AST) -> list[ast.AST]:
    """`root` and the statements in it: a tenth of all nodes, in which every import, class and function is."""
    found = [root]
    for node in found:
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, part, ())
    return found


@cache
def statements_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(statements(tree_of(path)))


@cache
def is_module(name: str) -> bool:
    return (ROOT / (name.replace(".", "/") + ".py")).exists()


def place(path: Path) -> str:
    return str(path.relative_to(ROOT / "pipeline"))


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    return tuple(imports(statements_of(path)))


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for each in nodes:
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            inside = (f"{each.module}.{alias.name}" for alias in each.names)
            yield from (name if is_module(name) else str(each.module) for name in inside)


def level_of(name: str) -> int | None:
    return next((i for i, level in enumerate(LEVELS) if name in level), None)


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in FILES:
        for node in statements_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def test_every_folder_has_a_level() -> None:
    tops = {path.relative_to(ROOT / "pipeline").parts[0].removesuffix(".py") for path in FILES} - {"__init__"}
    assert sorted(name for name in tops if level_of(name) is None) == []
    assert len(LEVELS) <= 9


def test_imports_point_one_way() -> None:
    wrong = []
    for path in FILES:
        own = path.relative_to(ROOT / "pipeline").parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for name in imports_of(path):
            package, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            if package == "pipeline" and other not in ("", own) and not (level_of(other) or 0) < (level_of(own) or 0):
                wrong.append(f"{place(path)} imports {name}")
    assert wrong == []


def test_no_two_modules_import_each_other() -> None:
    known = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES if path.name != "__init__.py"}
    after = {name: [other for other in imports_of(path) if other in known] for name, path in known.items()}
    done: set[str] = set()
    circles: list[str] = []

    def visit(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            circles.append(" -> ".join((*way[way.index(name) :], name)))
        elif name not in done:
            for other in after[name]:
                visit(other, (*way, name))
            done.add(name)

    for name in known:
        visit(name, ())
    assert circles == []


def test_heavy_packages_stay_behind_their_doors() -> None:
    wrong = []
    for path in FILES:
        for name in imports_of(path):
            doors = DOORS.get(name.partition(".")[0])
            if doors is not None and not any(place(path).startswith(door) for door in doors):
                wrong.append(f"{place(path)} imports {name}")
    assert wrong == []


def test_no_function_imports_our_own_modules() -> None:
    wrong = []
    for path, node in functions():
        inner = [name for name in imports(statements(node)) if name.startswith("pipeline")]
        if inner and place(path) not in WORKERS:
            wrong.append(f"{place(path)}: {node.name} imports {inner[0]}")
    assert wrong == []


def test_no_function_is_longer_than_60_lines() -> None:
    assert [f"{place(path)}: {node.name}" for path, node in functions() if (node.end_lineno or 0) - node.lineno >= 60] == []


def test_files_and_folders_keep_their_size() -> None:
    """Files have at most 500 lines, folders 16 modules, and folders lie at most two deep."""
    assert [place(path) for path in FILES if path.read_text().count("\n") > 500] == []
    folders = {path.parent for path in FILES}
    assert [str(folder) for folder in folders if len([*folder.glob("*.py")]) - 1 > 16] == []
    assert [place(path) for path in FILES if len(path.relative_to(ROOT / "pipeline").parts) > 3] == []


def test_no_class_name_is_defined_twice() -> None:
    names = [node.name for path in FILES for node in tree_of(path).body if isinstance(node, ast.ClassDef)]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_tests_share_what_lies_in_tests_support() -> None:
    """What lies in another folder serves that folder alone."""
    found = (
        (path.relative_to(ROOT), name) for path in TESTS for name in re.findall(r"^ *(?:from|import) (tests\.\S*)", path.read_text(), re.M)
    )
    wrong = [f"{path} imports {name}" for path, name in found if name.split(".")[1] not in ("support", *path.parts[1:-1])]
    assert wrong == []


def test_tests_mirror_the_tree() -> None:
    """Each folder of tests is named after the folder of `pipeline`, or of the repository, that it tests."""
    ours = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and [*path.glob("test_*.py")]}
    folders = {path.parent.name for path in FILES if len(path.relative_to(ROOT / "pipeline").parts) == 2}
    assert sorted(ours - folders - {"tools"}) == []
    assert sorted(folders - ours) == []


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return {name.partition(".")[0] for name in out.split()}


HEAVY = {"torch", "transformers", "vllm", "numba", "scipy", "sympy"}
ARRAYS = {"duckdb", "numpy", "pyarrow"}


@pytest.mark.parametrize(
    ("statement", "not_loaded"),
    [
        ("import pipeline", {*HEAVY, *ARRAYS, "rich"}),
        ("import pipeline.cli.main", {*HEAVY, *ARRAYS, "rich"}),
        ("from pipeline.cli.main import run_command; run_command(['list', 'graphs'])", {*HEAVY, *ARRAYS, "anyio"}),
        ("from pipeline.cli.main import run_command; run_command(['run', '--help'])", {*HEAVY, "duckdb", "rich"}),
        ("import pipeline.cli.ask", {*HEAVY, "anyio", "yaml", "httpx2"}),
    ],
)
def test_import_is_light(statement: str, not_loaded: set[str]) -> None:
    assert loaded_by(statement).isdisjoint(not_loaded)


@pytest.mark.slow
def test_a_run_on_simulated_engines_loads_no_model_code() -> None:
    statement = "import pipeline.cli.solve, pipeline.engines.sim.engine"
    assert loaded_by(statement).isdisjoint(HEAVY)
