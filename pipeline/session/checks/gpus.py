"""Whether engines take turns on a GPU of this machine: a plan enters, sentences leave, before an engine starts."""

from pipeline.engines.sharing import taking_turns
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.graph.plan import Plan
from pipeline.machine import gpus, look


def gpu_notices(plan: Plan) -> list[str]:
    """A sentence for each group of engines that share a GPU without CUDA MPS, with the commands that start it."""
    local = {role: spec for role, spec in plan.engines.items() if isinstance(spec, VllmSpec | TorchSpec)}
    return list(taking_turns(local, look())) if len(local) > 1 and gpus() else []
