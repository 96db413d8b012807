"""The captions of a drawing: parts of a plan and what was counted of them in a run enter, short lines of text leave, unescaped."""

from collections.abc import Mapping

from msgspec import structs

from pipeline.drawing.counts import RunCounts
from pipeline.graph.plan import Condition, LoopNode, Plan
from pipeline.graph.spec import StageSpec
from pipeline.text import one_line

LONGEST = 60
"""Characters of a text of others, such as a model's name, that are shown."""
ELSEWHERE = {"after", "when", "engine", "until", "stages"}
"""What the drawing itself says of a stage."""
NEUTRAL = (None, 0, 1, ())
"""Defaults that go without saying; true and false are 1 and 0."""
ALWAYS = "context_length"
"""The exit that no graph needs to name."""


def shortened(text: str) -> str:
    """One line of a text of others, cut where it is long."""
    line = one_line(text)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def settings_line(spec: StageSpec) -> str:
    """The settings of a stage that its graph sets, as `name=value`; defaults that go without saying are left out."""
    said = [
        f"{field.name}={shortened(_value(value))}"
        for field in structs.fields(spec)
        if field.name not in ELSEWHERE
        and not ((value := getattr(spec, field.name)) == field.default and any(value == each for each in NEUTRAL))
    ]
    return " ".join(said)


def instruction_line(plan: Plan) -> str:
    """The instruction that follows every problem, where the graph has its own; else empty."""
    return f"and: {shortened(plan.instruction.strip())}" if plan.instruction else ""


def condition_line(when: Condition | None) -> str:
    """On which verdict a stage runs; empty where it always does."""
    return f"when {when.stage} {verdict_word(when.accepted)}" if when else ""


def verdict_word(accepted: bool) -> str:
    """`accepted` or `rejected`."""
    return "accepted" if accepted else "rejected"


def exit_lines(loop: LoopNode) -> dict[str, str]:
    """Every exit of a loop by its name, with its limit where it has one."""
    set_ = {name: getattr(loop.until, name) for name in loop.until.__struct_fields__ if getattr(loop.until, name)}
    return {name: name if value is True else f"{name} {value:,}" for name, value in set_.items()} | {ALWAYS: ALWAYS}


def verdict_count(counts: RunCounts, judge: str, accepted: bool) -> str:
    """How often, and in which share of its verdicts, a judge decided so."""
    yes, no = counts.accepted.get(judge, 0), counts.rejected.get(judge, 0)
    return with_share(yes if accepted else no, yes + no)


def rounds_a_chain(counts: RunCounts, loop: LoopNode) -> float:
    """Steps that a loop committed, as a mean over the chains."""
    own = {node.name for level in loop.body.levels for node in level}
    return sum(count for stage, count in counts.steps.items() if stage in own) / max(1, counts.chains)


def ended_by(counts: RunCounts, loop: LoopNode | None) -> Mapping[str, str]:
    """How often each exit of the plan's last `loop` was taken; without a loop, or of failed chains, each `stop_reason`."""
    known = exit_lines(loop) if loop else {}
    return {reason: with_share(count, counts.chains) for reason, count in counts.stop_reasons.items() if (reason in known) == bool(loop)}


def with_share(count: int, total: int) -> str:
    """A count and its share."""
    return f"{count:,} ({count / total:.1%})" if total else f"{count:,}"


def mean_time(total_s: float, count: int) -> str:
    """A mean time, to three digits."""
    if not count:
        return "-"
    each = total_s / count
    scale, unit = (1, "s") if each >= 1 or not each else (1e3, "ms") if each >= 1e-3 else (1e6, "µs")
    return f"{each * scale:,.3g} {unit}"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)
