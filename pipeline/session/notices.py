"""What a person should know before a run: a plan, or its problems, enter; sentences leave. Nothing here refuses a run but `with_thoughts`.

Thoughts: whether all drafts fit into the context of their judge; of simulated ones, whose lengths are read, whether engines agree on
them, and which limits cut many. Calls: which may exceed the time limits of their engine. Toy models, each trained on the problems of one
bundled data set, know the words of these alone: a problem is of that kind where all of its words and numbers but one, such as a name,
occur there.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import NormalDist
from typing import Literal, NamedTuple

from msgspec import structs

from pipeline.analysis.headline.adapters import unused_adapters, used_adapters
from pipeline.bundled import FOLDERS
from pipeline.data.many_files import open_files
from pipeline.data.problems import Problem, Problems
from pipeline.engines.models import bundled_name, resolve
from pipeline.engines.openai.spec import ChatSpec, OpenAISpec
from pipeline.engines.registry import by_backend, cautions
from pipeline.engines.replay.recording import CALIBRATION
from pipeline.engines.sharing import taking_turns
from pipeline.engines.sim.lengths_file import with_lengths
from pipeline.engines.sim.roofline import Roofline
from pipeline.engines.sim.spec import SimSpec, SimTextSpec
from pipeline.engines.sim.text import SHORTEST_STEP
from pipeline.errors import GraphError, NeverGenerated
from pipeline.graph.plan import Block, LoopNode, Plan
from pipeline.graph.plugins import broken_plugins
from pipeline.graph.spec import EngineSpec, StageSpec
from pipeline.graph.yaml_file import parse
from pipeline.session.checks import replayed_engines
from pipeline.stages.choose import ChooseSpec
from pipeline.stages.draft import DraftSpec
from pipeline.stages.generate import GenerateSpec
from pipeline.store.run_file import RunFile
from pipeline.system.machine import gpus, look

Unit = Literal["steps", "tokens"]
MANY = 0.1
"""A limit that cuts this share of the thoughts, or more, is named."""
ROOM = {"token_budget": 30720, "max_steps": 1000, "draft_tokens": 30720}
"""Params of the bundled graphs that have room for the thoughts of every preset."""
_PARTS = 1000
"""Number of equally likely parts that a distribution is divided into."""
_NORMALS = tuple(NormalDist().inv_cdf((part + 0.5) / _PARTS) for part in range(_PARTS))
SURE_TOKENS_PER_S = 5.0
"""Tokens a second of one sequence that no engine is expected to miss: a limit that needs no more is not worth a word."""
LOOKED_AT = 100
"""So many problems of a run are looked at, from its first on."""
_FRONT_MATTER = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)


def notices(plan: Plan) -> list[str]:
    """Notices for the user before the run: which foreign code runs, which plugins cannot be loaded, where replayed engines have their
    times from, which limits cut simulated thoughts, which adapters are used or are there for nothing, which calls cannot end in time."""
    return [
        *(f"warning: {each}" for each in broken_plugins()),
        *cautions(plan.engines),
        *announcements(plan),
        *_crowded(plan),
        *_cut(plan),
        *used_adapters(plan),
        *unused_adapters(plan),
        *time_notices(plan),
    ]


def gpu_notices(plan: Plan) -> list[str]:
    """A notice for each group of engines that share a GPU without CUDA MPS, with the commands that start it."""
    may_share = len(plan.engines) > 1 and any(backend.devices is not None for backend, _ in by_backend(plan.engines))
    return list(taking_turns(plan.engines, look())) if may_share and gpus() else []


def announcements(plan: Plan) -> list[str]:
    """One notice for each source of the times of replayed calls (the recording, or a roofline), with the roles that use it."""
    costs: dict[str, list[str]] = {}
    for role, spec in replayed_engines(plan).items():
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


def with_thoughts(plan: Plan) -> Plan:
    """The plan with the lengths in place of the files and runs that hold them. Raises `UsageError` where one cannot be read, or where
    engines would disagree on how many steps a problem takes."""
    engines: dict[str, EngineSpec] = {
        role: with_lengths(role, spec) if isinstance(spec, SimSpec) else spec for role, spec in plan.engines.items()
    }
    found = structs.replace(plan, engines=engines)
    _check_agreement(_simulated(found))
    return found


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


def _cut(plan: Plan) -> list[str]:
    texts = [spec.text for spec in _simulated(plan).values() if spec.text.measured]
    if not texts:
        return []
    text = texts[0]
    limits = [*_thought_limits(plan.block), *(("max_model_len", spec.max_model_len, "tokens") for spec in _simulated(plan).values())]
    cut = {(name, limit): share for name, limit, unit in limits if (share := _share_cut(text, limit, unit)) >= MANY}
    if not cut:
        return []
    cuts = " and ".join(f"{name} ({limit:,}) cuts {share:.0%}" for (name, limit), share in cut.items())
    which = f"preset `{text.preset}`" if text.preset is not None else "`text.lengths`"
    return [f"warning: {cuts} of the simulated thoughts, whose lengths are those of {which}; {_remedy(plan, text, cut)}"]


def _remedy(plan: Plan, text: SimTextSpec, cut: Mapping[tuple[str, int], float]) -> str:
    """What would leave room, as a clause."""
    less = (name for name, value in ROOM.items() if isinstance(now := plan.params.get(name), int) and now < value)
    settings = [f"--set {name}={ROOM[name]}" for name in less]
    settings += ["--set 'engines.*.max_model_len=32768'"] if any(name == "max_model_len" for name, _ in cut) else []
    return f"{' '.join(settings)} leaves enough room for every preset" if text.preset is not None and settings else "set it higher"


def _thought_limits(block: Block) -> Iterator[tuple[str, int, Unit]]:
    """What may cut a thought in a block: a name, the most that it lets pass, and of what."""
    for level in block.levels:
        for node in level:
            if isinstance(node, LoopNode):
                exits: list[tuple[str, int | None, Unit]] = [
                    ("max_steps", node.until.max_steps, "steps"),
                    ("token_budget", node.until.token_budget, "tokens"),
                ]
                yield from ((name, limit, unit) for name, limit, unit in exits if limit is not None)
                yield from _thought_limits(node.body)
            elif isinstance(node.spec, GenerateSpec | DraftSpec) and node.spec.unit in ("thought", "response"):
                yield f"max_tokens of {node.name}", node.spec.max_tokens, "tokens"


def _share_cut(text: SimTextSpec, limit: float, unit: Unit) -> float:
    """The share of the thoughts that are longer than `limit`, where every step has the mean number of tokens."""
    steps, tokens = text.distribution("steps"), text.distribution("step_tokens")
    each = 1.0 if unit == "steps" else sum(max(tokens.at(normal), SHORTEST_STEP) for normal in _NORMALS) / _PARTS
    return sum(each * round(steps.at(normal)) > limit for normal in _NORMALS) / _PARTS


def _simulated(plan: Plan) -> dict[str, SimSpec]:
    return {role: spec for role, spec in plan.engines.items() if isinstance(spec, SimSpec)}


def _check_agreement(specs: Mapping[str, SimSpec]) -> None:
    """Raise `GraphError` where lengths are measured ones and two engines have other numbers of steps."""
    first = next((role for role, spec in specs.items() if spec.text.measured), None)
    for role, spec in specs.items():
        if first is not None and spec.text.distribution("steps") != specs[first].text.distribution("steps"):
            what = f"its thoughts differ in numbers of steps from those of {role!r}, which continues them"
            raise GraphError(f"engine {first!r}: text", f"{what}; give both the same `preset`, or `lengths` with the same `steps`")


class _Limit(NamedTuple):
    """How long a call may take, and the key that says so."""

    name: str
    seconds: float


def time_notices(plan: Plan) -> Iterator[str]:
    """A warning for each stage whose longest call will, or may, exceed the time limit of its engine.

    How fast a simulated engine writes is known before it starts; of any other it is said how fast it would have to be.
    """
    for node in plan.stages():
        engine, tokens = plan.engines.get(str(node.spec.role)), getattr(node.spec, "max_tokens", None)
        limit = None if engine is None else _time_limit(engine)
        if engine is None or limit is None or not isinstance(tokens, int):
            continue
        if isinstance(engine, SimSpec):
            what = _too_slow(engine, node.spec, tokens, limit)
        else:
            rate = tokens / limit.seconds
            what = f"within {limit.seconds:g} s that needs {rate:.0f} tokens a second" if rate > SURE_TOKENS_PER_S else None
        if what is not None:
            said = f"a call of the stage `{node.name}` may generate {tokens:,} tokens; {what}"
            yield f"warning: engine {node.spec.role!r}: {said}; set {limit.name} higher or max_tokens lower, or the call may time out"


def _time_limit(engine: EngineSpec) -> _Limit | None:
    """What ends a call of the engine though that works; None: nothing does. Of a server nothing is heard before an answer is whole."""
    limits = [] if engine.timeout_s is None else [_Limit("timeout_s", engine.timeout_s)]
    if isinstance(engine, OpenAISpec | ChatSpec):
        limits.append(_Limit("hang_s", engine.hang_s))
    return min(limits, key=lambda limit: limit.seconds, default=None)


def _too_slow(engine: SimSpec, stage: StageSpec, tokens: int, limit: _Limit) -> str | None:
    """What is wrong where a simulated engine is too slow for `tokens` with as many sequences as it computes together."""
    texts = max(1, stage.drafted)
    together = max(1, min(engine.max_num_seqs, engine.max_in_flight * texts, engine.kv_cache_tokens // tokens))
    alone_s, full_s = (_seconds(engine, tokens, size) for size in (1, together))
    if full_s <= limit.seconds:
        return None
    full = "" if together == 1 else f", {full_s:,.0f} s in a batch of {together:,}"
    return f"that takes {alone_s:,.0f} s alone{full}, and {limit.name} is {limit.seconds:g}"


def _seconds(engine: SimSpec, tokens: int, size: int) -> float:
    """Seconds that a simulated engine needs to write `tokens` tokens for each of `size` sequences at once, with the device to itself."""
    iterations = tokens if engine.speculative is None else -(-tokens // (1 + engine.speculative.num_speculative_tokens))
    growth = size * tokens / iterations
    return Roofline(engine).iteration(size, size, growth).duration(iterations)


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
