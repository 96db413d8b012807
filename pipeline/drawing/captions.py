"""The captions of a drawing: parts of a plan and counts of a run enter, short lines of unescaped text leave. Pure."""

from collections.abc import Mapping

from msgspec import structs

from pipeline.drawing.run import RunCounts
from pipeline.graph.plan import Condition, LoopNode, Plan
from pipeline.graph.prompts import DEFAULT_PROMPTS
from pipeline.graph.rules import CONDITIONS
from pipeline.graph.spec import PLAIN_SAMPLING, StageSpec
from pipeline.text import one_line

LONGEST = 60
"""How many characters of a foreign text, such as a model's name, are shown."""
ELSEWHERE = {"after", "when", "engine", "until", "stages", "prompts", "prompt"}
"""Fields of a stage that are not in its settings line, because the drawing shows them otherwise."""
NEUTRAL = (None, 0, 1, ())
"""Defaults that are not shown; true and false equal 1 and 0."""
ALWAYS = "context_length"
"""The stop condition that every loop has, whatever its graph says."""


def shortened(text: str) -> str:
    """A foreign text on one line, cut after `LONGEST` characters."""
    line = one_line(text)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def settings_line(spec: StageSpec) -> str:
    """The settings of a stage as `name=value`, without fields in `ELSEWHERE` and defaults in `NEUTRAL`."""
    said = [
        f"{field.name}={shortened(_value(value))}"
        for field in sorted(structs.fields(spec), key=lambda field: field.name in PLAIN_SAMPLING)
        if field.name not in ELSEWHERE
        and not ((value := getattr(spec, field.name)) == field.default and any(value == each for each in NEUTRAL))
    ]
    return " ".join([*said, *([] if spec.prompts is None else ["prompts=its own"])])


def problem_line(plan: Plan) -> str:
    """How a problem is asked, where the graph has its own words for that; else empty."""
    return f"asked: {shortened(plan.prompts.problem.strip())}" if plan.prompts.problem != DEFAULT_PROMPTS.problem else ""


def condition_line(when: Condition | None) -> str:
    """On which verdict, or which finding of a gate, a stage runs; empty where it always does."""
    return f"when {when.stage} {when.word}" if when else ""


def exit_lines(loop: LoopNode) -> dict[str, str]:
    """Every stop condition of a loop by its name, with its limit if it has one."""
    set_ = {name: getattr(loop.until, name) for name in CONDITIONS if getattr(loop.until, name)}
    return {name: name if value is True else f"{name} {value:,}" for name, value in set_.items()} | {ALWAYS: ALWAYS}


def verdict_count(counts: RunCounts, met: Condition) -> str:
    """How often, and in what share of its verdicts or findings, a stage did what this condition says."""
    stage = met.stage
    yes, no = (counts.passed, counts.flagged) if met.gate else (counts.accepted, counts.rejected)
    return with_share((yes if met.accepted else no).get(stage, 0), yes.get(stage, 0) + no.get(stage, 0))


def rounds_a_chain(counts: RunCounts, loop: LoopNode) -> float:
    """The mean number of steps that a chain committed in `loop`."""
    own = {node.name for level in loop.body.levels for node in level}
    own |= set() if loop.direct is None else {loop.direct.response.name, loop.direct.boundary.name}
    return sum(count for stage, count in counts.steps.items() if stage in own) / max(1, counts.chains)


def ended_by(counts: RunCounts, loop: LoopNode) -> Mapping[str, str]:
    """How often chains ended by each stop condition of `loop`, the plan's last one."""
    known = exit_lines(loop)
    return {reason: with_share(count, counts.chains) for reason, count in counts.stop_reasons.items() if reason in known}


def other_endings(counts: RunCounts | None, plan: Plan) -> list[str]:
    """How often chains ended for each reason that is not a stop condition of the plan's last loop."""
    if counts is None:
        return []
    known = exit_lines(plan.loops[-1]) if plan.loops else {}
    return [f"{reason} {with_share(count, counts.chains)}" for reason, count in counts.stop_reasons.items() if reason not in known]


def with_share(count: int, total: int) -> str:
    """A count with its share of `total`, such as `12 (40.0%)`."""
    return f"{count:,} ({count / total:.1%})" if total else f"{count:,}"


def mean_time(total_s: float, count: int) -> str:
    """The mean of `count` times that add up to `total_s`, with three digits and a unit; `-` without any."""
    if not count:
        return "-"
    each = total_s / count
    scale, unit = (1, "s") if each >= 1 or not each else (1e3, "ms") if each >= 1e-3 else (1e6, "µs")
    return f"{each * scale:,.3g} {unit}"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)
