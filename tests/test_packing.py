"""What shares a worker when the long tests run on several."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packing import LARGEST, TOGETHER, VLLM, piece
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S

FILES = {"test_a": ["test_vllm", "test_first", "test_second"], "test_b_vllm": ["test_one"], "test_c": ["test_this", "test_that"]}


def test_a_file_is_a_piece_and_so_are_all_tests_of_the_same_engines() -> None:
    ids = ["a/test_it.py::test_one", "a/test_it.py::test_two[0]", "b/test_it.py::test_all[vllm]", "test_vllm.py::test"]
    assert [piece(each) for each in ids] == ["a/test_it.py", "a/test_it.py", "vllm", "vllm"]
    served = ["b/test_it.py::test_all[openai-vllm]", "test_openai_vllm.py::test", "tests/rewards/test_score.py::test"]
    assert {piece(each) for each in [*served, "tests/session/test_run_torch.py::test"]} == {"tests/session/test_run_torch.py"}


def test_the_largest_files_are_there() -> None:
    assert [name for name in (*LARGEST, *TOGETHER) if name != VLLM and not (ROOT / name).is_file()] == []


@pytest.mark.slow
def test_each_piece_has_one_worker(tmp_path: Path) -> None:
    for name, tests in FILES.items():
        body = f"open({str(tmp_path / 'done')!r}, 'a').write(f'{{request.node.nodeid}} {{worker_id}}\\n')"
        (tmp_path / f"{name}.py").write_text("".join(f"def {test}(request, worker_id): {body}\n" for test in tests))
    options = ["-n", "2", "--dist", "loadscope", "-p", "tests.support.packing", "-p", "no:cacheprovider"]
    code = f"import sys, pytest; sys.path.insert(0, {str(ROOT)!r}); sys.exit(pytest.main(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", code, *options], cwd=tmp_path, check=True, capture_output=True, timeout=HANGS_S)
    done = [line.split() for line in (tmp_path / "done").read_text().splitlines()]
    workers = {name: {worker for nodeid, worker in done if piece(nodeid) == name} for name in ("test_a.py", "vllm", "test_c.py")}
    assert len(done) == 6
    assert {len(found) for found in workers.values()} == {1}
    assert set().union(*workers.values()) == {"gw0", "gw1"}
