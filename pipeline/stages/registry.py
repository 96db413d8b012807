"""Which kinds of stages there are, the built-in ones and those of other packages, and the stages of a plan, built."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from pipeline.errors import GraphError
from pipeline.graph.plan import Plan
from pipeline.graph.spec import AnswerSpec, ChooseSpec, DraftSpec, GenerateSpec, LikelihoodSpec, RepeatSpec, ScoreSpec, StageSpec
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.stages.answer import AnswerStage
from pipeline.stages.base import Stage, StageKind
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


def build_stages(plan: Plan, builders: Mapping[str, PromptBuilder], where: str) -> dict[str, Stage]:
    """The stages of `plan`, ready to run; raises `GraphError` where a tokenizer cannot name the options of a verdict."""
    most = sum(stage.spec.candidates for stage in plan.stages() if isinstance(stage.spec, DraftSpec))
    built: dict[str, Stage] = {}
    for stage in plan.stages():
        tag = str(type(stage.spec).__struct_config__.tag)
        built[stage.name] = stage_kinds()[tag].build(stage.name, stage.spec, builders)
        builder = builders[built[stage.name].role]
        if tag == "choose" and most > builder.most_candidates:
            what = f"its engine's tokenizer names only {builder.most_candidates} options with one token and {most} candidates are drafted"
            raise GraphError(f"{where}: stage {stage.name}", what)
        if tag == "score" and not builder.can_score:
            raise GraphError(f"{where}: stage {stage.name}", "its engine's tokenizer has no single tokens for the digits 0 to 9")
    return built
