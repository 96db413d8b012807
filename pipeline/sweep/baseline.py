"""The baseline of one run (`run --baseline`): its options enter, those of a run of the target alone on the same hardware leave."""

from pathlib import Path

from msgspec import Struct, structs

from pipeline.analysis.headline import baseline_folder
from pipeline.errors import UsageError
from pipeline.options import RunOptions
from pipeline.sweep.plan import SweepOptions
from pipeline.sweep.systems import baselines, read_systems


class BaselinePlan(Struct, frozen=True, kw_only=True):
    """The run of the target alone that belongs to a run."""

    options: RunOptions
    """Its options, without its folder."""
    notices: tuple[str, ...]
    """Notices about the memory it gets from unused engines."""

    def next_to(self, folder: Path) -> RunOptions:
        """Its options where the run is in `folder`; what is there of it already is resumed."""
        return structs.replace(self.options, output=baseline_folder(folder), resume=True)


def plan_baseline(options: RunOptions) -> BaselinePlan:
    """The run of the target alone over the problems of a run with these options, at the same batch size.

    Raises `UsageError` where the run itself is one.
    """
    if options.in_memory:
        raise UsageError("--baseline: graph and engines have to be in files")
    systems = read_systems(
        SweepOptions(
            graphs=(options.graph,),
            input=Path(options.input[0]),
            batch_sizes=(options.batch_size,),
            engines=() if options.engines is None else (options.engines,),
            planned_engines=options.planned_engines,
            settings=options.settings,
        )
    )
    alone = next(system for system in systems if system.baseline)
    if len(systems) == 1:
        raise UsageError(f"--baseline: {options.graph} is the target alone: there is nothing to compare it with")
    own = {"graph": alone.graph, "engines": alone.engines_file, "settings": alone.settings, "baseline": False}
    return BaselinePlan(
        options=structs.replace(options, **own),
        notices=tuple(baselines(systems)),
    )
