"""How engines share GPUs: specs and a machine enter, sentences for a person leave. Pure.

Processes on one GPU take turns, unless the control daemon of CUDA MPS runs.
"""

from collections.abc import Collection, Iterator, Mapping

from pipeline.engines.cores import ranges
from pipeline.engines.registry import by_backend
from pipeline.graph.spec import EngineSpec
from pipeline.system.machine import Machine

MPS_START, MPS_STOP = "nvidia-cuda-mps-control -d", "echo quit | nvidia-cuda-mps-control"
"""The commands that start the control daemon of CUDA MPS, and end it."""


def shared_gpus(specs: Mapping[str, EngineSpec], machine: Machine) -> dict[tuple[str, ...], list[int]]:
    """The GPUs that several engines share, by the roles of these engines."""
    found: dict[tuple[str, ...], list[int]] = {}
    used: dict[str, Collection[int]] = {}
    for backend, group in by_backend(specs):
        used |= {} if backend.devices is None else backend.devices(group, machine)
    for gpu in machine.gpus:
        roles = tuple(role for role in specs if gpu.index in used.get(role, ()))
        if len(roles) > 1:
            found.setdefault(roles, []).append(gpu.index)
    return found


def taking_turns(specs: Mapping[str, EngineSpec], machine: Machine) -> Iterator[str]:
    """A sentence for each group of engines that share a GPU without CUDA MPS, or where that is not known, with the commands that change
    it."""
    why = "and take turns, because CUDA MPS is not running" if machine.cuda_mps is False else "and take turns unless CUDA MPS is running"
    for shared in () if machine.cuda_mps else _shared(specs, machine):
        yield (
            f"{shared} {why}: while both compute, each takes about twice as long. To run them side by side, start it before the engines: "
            f"`{MPS_START}` (to stop it: `{MPS_STOP}`); documentation: concepts/scheduling-and-memory"
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
