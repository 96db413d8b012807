"""Whether a run can be carried out by replicas: its options enter, `UsageError` is raised for those that only one process can follow."""

from pipeline.errors import UsageError
from pipeline.session.options import RunOptions

_LOADED = ("vllm", "torch")
"""Backends whose engines were chosen for the GPUs of this machine."""


def check_replicas(options: RunOptions) -> None:
    """Raise `UsageError` if options need all chains in one process, or engines on this machine."""
    if options.schedule == "lockstep":
        raise UsageError("--schedule lockstep cannot be combined with --cluster: it synchronises all chains in one process; use pipelined")
    if any(fields.get("backend") in _LOADED for fields in options.planned_engines.values()):
        what = "chooses engines for the GPUs of this machine, but replicas run on others"
        write = "pipeline doctor GRAPH --as 4xH100-80GB --model ... -o engines.yaml"
        raise UsageError(f"--model: {what}; write an engines file with `{write}` and pass it with --engines")
