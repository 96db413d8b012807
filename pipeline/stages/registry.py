"""Which kinds of stages there are: the built-in ones and those of other packages."""

from functools import cache
from importlib.metadata import entry_points

from pipeline.spec import AnswerSpec, ChooseSpec, DraftSpec, GenerateSpec, LikelihoodSpec, RepeatSpec, ScoreSpec, StageSpec
from pipeline.stages.answer import AnswerStage
from pipeline.stages.base import StageKind
from pipeline.stages.choose import ChooseStage
from pipeline.stages.draft import DraftStage
from pipeline.stages.generate import GenerateStage
from pipeline.stages.likelihood import LikelihoodStage
from pipeline.stages.score import ScoreStage

BUILT_IN = (
    StageKind(spec=GenerateSpec, build=GenerateStage),
    StageKind(spec=DraftSpec, build=DraftStage),
    StageKind(spec=ChooseSpec, build=ChooseStage),
    StageKind(spec=ScoreSpec, build=ScoreStage),
    StageKind(spec=LikelihoodSpec, build=LikelihoodStage),
    StageKind(spec=AnswerSpec, build=AnswerStage),
)


@cache
def stage_kinds() -> dict[str, StageKind]:
    """Every kind by its tag; the built-in ones cannot be replaced."""
    plugged = [point.load() for point in entry_points(group="pipeline.stages")]
    return {str(kind.spec.__struct_config__.tag): kind for kind in (*plugged, *BUILT_IN)}


def stage_specs() -> dict[str, type[StageSpec]]:
    """What a graph file may say under `kind`."""
    return {"repeat": RepeatSpec, **{tag: kind.spec for tag, kind in stage_kinds().items()}}
