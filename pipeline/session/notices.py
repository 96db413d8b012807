"""What a person should know before a run, and after it: a plan, its problems or a finished run enter; sentences leave.

Toy models, each trained on the problems of one bundled data set, know the words of these alone: a problem is of that kind where all of its
words and numbers but one, such as a name, occur there.
"""

import math
import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from msgspec import structs

from pipeline.analysis.headline.adapters import unused_adapters, used_adapters
from pipeline.bundled import FOLDERS
from pipeline.data.many_files import open_files
from pipeline.data.problems import Problem, Problems
from pipeline.engines.models import bundled_name, resolve
from pipeline.engines.registry import by_backend, cautions, taking_turns
from pipeline.engines.replay.recording import CALIBRATION
from pipeline.engines.replay.spec import ReplaySpec
from pipeline.engines.sim.spec import SimSpec
from pipeline.errors import NeverGenerated
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import STAGE_KINDS, broken_plugins
from pipeline.graph.prompts import DEFAULT_PROMPTS
from pipeline.graph.spec import EndSpec, StageSpec, UntilSpec
from pipeline.graph.yaml_file import parse
from pipeline.stages.choose import ChooseSpec
from pipeline.stages.draft import DraftSpec
from pipeline.stages.score import ScoreSpec
from pipeline.store.run_file import RunFile
from pipeline.system.machine import gpus, look

LOOKED_AT = 100
"""So many problems of a run are looked at, from its first on."""
_EVERY = ("every", "every_tokens")
"""Params of bundled graphs that say how often the answer is asked for before the end."""
_QUESTIONS = ("choose", "choose_thought", "score")
"""The questions among the prompts of a graph."""
_FRONT_MATTER = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)


def notices(plan: Plan) -> list[str]:
    """Notices before the run: which foreign code runs, which plugins cannot be loaded, where replayed engines have their times from, which
    drafts may not fit into the context of their judge, which thresholds tell nothing apart, which adapters and settings are used or are
    there for nothing."""
    return [
        *(f"warning: {each}" for each in broken_plugins()),
        *cautions(plan.engines),
        *announcements(plan),
        *_crowded(plan),
        *_equally_sure(plan),
        *_never_asked(plan),
        *_unasked_questions(plan),
        *used_adapters(plan),
        *unused_adapters(plan),
    ]


def gpu_notices(plan: Plan) -> list[str]:
    """A notice for each group of engines that share a GPU without CUDA MPS, with the commands that start it."""
    may_share = len(plan.engines) > 1 and any(backend.devices is not None for backend, _ in by_backend(plan.engines))
    return list(taking_turns(plan.engines, look())) if may_share and gpus() else []


def announcements(plan: Plan) -> list[str]:
    """One notice for each source of the times of replayed calls (the recording, or a roofline), with the roles that use it."""
    costs: dict[str, list[str]] = {}
    for role, spec in plan.engines.items():
        if not isinstance(spec, ReplaySpec):
            continue
        if spec.costs == "recorded":
            said = "takes as long as when it was recorded, whatever else is running"
        elif spec.costs_from is None:
            continue
        else:
            fitted = " fitted to it" if Path(spec.costs_from).name == CALIBRATION else ""
            said = f"takes the time predicted by the roofline model{fitted} in {spec.costs_from}"
        costs.setdefault(f"replay of {spec.run}: every call of %s {said}", []).append(role)
    return [sentence.replace("%s", " and ".join(roles), 1) for sentence, roles in costs.items()]


def shortfall(run: RunFile) -> str | None:
    """A notice of how many chains needed text that was never generated, and at which stages; None where none did."""
    missing = run.totals.errors.get(NeverGenerated.__name__)
    if not missing:
        return None
    stages = ", ".join(f"{stage} {count}" for stage, count in sorted(missing.items(), key=lambda item: -item[1]))
    return f"replay: {sum(missing.values())} of {run.totals.chains} chains needed text that was never generated, first at stage {stages}"


def _crowded(plan: Plan) -> Iterator[str]:
    """A warning for each judge of whole thoughts whose context cannot hold the longest ones that may be drafted."""
    drafts = [node.spec for node in plan.stages() if isinstance(node.spec, DraftSpec) and node.spec.unit == "thought"]
    most = sum(spec.candidates * spec.max_tokens for spec in drafts)
    for node in plan.stages():
        spec = node.spec
        length = getattr(plan.engines.get(str(spec.role)), "max_model_len", None)
        if isinstance(spec, ChooseSpec) and spec.unit == "thought" and isinstance(length, int) and most > length:
            count = sum(each.candidates for each in drafts)
            what = f"{count} drafts may have {most:,} tokens, and the context of engine {spec.role!r} {length:,}"
            then = "are all rejected" if spec.reject else "fail with their chain"
            yield f"warning: {what}: those that do not fit next to the problem {then}; draft less, or set its max_model_len"


def _equally_sure(plan: Plan) -> Iterator[str]:
    """A warning for each choice with a threshold whose judge is simulated."""
    for node in plan.stages():
        spec = node.spec
        if isinstance(spec, ChooseSpec) and spec.threshold and isinstance(plan.engines.get(spec.engine), SimSpec):
            what = "a simulated judge is equally sure of all that it chooses"
            yield f"warning: stage {node.name}: {what}: a threshold on its probability, {spec.threshold:g} here, rejects all or none"


def _never_asked(plan: Plan) -> Iterator[str]:
    """A warning where `every` says how often an answer is asked for that nothing asks for, or too seldom to end a thought by it."""
    param = next((name for name in _EVERY if name in plan.params), "every")
    for name, end, most, unit in _early_ends(plan):
        times = 1 if end.answer_confident is not None else end.answer_stable or 0
        if not end.tries:
            what = "no answer is asked for before the end without `answer_confident` or `answer_stable`; set one of them, or leave it out"
        elif end.every * times >= most:
            often, remedy = ("", "set it lower") if times == 1 else (f" {times} times", "lower it or `answer_stable`")
            what = f"every {end.every:,} {unit}, the answer is not asked for{often} in the {most:,} of a thought; {remedy}"
        else:
            continue
        yield f"warning: stage {name}: `{param}` has no effect: {what}"
        return


def _early_ends(plan: Plan) -> Iterator[tuple[str, EndSpec, float, str]]:
    """Each stage that says when to ask for the answer, what it says, and how many steps or tokens a thought may have in it."""
    for loop in plan.loops:
        until = loop.until
        if until.every != UntilSpec().every:
            yield loop.name, until, min(filter(None, (until.max_steps, until.token_budget)), default=math.inf), "steps"
    for node in plan.stages():  # the compiler leaves out the `until` of a response that says nothing
        if isinstance(end := getattr(node.spec, "until", None), EndSpec):
            yield node.name, end, getattr(node.spec, "max_tokens", math.inf), "tokens"


def _unasked_questions(plan: Plan) -> Iterator[str]:
    """A warning where the prompts change nothing but questions, as `short` does, and no stage asks one of these."""
    changed = [name for name in _QUESTIONS if getattr(plan.prompts, name) != getattr(DEFAULT_PROMPTS, name)]
    restored = structs.replace(plan.prompts, **{name: getattr(DEFAULT_PROMPTS, name) for name in changed})
    kinds = {node.spec.kind for node in plan.stages()}
    if not changed or restored != DEFAULT_PROMPTS or not kinds <= STAGE_KINDS.keys():
        return
    asked = {_question(node.spec) for node in plan.stages()}
    if asked.isdisjoint(changed):
        named = plan.params.get("prompts")
        said = f"`prompts={named}` has" if isinstance(named, str) else "`prompts` have"
        yield f"warning: {said} no effect: they change only how `choose` and `score` stages ask, and {plan.name} has none; leave them out"


def _question(spec: StageSpec) -> str | None:
    """The question that a stage asks, by its name in the prompts."""
    if isinstance(spec, ChooseSpec):
        return "choose_thought" if spec.unit == "thought" else "choose"
    return "score" if isinstance(spec, ScoreSpec) else None


def strange_problems(plan: Plan, problems: Problems) -> Iterator[str]:
    """A warning if the plan has toy models and the problems are of a kind that these do not know."""
    named = (bundled_name(str(getattr(spec, "model", ""))) for spec in plan.engines.values())
    toys = {name: data for name in named if name is not None and (data := _trained_on(name))}
    for data in set(toys.values()):
        first, known = _kind(data)
        seen = [item.problem for item in islice(problems, LOOKED_AT) if isinstance(item, Problem)]
        strange = sum(len(_words(text) - known) > 1 for text in seen)
        if strange:
            models = " and ".join(name.partition(":")[2] for name, other in toys.items() if other == data)
            what = f"know only problems like {first!r}; {strange} of the first {len(seen)} problems are of another kind"
            yield f"toy models: {models} {what}; name your own models with --model, or in an engines file"


@cache
def _trained_on(model: str) -> str | None:
    """The bundled data set that the card of a bundled model names."""
    front = _FRONT_MATTER.match(Path(resolve("toy", model), "README.md").read_text(encoding="utf-8"))
    return None if front is None else str(parse(front[1])["datasets"][0])


@cache
def _kind(data: str) -> tuple[str, frozenset[str]]:
    """The first problem of a bundled data set, and the words of all of them."""
    texts = [item.problem for item in open_files([FOLDERS["data set"] / data / "test.parquet"]) if isinstance(item, Problem)]
    return texts[0], frozenset().union(*map(_words, texts))


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))
