"""Every command that reads a run folder refuses one whose files are not those of its run."""

import shutil
from pathlib import Path

import pytest

from tests.support.commands import pipeline
from tests.support.runs import solve, write_problems

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs of the same problems, `run` and `other`, whose tables have two parts each."""
    folder = tmp_path_factory.mktemp("check")
    problems = write_problems(folder, 12)
    for name in ("run", "other"):
        solve(folder, name, input=problems, limit=5)
        solve(folder, name, input=problems, resume=True)
    return folder


@pytest.fixture
def run(source: Path, tmp_path: Path) -> Path:
    """A copy of `run`."""
    return Path(shutil.copytree(source / "run", tmp_path / "run"))


def test_a_folder_with_a_part_of_another_run_is_refused(source: Path, run: Path) -> None:
    shutil.copy(source / "other/chains/part-00001.parquet", run / "chains/part-00001.parquet")
    says = f"error: {run}/chains/part-00001.parquet: does not belong here: it is labelled "
    readers = (
        ("compare",),
        ("export", "-o", "-"),
        ("show", "--failed"),
        ("grade",),
    )
    for command in (*readers, ("resume",)):
        refused = pipeline(*command, run)
        assert (refused.returncode, refused.stderr.splitlines()[-1].startswith(says)) == (2, True), command
