"""Whether engines take turns on a GPU of this machine: a plan enters, notices leave, before an engine starts."""

from pipeline.engines.registry import by_backend
from pipeline.engines.sharing import taking_turns
from pipeline.graph.plan import Plan
from pipeline.system.machine import gpus, look


def gpu_notices(plan: Plan) -> list[str]:
    """A notice for each group of engines that share a GPU without CUDA MPS, with the commands that start it."""
    may_share = len(plan.engines) > 1 and any(backend.devices is not None for backend, _ in by_backend(plan.engines))
    return list(taking_turns(plan.engines, look())) if may_share and gpus() else []
