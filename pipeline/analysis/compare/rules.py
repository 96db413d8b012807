"""The rules that a run's chains are held to, and the engines that write them: a plan enters, its rules leave, and what differs in two.

Two systems are compared fairly where these agree: what differs in them is no difference of the methods. `sweep`, `compare` and the
report say it by this one rule.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from pipeline.graph.files import model_name
from pipeline.graph.plan import LoopNode, Plan, StageNode
from pipeline.graph.prompts import DEFAULT_PROMPTS, Prompts
from pipeline.graph.spec import PLAIN_SAMPLING, SamplingSpec

WRITING = ("write", "draft", "guide", "answer")
"""Purposes of calls that sample text."""


ASKED = ("system", "problem", "examples", "delimiter", "thought")
"""Those texts of the prompts that every system of a comparison has."""


Kind = Literal["budget", "exits", "sampling", "prompts", "candidates", "text", "lengths", "models", "backends", "devices", "token_level"]
DECIDED: tuple[Kind, ...] = ("budget", "exits", "sampling", "prompts", "text", "lengths")
"""Kinds of settings that decide how much work a system does; the others are its resources."""
ENGINE: Mapping[str, tuple[Kind, str]] = {
    "backend": ("backends", "the backend of its {role} is {ours}, the baseline's {theirs}"),
    "model": ("models", "its {role} is {ours}, the baseline's {theirs}"),
    "text": ("text", "the simulated text of its {role} has {ours}, the baseline's {theirs}"),
    "max_model_len": ("lengths", "its {role} reads and writes at most {ours} tokens, the baseline's {theirs}"),
    "device": ("devices", "its {role} computes on {ours}, the baseline's on {theirs}"),
    "token_level": ("token_level", "the token-level speculation of its {role} is {ours}, the baseline's {theirs}"),
    "devices": ("devices", "its {role} computes on the devices {ours}, the baseline's on {theirs}"),
    "tensor_parallel_size": ("devices", "its {role} is on {ours} devices, the baseline's on {theirs}"),
}
"""Keys of engines that are compared where two systems have an engine of the same role, with what is said where they differ."""
TOKEN_LEVEL = ("speculative", "speculative_config")
"""Keys of engines that `token_level` stands for."""


class Unlike(NamedTuple):
    """Something that is not the same in a system and its baseline."""

    kind: Kind
    clause: str


class Rules(Struct, frozen=True, kw_only=True):
    """What chains may write, how it is sampled, when a thought ends, and how problems are asked."""

    thought_tokens: int | None
    """Most tokens of a thought; None: nothing bounds it."""
    answer_tokens: int | None
    """Most tokens of an answer beyond the thought's budget; None: it has what the thought leaves."""
    closes: bool
    """Whether a thought that is not finished within its budget is closed and answered."""
    exits: tuple[str, ...]
    """What ends a thought other than its own end and its limits, such as `repeated 2`."""
    sampling: dict[str, str]
    """By purpose of the calls, such as `temperature 0.6, top_p 0.95`."""
    asked: tuple[str, ...]
    """Those of `ASKED` that are not this package's own texts."""
    prompts: Prompts
    candidates: int = 0
    """Drafts of a step; 0: it drafts none."""
    engines: dict[str, dict[str, Any]] = {}
    """By role, the values of the keys `ENGINE` that its engine has."""


def rules_of(plan: Plan) -> Rules:
    """The rules of `plan`."""
    nodes = list(plan.stages())
    answers = [node.spec for node in nodes if node.spec.answers]
    own = [getattr(spec, "max_tokens", None) for spec in answers if getattr(spec, "budget", "thought") == "thought"]
    return Rules(
        thought_tokens=_thought_tokens(plan, nodes),
        answer_tokens=max(filter(None, own), default=None),
        closes=bool(own),
        exits=tuple(_exits(plan)),
        sampling={purpose: said for purpose in WRITING if (said := _sampling(nodes, purpose))},
        asked=tuple(name for name in ASKED if getattr(plan.prompts, name) != getattr(DEFAULT_PROMPTS, name)),
        prompts=plan.prompts,
        candidates=len(plan.drafters),
        engines={role: _engine(msgspec.to_builtins(spec)) for role, spec in plan.engines.items()},
    )


def differences(ours: Rules, theirs: Rules) -> Iterator[Unlike]:
    """How a run differs from its baseline."""
    if ours.thought_tokens != theirs.thought_tokens:
        yield Unlike("budget", f"its thoughts have {_tokens(ours.thought_tokens)}, the baseline's {_tokens(theirs.thought_tokens)}")
    if ours.closes != theirs.closes:
        which = ("it closes", "the baseline does not") if ours.closes else ("it does not close", "the baseline does")
        yield Unlike("budget", f"{which[0]} and answer a thought that exceeds its budget, {which[1]}")
    elif ours.answer_tokens != theirs.answer_tokens:
        yield Unlike("budget", f"its answers have {_tokens(ours.answer_tokens)}, the baseline's {_tokens(theirs.answer_tokens)}")
    if ours.exits != theirs.exits:
        yield Unlike("exits", f"its thoughts also end at {_listed(ours.exits)}, the baseline's at {_listed(theirs.exits)}")
    for purpose in WRITING:
        one, other = ours.sampling.get(purpose), theirs.sampling.get(purpose)
        if one and other and one != other:
            yield Unlike("sampling", f"its sampling to {purpose} has {one}, the baseline's {other}")
    for name in dict.fromkeys((*ours.asked, *theirs.asked)):
        if getattr(ours.prompts, name) != getattr(theirs.prompts, name):
            yield Unlike("prompts", f"`prompts.{name}` differs from the baseline's")
    if ours.candidates and theirs.candidates and ours.candidates != theirs.candidates:
        yield Unlike("candidates", f"candidates is {ours.candidates}, the baseline's {theirs.candidates}")
    for role in (role for role in ours.engines if role in theirs.engines):
        yield from _unlike_engines(role, ours.engines[role], theirs.engines[role])


def _engine(settings: Mapping[str, Any]) -> dict[str, Any]:
    settings = {**settings, **(settings.get("args") or {})}  # vLLM's
    found = {name: settings[name] for name in ENGINE if settings.get(name) is not None}
    if "model" in found:
        found["model"] = model_name(str(found["model"]))
    for name in (each for each in TOKEN_LEVEL if each in settings):
        found["token_level"] = settings[name] or "none"
    return found


def _unlike_engines(role: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[Unlike]:
    """Keys that both engines have, and that differ."""
    for name, (kind, sentence) in ENGINE.items():
        if name in ours and name in theirs and ours[name] != theirs[name]:
            yield Unlike(kind, sentence.format(role=role, ours=_told(ours[name], theirs[name]), theirs=_told(theirs[name], ours[name])))


def _told(value: Any, other: Any) -> str:
    """A value as it is printed; of a mapping the values that are not those of the `other` one."""
    if not isinstance(value, Mapping):
        return f"{value:,}" if isinstance(value, int) else str(value)
    other = other if isinstance(other, Mapping) else {}
    named = value.get("name") if value.get("name") != other.get("name") else None  # of a device, which says all
    return (
        str(named)
        if named
        else ", ".join(f"{key} {each}" for key, each in value.items() if each not in (None, other.get(key))) or "its defaults"
    )


def _thought_tokens(plan: Plan, nodes: list[StageNode]) -> int | None:
    """The greatest budget that a thought may have in `plan`."""
    loops = (node for level in plan.block.levels for node in level if isinstance(node, LoopNode))
    bounds = [loop.until.token_budget for loop in loops]
    bounds += [getattr(node.spec, "max_tokens", None) for node in nodes if getattr(node.spec, "unit", None) in ("thought", "response")]
    return max(filter(None, bounds), default=None)


def _exits(plan: Plan) -> Iterator[str]:
    for level in plan.block.levels:
        for node in level:
            if isinstance(node, LoopNode):
                until = node.until
                yield from ["answer_boxed"] if until.answer_boxed else []
                yield from [f"answer_confident {until.answer_confident:g} {node.pace}"] if until.answer_confident is not None else []
                yield from [f"answer_stable {until.answer_stable} {node.pace}"] if until.answer_stable is not None else []
                yield from [f"repeated {until.repeated}"] if until.repeated else []
                yield from [f"max_steps {until.max_steps:,}"] if until.max_steps else []


def _sampling(nodes: list[StageNode], purpose: str) -> str:
    """How the calls of a purpose sample; empty where there are none."""
    said = [node.spec.sampling for node in nodes if isinstance(node.spec, SamplingSpec) and node.spec.purpose == purpose]
    return "; ".join(dict.fromkeys(_worded(each) for each in said))


def _worded(sampling: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in sampling.items() if name == "temperature" or value != PLAIN_SAMPLING[name])


def _tokens(count: int | None) -> str:
    return "no bound" if count is None else f"at most {count:,} tokens"


def _listed(exits: tuple[str, ...]) -> str:
    return ", ".join(exits) or "nothing else"
