"""How engines share GPUs: specs and a machine enter, sentences for a person leave. Pure.

Processes on one GPU take turns, unless the control daemon of CUDA MPS runs.
"""

from collections.abc import Iterator, Mapping

from pipeline.engines.cores import ranges
from pipeline.engines.torch.backend import cuda_build, gpu_of
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.vllm.memory_plan import devices_of, on_cpu
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.graph.spec import EngineSpec
from pipeline.machine import Machine

MPS_START, MPS_STOP = "nvidia-cuda-mps-control -d", "echo quit | nvidia-cuda-mps-control"
"""The commands that start the control daemon of CUDA MPS, and end it."""


def shared_gpus(specs: Mapping[str, EngineSpec], machine: Machine) -> dict[tuple[str, ...], list[int]]:
    """The GPUs that several engines share, by the roles of these engines."""
    found: dict[tuple[str, ...], list[int]] = {}
    used = {role: _gpus(spec, machine) for role, spec in specs.items()}
    for gpu in machine.gpus:
        roles = tuple(role for role, gpus in used.items() if gpu.index in gpus)
        if len(roles) > 1:
            found.setdefault(roles, []).append(gpu.index)
    return found


def taking_turns(specs: Mapping[str, EngineSpec], machine: Machine) -> Iterator[str]:
    """A sentence for each group of engines that share a GPU without CUDA MPS, with the commands that change it."""
    for shared in _shared(specs, machine) if machine.cuda_mps is False else ():
        yield (
            f"{shared} and take turns, because CUDA MPS is not running: while both compute, each takes about twice as long. To run them "
            f"side by side, start it before the engines: `{MPS_START}` (to stop it: `{MPS_STOP}`); "
            "documentation: concepts/scheduling-and-memory"
        )


def side_by_side(specs: Mapping[str, EngineSpec], machine: Machine) -> Iterator[str]:
    """A sentence for each group of engines that share a GPU under CUDA MPS."""
    for shared in _shared(specs, machine) if machine.cuda_mps else ():
        yield (
            f"{shared} under CUDA MPS: their kernels run side by side and share bandwidth and multipliers. Engines that are started with "
            "another CUDA_MPS_PIPE_DIRECTORY would take turns"
        )


def _shared(specs: Mapping[str, EngineSpec], machine: Machine) -> Iterator[str]:
    for roles, gpus in shared_gpus(specs, machine).items():
        yield f"{' and '.join(roles)} share GPU {ranges(gpus)}"


def _gpus(spec: EngineSpec, machine: Machine) -> tuple[int, ...]:
    """The GPUs of a machine that an engine computes on."""
    if isinstance(spec, VllmSpec):
        return () if on_cpu(machine) else devices_of(spec)
    if isinstance(spec, TorchSpec) and cuda_build(machine):
        gpu = gpu_of(spec, machine)
        return () if gpu is None else (gpu,)
    return ()
