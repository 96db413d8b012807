"""Graphs, engines files, reward models and recipes by name; also in a wheel, where there is no checkout to find them in."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.bundled import FOLDERS, FileKind, bundled_files, find_file
from pipeline.data.recipe import find_recipe
from pipeline.doctor import load_roles
from pipeline.errors import GraphError, UsageError
from pipeline.graph.loader import load_engines
from pipeline.graph.plugins import engine_specs
from pipeline.rewards.spec import load_reward_model
from pipeline.session.options import RunOptions, resume_options
from pipeline.session.preflight import load_plan
from pipeline.session.run import run

ROOT = Path(__file__).parent.parent
NAMES: list[tuple[FileKind, str, str]] = [
    ("graph", "speccot", "graphs/speccot.yaml"),
    ("engines file", "sim-2xh100", "graphs/engines/sim-2xh100.yaml"),
    ("engines file", "tiny-scot", "graphs/engines/tiny-scot.yaml"),
    ("reward model", "prm-tiny", "graphs/rewards/prm-tiny.yaml"),
    ("data set", "gsm8k", "datasets/gsm8k.yaml"),
]


@pytest.mark.parametrize(("kind", "name", "file"), NAMES)
def test_a_name_means_the_file_of_this_repository(kind: FileKind, name: str, file: str) -> None:
    assert find_file(name, kind) == ROOT / file
    assert name in bundled_files(kind)


@pytest.mark.parametrize("name", ["speccot.yaml", "folder/speccot", "./speccot", "none.yml"])
def test_what_looks_like_a_path_is_one(name: str) -> None:
    assert find_file(name, "graph") == Path(name)


def test_a_file_of_the_same_name_is_meant_and_a_folder_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "target").mkdir()
    assert find_file("target", "graph") == FOLDERS["graph"] / "target.yaml"
    (tmp_path / "speccot").write_text((ROOT / "graphs/target.yaml").read_text().replace("engines/tiny.yaml", "tiny"))
    assert find_file("speccot", "graph") == Path("speccot")
    assert load_plan(Path("speccot")).name == "target"


@pytest.mark.parametrize(
    ("name", "kinds", "sentence"),
    [
        ("speccott", ("graph",), "no graph is named `speccott` and there is no such file; did you mean `speccot`?"),
        ("tinny", ("engines file", "graph"), "no engines file or graph is named `tinny` and there is no such file; did you mean `tiny`?"),
        ("x" * 5000, ("reward model",), "there is no such file; known are `prm-math-shepherd`, `prm-rlhflow`, `prm-tiny`"),
    ],
)
def test_an_unknown_name_is_one_sentence(name: str, kinds: tuple[FileKind, ...], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_file(name, *kinds)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_loader_takes_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_plan(Path("speccot"), Path("sim-instant")).engines == load_engines(Path("sim-instant"), engine_specs())
    assert load_reward_model(Path("prm-tiny"), engine_specs()).reward.backend == "torch"
    assert find_recipe("gsm8k").rows == 1319
    for name, roles in [("tiny", {"draft", "target"}), ("target", {"target"}), ("prm-tiny", {"reward"})]:
        assert load_roles(Path(name), ()).specs.keys() == roles


def test_a_graph_names_engines_beside_it_or_bundled_ones(tmp_path: Path) -> None:
    graph = tmp_path / "mine.yaml"
    text = (ROOT / "graphs/target.yaml").read_text()
    graph.write_text(text.replace("engines/tiny.yaml", "sim-instant"))
    assert load_plan(graph).engines["target"].backend == "sim"
    (tmp_path / "sim-instant").write_text((ROOT / "graphs/engines/tiny.yaml").read_text())
    assert load_plan(graph).engines["target"].backend == "torch"
    graph.write_text(text.replace("engines/tiny.yaml", "tinny"))
    with pytest.raises(GraphError, match=r"mine\.yaml, line \d+: \$\.engines: no engines file is named `tinny`.*did you mean `tiny`\?"):
        load_plan(graph)


def test_a_run_by_names_goes_on_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "problems.csv").write_text("problem\nWhat is 1 + 1?\n")
    options = RunOptions(graph=Path("target"), engines=Path("sim-instant"), input=Path("problems.csv"), output=tmp_path / "run")
    assert run(options).exit_code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    kept = resume_options(tmp_path / "run")
    assert (kept.graph, kept.engines) == (ROOT / "graphs/target.yaml", ROOT / "graphs/engines/sim-instant.yaml")
    assert run(kept).nothing_to_do


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel of this checkout holds, as `pip install` would lay it down."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def installed(wheel: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command of the unpacked wheel, run in `folder`, from where nothing of the checkout is seen."""
    program = f"import pipeline; assert pipeline.__file__.startswith({str(wheel)!r}); from pipeline.cli.main import main; main()"
    command = [sys.executable, "-P", "-c", program, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(wheel)})


@pytest.mark.slow
def test_a_wheel_has_all_models_and_adapters(wheel: Path) -> None:
    ours, theirs = ({path.relative_to(root) for path in (root / "pipeline/models").rglob("*") if path.is_file()} for root in (ROOT, wheel))
    assert ours == theirs
    assert {path.name for path in theirs} >= {"model.safetensors", "adapter_config.json", "adapter_model.safetensors"}


@pytest.mark.slow
def test_a_wheel_runs_a_bundled_graph_on_bundled_engines(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_text('{"problem": "What is 1 + 1?", "answer": "2"}\n')
    options = ("--input", "problems.jsonl", "--output", "out")
    done = installed(wheel, tmp_path, "run", "speccot", "--engines", "sim-instant", *options)
    assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / "out/chains").num_rows == 1
    resumed = installed(wheel, tmp_path, "resume", "out")
    assert "there is nothing to resume" in resumed.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("graph", "check", "speccot"), "torch bundled:tiny-target"),
        (("graph", "check", "speccot", "--engines", "sim-2xh100"), "sim "),
        (("doctor", "sim-2xh100"), "Every role could start."),
        (("graph", "show", "specreason"), "specreason"),
        (("list", "data"), "gsm8k"),
        (("prepare", "arith"), "data/arith.parquet: 500 problems"),
    ],
    ids=str,
)
def test_commands_of_a_wheel_find_what_is_bundled(wheel: Path, tmp_path: Path, arguments: tuple[str, ...], printed: str) -> None:
    done = installed(wheel, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


@pytest.mark.slow
def test_a_wheel_sweeps_a_graph_of_ones_own_against_the_bundled_target(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "problems.csv").write_text("problem\nWhat is 1 + 1?\n")
    (tmp_path / "mine.yaml").write_text((ROOT / "graphs/specreason.yaml").read_text())
    options = ("--input", "problems.csv", "--batch-size", "1", "--engines", "sim-instant", "--output", "out")
    done = installed(wheel, tmp_path, "sweep", "mine.yaml", *options)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 points" in done.stderr


@pytest.mark.slow
def test_a_wheel_says_what_it_is(wheel: Path, tmp_path: Path) -> None:
    assert installed(wheel, tmp_path, "--version").stdout.endswith("version 0.1.0\n")
    (about,) = wheel.glob("speculative_pipeline-*.dist-info")
    metadata = (about / "METADATA").read_text()
    assert "\nName: speculative-pipeline\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "URL" not in metadata.partition("\n\n")[0]
    assert (about / "licenses/LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert (wheel / "pipeline/py.typed").exists()
