"""One process at a time is at work in a run folder, however the one before it ended."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.store.folder import LOCK, hold, hold_output
from tests.support.paths import ROOT
from tests.support.run_files import write_run_json

HOLD = (
    "import sys; from pathlib import Path; from pipeline.store.folder import hold\nwith hold(Path(sys.argv[1])): print(flush=True); input()"
)


def test_a_folder_is_free_when_its_process_has_gone(tmp_path: Path) -> None:
    folder = tmp_path / "new/run"
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    with pytest.raises(UsageError) as caught, hold(folder):
        pass
    assert str(caught.value) == f"{folder}: process {other.pid} is at work in it; wait for its end"
    other.kill()
    other.communicate()
    with hold(folder), pytest.raises(UsageError, match="this process is at work"), hold(folder):
        pass
    with hold(folder):
        assert [path.name for path in folder.iterdir()] == [LOCK]


@pytest.mark.parametrize(
    ("card", "resume", "remedy"),
    [("run.json", False, "add --resume to resume it, or choose"), ("run.json", None, "choose"), ("sweep.json", True, "choose")],
)
def test_only_a_run_is_resumed_in_the_folder_of_one(tmp_path: Path, card: str, resume: bool | None, remedy: str) -> None:
    write_run_json(tmp_path)
    told = f"{tmp_path}: already contains a run; {remedy} another directory with --output"
    with pytest.raises(UsageError, match=f"^{told}$"), hold_output(tmp_path, card, resume=resume):
        pass
