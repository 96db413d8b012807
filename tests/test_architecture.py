"""Imports point one way, heavy packages stay behind their doors, and no function or file outgrows its room."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "pipeline").rglob("*.py"))

LEVELS = [
    ["pipeline.errors", "pipeline.plain", "pipeline.redaction", "pipeline.virtual_clock"],
    ["pipeline.spec"],
    ["pipeline.reward_spec"],
    ["pipeline.engines.machine"],
    ["pipeline.engines.base", "pipeline.trace.events"],
    ["pipeline.yaml_file"],
    ["pipeline.loader"],
    ["pipeline.plan"],
    ["pipeline.compiler"],
    ["pipeline.prompts", "pipeline.rows", "pipeline.grading", "pipeline.grading_units", "pipeline.handoff"],
    ["pipeline.grading_forms"],
    ["pipeline.grading_worker", "pipeline.grader"],
    ["pipeline.problems"],
    ["pipeline.data_recipe"],
    ["pipeline.data_rows", "pipeline.data_hub"],
    ["pipeline.data"],
    ["pipeline.chain"],
    ["pipeline.trace.read", "pipeline.trace.groups"],
    ["pipeline.stages", "pipeline.engines", "pipeline.trace"],
    ["pipeline.runtime"],
    ["pipeline.analysis"],
    ["pipeline.reward_prompts"],
    ["pipeline.reward_steps"],
    ["pipeline.reward_tally"],
    ["pipeline.report", "pipeline.export", "pipeline.drawing"],
    ["pipeline.runfile", "pipeline.folder", "pipeline.signals"],
    ["pipeline.resume"],
    ["pipeline.options"],
    ["pipeline.sweep_plan", "pipeline.limit"],
    ["pipeline.replay"],
    ["pipeline.run", "pipeline.doctor", "pipeline.grade", "pipeline.reward", "pipeline.calibration"],
    ["pipeline.sweep"],
    ["pipeline.cli"],
]
"""A module imports from lines above its own, and from its own folder."""
MEETING_PLACES = {
    "pipeline.stages.base",
    "pipeline.engines.base",
    "pipeline.trace.events",
    "pipeline.trace.recorder",
    "pipeline.trace.read",
    "pipeline.trace.groups",
}
"""All that rooms may know of each other's insides, but for the composition root."""
OPEN_ROOM = "pipeline.analysis."
"""What is below may be known to all who show or export it."""
COMPOSE = ("pipeline.cli", "pipeline.calibration")
"""Rooms that put others together."""
DOORS = {
    "torch": {"pipeline/engines/torch_", "pipeline/engines/vllm_mend"},
    "vllm": {"pipeline/engines/vllm_worker", "pipeline/engines/vllm_terms", "pipeline/engines/vllm_mend"},
    "transformers": {"pipeline/engines/torch_", "pipeline/engines/tokenizer"},
    "openai": {"pipeline/engines/openai"},
    "httpx": {"pipeline/engines/openai"},
    "httpx2": {"pipeline/engines/openai"},
    "numba": {"pipeline/analysis/"},
    "plotly": {"pipeline/report/"},
    "jinja2": {"pipeline/report/"},
    "perfetto": {"pipeline/export/"},
    "opentelemetry": {"pipeline/export/"},
    "scipy": {"pipeline/calibration/"},
    "math_verify": {"pipeline/grading_worker"},
    "latex2sympy2_extended": {"pipeline/grading_worker"},
    "sympy": {"pipeline/grading_worker"},
    "pyarrow": {
        "pipeline/trace/",
        "pipeline/rows",
        "pipeline/data",
        "pipeline/resume",
        "pipeline/analysis/",
        "pipeline/report/",
        "pipeline/export/",
    },
    "datasets": {"pipeline/data_hub"},
    "trio": {"pipeline/run"},
    "rich": {"pipeline/cli/"},
    "yaml": {"pipeline/yaml_file"},
}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def level_of(module: str) -> int:
    best = max((name for names in LEVELS for name in names if f"{module}.".startswith(f"{name}.")), key=len, default=None)
    assert best is not None, f"{module} has no level"
    return next(i for i, names in enumerate(LEVELS) if best in names)


def imports(path: Path) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            inside = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from ((node, name if (ROOT / (name.replace(".", "/") + ".py")).exists() else str(node.module)) for name in inside)


@pytest.mark.parametrize("path", [f for f in FILES if f.name != "__init__.py"], ids=lambda p: module_of(p))
def test_imports_point_one_way(path: Path) -> None:
    module = module_of(path)
    for _, name in imports(path):
        if not name.startswith("pipeline."):
            continue
        same_room = name.rpartition(".")[0] == module.rpartition(".")[0] != "pipeline"
        assert same_room or level_of(name) < level_of(module), f"{module} imports {name}"
        in_room = module.count(".") > 1 and name.count(".") > 1 and not same_room
        if in_room and not module.startswith(COMPOSE):
            assert name in MEETING_PLACES or name.startswith(OPEN_ROOM), f"{module} knows the insides of {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: module_of(p))
def test_heavy_packages_stay_behind_their_doors(path: Path) -> None:
    relative = str(path.relative_to(ROOT))
    for _, name in imports(path):
        doors = DOORS.get(name.partition(".")[0])
        assert doors is None or any(relative.startswith(door) for door in doors), f"{relative} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: module_of(p))
def test_no_function_imports_our_own_modules_and_none_is_longer_than_60_lines(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, f"{path.name}: {node.name}"
            if path.name in ("torch_worker.py", "vllm_worker.py"):  # processes that must ignore SIGINT before they load for seconds
                continue
            inner = [sub for sub in ast.walk(node) if isinstance(sub, ast.ImportFrom) and str(sub.module).startswith("pipeline")]
            assert not inner, f"{path.name}: {node.name} imports {inner[0].module}"


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return {name.partition(".")[0] for name in out.split()}


@pytest.mark.parametrize("statement", ["import pipeline", "import pipeline.cli.main"])
def test_import_is_light(statement: str) -> None:
    assert loaded_by(statement).isdisjoint(
        {"torch", "transformers", "vllm", "numba", "pyarrow", "rich", "trio", "plotly", "scipy", "perfetto", "opentelemetry"}
    )


def test_a_run_on_simulated_engines_loads_no_model_code() -> None:
    assert loaded_by("import pipeline.run, pipeline.engines.sim").isdisjoint({"torch", "transformers", "vllm", "numba"})
