"""Which tests share a process when all run on several workers (`make test`).

Tests of the same engines are one piece, so that these are started once: all of vLLM, all of its server together with those of whole
runs on the torch engine, to which they are compared, and all that ask the torch engine. (Two of vLLM compare with its runs, so that
their worker starts it, too.) Of the others each file is a piece, because the tests of some files stand on one another. The largest
are begun first, so that the workers end at about the same time.
"""

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

VLLM = "vllm"
"""A word in the id of every test that is marked so."""
SERVED = ("openai-vllm", "openai_vllm")
"""Words in the ids of those that ask vLLM's server."""
TORCH, TORCH_RUNS = "tests/engines/test_torch.py", "tests/session/test_run_torch.py"
TOGETHER = {
    "tests/engines/test_contract.py": TORCH,
    "tests/rewards/test_score.py": TORCH_RUNS,
    "tests/training/test_lora_merge.py": "tests/training/test_lora_trainer.py",
}
"""Files that share engines with another one, whose piece they belong to."""
LARGEST = [
    VLLM,
    TORCH_RUNS,
    "tests/tools/test_drills.py",
    "tests/test_readme.py",
    "tests/report/test_browser.py",
    TORCH,
    "tests/training/test_lora_trainer.py",
    "tests/session/test_run_servers.py",
    "tests/cli/test_doctor.py",
    "tests/session/test_resume_faults.py",
    "tests/grading/test_grader.py",
]
"""The pieces that are handed out first, in this order. A file that is not here is small."""


class Packing(LoadScopeScheduling):
    """Hands out pieces, the largest first."""

    def _split_scope(self, nodeid: str) -> str:
        return piece(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if large := [name for name in LARGEST if name in self.workqueue]:
            self.workqueue.move_to_end(large[0], last=False)
        super()._assign_work_unit(node)


def piece(nodeid: str) -> str:
    """The piece that a test belongs to."""
    if any(word in nodeid for word in SERVED):
        return TORCH_RUNS
    file = nodeid.partition("::")[0]
    return VLLM if VLLM in nodeid else TOGETHER.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Packing | None:
    """Only for `--dist loadscope`; `make check` deals out its short tests one by one."""
    return Packing(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker(VLLM) is not None and VLLM not in item.nodeid:
        raise pytest.UsageError(f"{item.nodeid} is marked {VLLM}: its name, or that of its file, is to say so")
