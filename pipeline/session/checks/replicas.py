"""Whether a run can be carried out by replicas: its options enter, `UsageError` is raised for those that only one process can follow."""

from pipeline.errors import UsageError
from pipeline.session.options import RunOptions


def check_replicas(options: RunOptions) -> None:
    """Raise `UsageError` where options need all chains, or files of this machine, beside the engines."""
    if options.schedule == "lockstep":
        raise UsageError("--schedule lockstep: its rounds are those of all chains together, which replicas do not have; use pipelined")
    if options.modes is not None:
        raise UsageError(f"--modes {options.modes}: is a folder of this machine, which replicas do not see; leave out --cluster")
