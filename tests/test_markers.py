"""The markers of the tests are held: what is not announced fails, what is announced passes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.markers import LIMIT_S, TOLERANCE
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S

pytestmark = pytest.mark.slow
BURN = f"import time\nend = time.process_time() + {LIMIT_S * TOLERANCE}\nwhile time.process_time() <= end: pass\n"
CASES = {
    "slow": (BURN, "a test without a marker has 0.25 s"),
    "torch": ("import torch\n", "it starts torch: mark it torch"),
    "vllm": ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import vllm'], check=True)\n", "it starts vllm: mark it vllm"),
    "browser": ("import subprocess\nsubprocess.run(['./chromium'])\n", "it starts browser: mark it browser"),
}


def outcome(folder: Path, text: str) -> str:
    """What pytest says of a module of tests, beside which `torch`, `vllm` and `chromium` are programs that do nothing."""
    for name in ("torch.py", "vllm.py"):
        (folder / name).write_text("")
    (folder / "chromium").write_text("#!/bin/sh\n")
    (folder / "chromium").chmod(0o755)
    (folder / "test_it.py").write_text(text)
    code = f"import sys, pytest; sys.path[:0] = [{str(ROOT)!r}, '.']; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "-q", "-p", "tests.support.markers", "-p", "no:cacheprovider", "--strict-markers", "test_it.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANGS_S).stdout


def function(name: str, body: str, head: str = "") -> str:
    return f"{head}def {name}():\n" + "".join(f"    {line}\n" for line in body.splitlines())


def test_what_is_not_announced_fails(tmp_path: Path) -> None:
    found = outcome(tmp_path, "".join(function(f"test_{marker}", body) for marker, (body, _) in CASES.items()))
    assert f"{len(CASES)} failed" in found
    assert [says for _, says in CASES.values() if says not in found] == []


def test_what_is_announced_and_what_is_not_the_tests_own_passes(tmp_path: Path) -> None:
    marked = [function(f"test_{marker}", body, f"@pytest.mark.{marker}\n") for marker, (body, _) in CASES.items()]
    looked = function("test_looked", "import importlib.util\nassert importlib.util.find_spec('vllm')")
    shared = function("shared", BURN, "@pytest.fixture(scope='module')\n") + "def test_shared(shared): pass\n"
    assert f"{len(CASES) + 2} passed" in outcome(tmp_path, "".join(["import pytest\n", looked, shared, *marked]))


def test_a_module_that_imports_torch_is_not_collected(tmp_path: Path) -> None:
    assert "test_it.py loads torch while tests are collected" in outcome(tmp_path, "import torch\n" + function("test_it", "pass"))
