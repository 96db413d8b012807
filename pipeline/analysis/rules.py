"""The rules that a run's chains are held to, and the engines that write them: a plan enters, settings by name leave, and what differs in
two.

Two systems are compared fairly where these agree: what differs in them is no difference of the methods. `sweep`, `compare` and the report
say it by this one rule.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from pipeline.graph.files import model_name
from pipeline.graph.plan import Plan
from pipeline.graph.spec import PLAIN_SAMPLING, SamplingSpec

Rules: TypeAlias = dict[str, Any]
"""Settings by name; `none`: nothing bounds it, or nothing ends a thought so."""
WRITING = ("write", "draft", "guide", "answer")
"""Purposes of calls that sample text."""
ASKED = ("system", "problem", "delimiter", "thought")
"""Those texts of the prompts that every system of a comparison has."""
EXITS = ("answer_boxed", "answer_confident", "answer_stable", "repeated", "max_steps")
"""What ends a thought besides its own end and its budget."""
ENGINE = ("backend", "model", "text", "max_model_len", "token_level")
"""Keys of engines that are compared where two systems have an engine of the same role; what they compute on is of `facts.Resources`."""
NONE = "none"


def rules_of(plan: Plan) -> Rules:
    """The rules of `plan`."""
    specs = [node.spec for node in plan.stages()]
    own = [getattr(spec, "max_tokens", None) for spec in specs if spec.answers and getattr(spec, "budget", "thought") == "thought"]
    bounds = [getattr(spec, "max_tokens", None) for spec in specs if getattr(spec, "unit", None) in ("thought", "response")]
    bounds += [loop.until.token_budget for loop in plan.loops]
    found: Rules = {
        "thought_tokens": max(filter(None, bounds), default=NONE),
        "answer_tokens": max(filter(None, own), default=NONE),
        "thoughts over budget are answered": "true" if own else "false",
    }
    for name in EXITS:
        given = filter(None, (getattr(loop.until, name) for loop in plan.loops))
        found[name] = ", ".join("true" if value is True else f"{value:g}" for value in given) or NONE
    for purpose in WRITING:
        said = [spec.sampling for spec in specs if isinstance(spec, SamplingSpec) and spec.purpose == purpose]
        found |= {f"sampling to {purpose}": "; ".join(dict.fromkeys(map(_worded, said)))} if said else {}
    found |= {f"prompts.{name}": getattr(plan.prompts, name) for name in ASKED}
    found |= {"candidates": len(plan.drafters)} if plan.drafters else {}
    return found | {
        f"engines.{role}.{name}": value for role, spec in plan.engines.items() for name, value in _engine(msgspec.to_builtins(spec)).items()
    }


def differences(ours: Rules, theirs: Rules) -> dict[str, str]:
    """How a run differs from its baseline, in settings that both have: a clause by the setting's name."""
    return {name: _clause(name, ours[name], theirs[name]) for name in ours if name in theirs and ours[name] != theirs[name]}


def of_work(name: str) -> bool:
    """Whether a setting decides how much work a system does; the others are its resources and its method."""
    return name.endswith((".text", ".max_model_len")) or not name.startswith(("engines.", "candidates"))


def _clause(name: str, ours: Any, theirs: Any) -> str:
    if name.startswith("prompts."):
        return f"`{name}` differs from the baseline's"
    other = "the baseline has none" if theirs == NONE else f"the baseline's {_told(theirs, ours)}"
    return f"{name} is {_told(ours, theirs)}, {other}"


def _told(value: Any, other: Any) -> str:
    """A value as it is printed; of a mapping the values that are not those of the `other` one."""
    if not isinstance(value, Mapping):
        return f"{value:,}" if isinstance(value, int) else str(value)
    known = other if isinstance(other, Mapping) else {}
    return ", ".join(f"{key} {each}" for key, each in value.items() if each is not None and each != known.get(key)) or "its defaults"


def _engine(settings: Mapping[str, Any]) -> dict[str, Any]:
    settings = {**settings, **(settings.get("args") or {})}  # vLLM's
    found = {name: settings[name] for name in ENGINE if settings.get(name) is not None}
    if "model" in found:
        found["model"] = model_name(str(found["model"]))
    for name in ("speculative", "speculative_config"):
        found |= {"token_level": settings[name] or NONE} if name in settings else {}
    return found


def _worded(sampling: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in sampling.items() if name == "temperature" or value != PLAIN_SAMPLING[name])
