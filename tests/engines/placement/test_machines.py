"""Machines that are named: their GPUs, and what is said of a name that is none."""

import pytest

from pipeline.engines.placement.machines import described, machine_named, with_gpus
from pipeline.errors import UsageError
from pipeline.system.machine import GIB


@pytest.mark.parametrize(
    ("text", "shown", "gib"),
    [
        ("2xH100-80GB", "2 x H100-80GB", 79.6),
        ("H200", "1 x H200-141GB", 140.4),
        ("8 x h100", "8 x H100-80GB", 79.6),
        ("RTX 4090", "1 x RTX4090-24GB", 24.0),
        ("4x96GB", "4 x 96GB", 96.0),
    ],
)
def test_a_machine_is_named_by_its_gpus(text: str, shown: str, gib: float) -> None:
    machine = machine_named(text)
    assert described(machine) == shown
    sizes = {gpu.memory_bytes for gpu in machine.gpus}
    assert [round((size or 0) / GIB, 1) for size in sizes] == [gib]
    assert machine.cuda_mps is None
    assert all((gpu.free_bytes or 0) < (gpu.memory_bytes or 0) for gpu in machine.gpus)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2xH200-80GB", "unknown GPU; did you mean `H100-80GB`, or give its memory, such as 4x96GB"),
        ("A100", "--as A100: say A100-40GB or A100-80GB"),
        ("0xH100-80GB", "expected NxGPU, such as 2xH100-80GB"),
        ("2 cows", "unknown GPU"),
    ],
)
def test_what_names_no_machine_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        machine_named(text)
    assert said in str(raised.value)


def test_a_machine_may_get_more_of_its_gpus() -> None:
    assert [gpu.index for gpu in with_gpus(machine_named("RTX4090"), 3).gpus] == [0, 1, 2]
