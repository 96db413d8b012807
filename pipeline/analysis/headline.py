"""A run in ten lines: a `Summary` enters, a `Headline` leaves, which `run`, `resume`, `show` and the pages print alike; with what limits
the run, and how it compares with the run of the target alone that belongs to it (`run --baseline`).

The folder of that run is named after the run's and lies next to it, so that both are still found after they are moved together.
"""

import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, structs

from pipeline.analysis.compare import compare, read_runs
from pipeline.analysis.facts import made_up
from pipeline.analysis.figures import Estimate
from pipeline.analysis.progress import duration, state_of
from pipeline.analysis.rules import EXITS, differences
from pipeline.analysis.steps import LOW
from pipeline.analysis.summary import Baseline, Summary, summarize
from pipeline.analysis.tables import TOO_FEW, Table, plain
from pipeline.errors import InputError, UsageError
from pipeline.store.folder import FILE
from pipeline.store.run_file import RunFile

SUFFIX = "-target"
"""Appended to the name of the run's folder for the baseline's."""
WHEN_TO_USE = "docs: concepts/when-to-use"
"""Where it is explained when speculation pays."""
BUSY = 0.9
"""From this share of the time on an engine counts as busy all the time."""
DOUBTFUL = 0.05
"""Above this share of doubtful verifications, verdicts are not to be trusted."""
LENIENT, ENOUGH = 0.98, 50
"""From this acceptance rate of this many steps on a judge may be one that accepts anything."""
ALIKE = 0.03
"""Engines whose busy shares are no further apart are equally busy."""


class Row(Struct, frozen=True):
    """One figure of a run."""

    name: str
    figure: str
    """Its main value, such as `99.6 %`; empty where there is none."""
    text: str


class Headline(Struct, frozen=True, kw_only=True):
    """What a person wants to know of a run, in the order in which they ask."""

    about: str
    """What is solved with what."""
    head: str
    """How many chains were solved, how fast."""
    rows: tuple[Row, ...]
    commands: tuple[tuple[str, str], ...] = ()
    """What to do next, and the command that does it."""

    @property
    def essential(self) -> str:
        """All of it in one line."""
        right = next((row.figure for row in self.rows if row.name == "accuracy" and row.figure != "-"), "")
        return f"{self.head}, {right} right" if right else self.head

    @property
    def lines(self) -> list[str]:
        """The rows as lines of text, their figures below each other."""
        name, figure = (max((len(getattr(row, of)) for row in self.rows), default=0) for of in ("name", "figure"))
        return [f"{row.name:<{name}}   {row.figure:<{figure}}   {row.text}".rstrip() for row in self.rows]


def baseline_folder(run: Path) -> Path:
    """The folder of the baseline of the run in the folder `run`, whether there is one or not."""
    return run.with_name(run.name + SUFFIX)


def summary_of(run: Path, found: Summary | None = None) -> Summary:
    """The summary of a run folder as it is now, with its baseline; `found`: the one without. Raises `InputError` as `summarize` does."""
    found = found or summarize(run)
    status = state_of(run, RunFile.read(run)) if found.status == "running" else found.status
    return structs.replace(found, status=status, baseline=_read_baseline(run.absolute(), found.stop_reasons))


def _read_baseline(run: Path, stop_reasons: Collection[str]) -> Baseline | None:
    """How the run in the folder `run`, whose chains ended for these reasons, compares with its baseline; None where it has none. That their
    stop conditions differ is said only of conditions that a chain has met."""
    folder = baseline_folder(run)
    if not (folder / FILE).is_file():
        return None
    state = state_of(folder, RunFile.read(folder))
    if state != "finished":
        return Baseline(run=folder.name, status=state)
    try:
        found = compare(read_runs([run, folder]), folder.name)
    except (InputError, UsageError) as error:  # no problem that both have finished
        return Baseline(run=folder.name, status=state, flags=(str(error),))
    ours, theirs = found.runs
    rate, base_rate = ours.problems_per_s, theirs.problems_per_s
    unmet = {said for name, said in differences(ours.rules, theirs.rules).items() if name in EXITS and name not in stop_reasons}
    return Baseline(
        run=folder.name,
        status=state,
        problems_per_s=base_rate,
        accuracy=theirs.figures["accuracy"].value,
        times_as_fast=rate / base_rate if rate and base_rate else None,
        speed_up=found.over_baseline(ours)["speed_up"],
        flags=tuple(said for said in found.flags[ours.name] if said not in unmet),
    )


def headline(s: Summary, place: str = "") -> Headline:
    """The summary in ten lines. `place`: the run folder as commands name it; empty: suggest no command."""
    rows = (*_ends(s, place), *_accuracy(s), *_drafting(s), *_engines(s), *_baseline(s, place))
    limits = (Row("bottleneck", "", limit(s) or ""), Row("simulated", "", s.simulator.removeprefix("Simulated; ")))
    return Headline(
        about=about(s.graph, s.planned // s.samples, s.planned, s.models, s.batch_size, toy=s.has_toy_models),
        head=_head(s),
        rows=tuple(row for row in (*rows, *limits) if row.text),
        commands=_commands(s, place) if place else (),
    )


def _commands(s: Summary, place: str) -> tuple[tuple[str, str], ...]:
    stopped = s.status not in ("finished", "running") and s.resumable
    return (
        *([("resume", f"pipeline resume {place}")] if stopped else []),
        ("answers", f"pipeline export {place} -o answers.csv"),
        *([] if s.example is None else [("steps", f"pipeline show {place} {shlex.quote(s.example)}")]),
        ("everything", f"pipeline view {place}"),
    )


def about(graph: str, problems: int, chains: int, models: Mapping[str, str], batch_size: int | None, *, toy: bool) -> str:
    """What is solved with what, in one line."""
    counted = f"{problems:,} problem{'s' * (problems != 1)}" + (f", {chains:,} samples" if chains != problems else "")
    named = ", ".join(role if role == model else f"{role} {model}" for role, model in models.items()) + (" (toy models)" if toy else "")
    return ", ".join(filter(None, (f"{graph}: {counted}", named, f"up to {batch_size:,} at once" if batch_size else "")))


def _head(s: Summary) -> str:
    chains = "" if s.samples < 2 else f" chains ({s.samples} samples a problem)"
    said = f"{'' if s.status == 'finished' else f'{s.status}: '}{s.done:,} of {s.planned:,}{chains} solved"
    if s.wall_time_s:
        rate = f"{plain(s.problems_per_s)} problems/s"
        said += f" in {_seconds(s.wall_time_s)}{' of simulated time' if s.simulated else ''}: {rate}"
    return said


def _ends(s: Summary, place: str) -> Iterator[Row]:
    """How chains ended, and what had to be done again."""
    if s.status == "failed":
        yield Row("stopped", "", s.error or "")
    if s.failed:
        causes = ", ".join(f"{count:,} {kind}" for kind, count in s.errors.items())
        example = next(iter(s.error_examples.values()), "")
        alike = s.failed == s.chains and len(s.errors) == 1 and place and s.resumable
        remedy = f"; mend that, then:  pipeline resume {place} --retry-failed" if alike else ""
        yield Row("failed", _percent(s.failed / s.chains), f"{s.failed:,} of {s.chains:,} chains: {causes}; for example: {example}{remedy}")
    if (left := s.planned - s.done - s.failed) and s.status in ("interrupted", "failed"):
        yield Row("left", f"{left:,}", f"chains, {s.cancelled:,} of them begun: {_rest(s)}")
    elif s.cancelled:
        yield Row("cancelled", f"{s.cancelled:,}", "chains" + (", which `pipeline resume` solves" if s.resumable else ""))
    if retried := sum(engine.retried_calls for engine in s.engines.values()):
        yield Row("retries", f"{retried:,}", "failed attempts at a call were repeated")
    if crashed := {name: engine.restarts for name, engine in s.engines.items() if engine.restarts}:
        said = ", ".join(f"{name} {'once' if count == 1 else f'{count} times'}" for name, count in crashed.items())
        yield Row("restarts", "", f"engines crashed and were restarted: {said}")


def _rest(s: Summary) -> str:
    """What the chains that are left take: as much for each as so far, where one that has begun counts as half."""
    if not (over := s.done + s.failed) or not s.output_tokens:
        return "none is over, so that it is not known what they take"
    share = s.planned / (over + s.cancelled / 2) - 1
    time = f", {_seconds(s.wall_time_s * share)}" if s.wall_time_s else ""
    return f"about {s.output_tokens * share:,.0f} tokens{time} more, as the chains so far"


def _accuracy(s: Summary) -> Iterator[Row]:
    ungraded, reasons = sum(s.grading_errors.values()), list(s.grading_errors)
    missing = f"{ungraded:,} not graded: {reasons[0]}{', for example' * (len(reasons) > 1)}" if reasons else ""
    if not s.graded:
        why = "no reference answers" if s.done else "no chain finished"
        yield Row("accuracy", "-", f"not graded; `pipeline grade` can do it later: {missing}" if missing else why)
    elif made_up(s.answers, s.accuracy):
        yield Row("accuracy", "-", "answers are simulated")
    else:
        bounds, of = s.accuracy_interval, f" {s.answers} answers" if s.answers else ""
        interval = f"95 % CI {100 * bounds['low']:.1f}-{100 * bounds['high']:.1f}" if bounds else f"{TOO_FEW} problems for an interval"
        yield Row("accuracy", _percent(s.accuracy), f"{s.correct:,} of {s.graded:,}{of}, {interval}")
        yield Row("grading", "", missing)
        if s.samples > 1:
            powers = ", ".join(f"pass@{k} {_percent(share)}" for k, share in s.pass_at.items())
            yield Row("samples", f"{s.samples}", f"{powers}; majority vote {_percent(s.majority_accuracy)}")
    if s.done and s.empty_answers == s.done:
        yield Row("empty", "", "all answers are empty; does the server take the text out, as reasoning or as a call of a tool?")


def _drafting(s: Summary) -> Iterator[Row]:
    written = "" if s.draft_share is None else f", {_percent(s.draft_share)} of the reasoning is the draft's"
    if s.unverified_steps:
        unverified = f"of {s.steps:,} steps were drafted and verified by nothing{written}"
        yield Row("unverified", _percent(s.unverified_steps / s.steps), unverified)
        written = ""  # is said once
    if s.verified_steps:
        rewritten = f"; {s.fallback_steps:,} rewritten by the target" if s.fallback_steps else ""
        yield Row("drafting", _percent(s.acceptance_rate), f"of {s.verified_steps:,} steps accepted{written}{rewritten}")
    if s.may_reject and (s.acceptance_rate or 0) >= LENIENT and s.verified_steps >= ENOUGH and not (s.answers or s.has_toy_models):
        what = "accepted nearly every step and may be too lenient: set a stricter threshold, or method=expected where it scores"
        yield Row("judge", "", what)
    if s.cut_steps > s.steps / 2:
        what = "of the steps were cut at their token limit: name what ends a step of this model as `delimiter` of the prompts"
        yield Row("cut", _percent(s.cut_steps / s.steps), what)
    if (s.doubtful_share or 0) > DOUBTFUL:
        what = f"of the verifications gave over {1 - LOW:.0%} of the probability to something other than a valid option"
        yield Row("options", _percent(s.doubtful_share), f"{what}: check the judge's prompt (`pipeline graph prompt`)")


def _engines(s: Summary) -> Iterator[Row]:
    """What became of the tokens, and of the engines' time."""
    if s.output_tokens:
        speeds = f": {plain(s.kept_tokens_per_s)} kept tokens/s" if s.kept_tokens_per_s else ""
        discarded = f"; {_percent(s.wasted_draft_tokens / s.draft_tokens)} of the drafted ones were discarded" if s.draft_tokens else ""
        yield Row("tokens", _percent(s.kept_tokens / s.output_tokens), f"of {s.output_tokens:,} generated were kept{speeds}{discarded}")
    busy = ", ".join(f"{role} {_percent(engine.busy_share)}" for role, engine in s.engines.items())
    yield Row("busy", "", busy + (f", on any of {s.replicas} replicas" if busy and s.replicas > 1 else ""))
    for role, engine in s.engines.items():
        if engine.speculated_tokens:
            accepted = (engine.accepted_speculated_tokens or 0) / engine.speculated_tokens
            yield Row("speculation", _percent(accepted), f"of {engine.speculated_tokens:,} tokens that {role} proposed to itself accepted")


def _baseline(s: Summary, place: str) -> Iterator[Row]:
    found, command = s.baseline, f":  pipeline resume {place} --baseline" if place and s.resumable else ""
    if found is None:
        if command and s.drafters:
            yield Row("baseline", "not run", f"to compare with the target alone{command}")
    elif found.times_as_fast is None:
        unfinished = f"the run of the target alone is {found.status}{command}"
        yield Row("baseline", "-", unfinished if found.status != "finished" else "; ".join(found.flags) or "no time to compare")
    else:
        each = f"; per problem {_factor(found.speed_up)}" if found.speed_up.value else ""
        rates = f"{plain(s.problems_per_s)} against {plain(found.problems_per_s)} problems/s"
        yield Row("baseline", f"{found.times_as_fast:.2f}x", f"the target alone: {rates}{each}")
        graded = None not in (s.accuracy, found.accuracy) and s.answers != "simulated"
        also = {
            f"accuracy {_percent(s.accuracy)} against {_percent(found.accuracy)}": graded,
            "both are simulated": s.simulated,
            f"a loss is expected of toy models, see {WHEN_TO_USE}": s.has_toy_models and found.times_as_fast < 1,
        }
        yield Row("", "", "; ".join(said for said, holds in also.items() if holds))
        yield Row("note", "", "; ".join(found.flags))


def _factor(speed_up: Estimate) -> str:
    """A speed-up, or its inverse where it is a loss."""
    value, low, high, said = speed_up.value or 1, speed_up.low, speed_up.high, "faster"
    if low is None or high is None:
        return f"{max(value, 1 / value):.2f}x {said if value >= 1 else 'slower'} ({TOO_FEW} problems for an interval)"
    if value < 1:
        value, low, high, said = 1 / value, 1 / high, 1 / low, "slower"
    return f"{value:.2f}x {said} (95 % CI {low:.2f}-{high:.2f})"


def limit(s: Summary) -> str | None:
    """What limits the run and what to try, the first that its figures show: what makes it pointless, then what is misconfigured, then the
    hardware. None where they show nothing."""
    found, busy = s.baseline, {role: engine.busy_share for role, engine in s.engines.items()}
    if s.verified_steps and not s.accepted_steps and not s.unverified_steps:
        toys = "; these toy models do not know such problems: pass --model target=... --model draft=..."
        return f"the target rejected all {s.verified_steps:,} drafted steps{toys if s.has_toy_models else ''}"
    if found is not None and not s.has_toy_models and (found.speed_up.high or 1) < 1 and (found.times_as_fast or 1) < 1:
        return "speculation: the target alone is faster here; use it, or a draft that costs less for each accepted token"
    if s.pauses:
        return f"the KV cache: it was full, chains paused {s.pauses:,} times; give the engines more memory, or lower --batch-size"
    if not busy or s.replicas > 1:
        return None
    first, *others = sorted(busy, key=lambda role: -busy[role])
    most = f"{first} {busy[first]:.0%} busy"
    if 0 < busy[first] < BUSY and s.status == "finished":
        if s.schedule != "pipelined":
            return f"schedule {s.schedule} ({most}); try --schedule pipelined"
        if s.batch_size < s.chains:
            return f"the batch size ({most}); try more than {s.batch_size} (--batch-size)"
        return f"too few problems to keep the engines busy ({s.chains:,} in flight)"
    if busy[first] < BUSY or not others:
        return None
    if busy[first] - busy[others[0]] <= ALIKE:
        return f"{first} and {others[0]} (both {busy[first]:.0%} busy)"
    return f"the {first} ({busy[first]:.0%} busy; {others[0]} {busy[others[0]]:.0%})"


def tables(s: Summary) -> tuple[Table, Table, Table]:
    """Further figures of a run; its engines; its stages: a row for each."""
    facts = (
        ("wall time", f"{plain(s.wall_time_s)} s"),
        ("steps", f"{s.steps:,}"),
        ("stop reasons", ", ".join(f"{reason} {count}" for reason, count in s.stop_reasons.items())),
        *((kind, f"for example: {message}") for kind, message in s.error_examples.items()),
    )
    engines = [
        (
            *(name, f"{e.calls:,}", f"{e.input_tokens:,}", _percent(e.cached_share), f"{e.output_tokens:,}"),
            *(plain(e.output_tokens / s.wall_time_s if s.wall_time_s else None), _percent(e.busy_share), f"{e.mean_in_flight:.1f}"),
        )
        for name, e in s.engines.items()
    ]
    stages = [
        (
            *(name, f"{e.calls:,}", f"{e.failed_calls:,}", f"{e.input_tokens:,}", f"{e.output_tokens:,}"),
            *(f"{e.in_flight_s:,.1f}", f"{1000 * e.in_flight_s / e.calls:.1f}", f"{e.wait_s:,.1f}"),
        )
        for name, e in s.stages.items()
    ]
    shown = ("engine", "calls", "input tokens", "cached", "output tokens", "generated tokens/s", "busy", "in flight")
    timed = ("stage", "calls", "failed", "input tokens", "output tokens", "total s", "mean ms", "queued s")
    return Table("Facts", ("", ""), facts), Table("Engines", shown, tuple(engines)), Table("Stages", timed, tuple(stages))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.3g} s"
    return duration(seconds) + (" min" if round(seconds) < 3600 else "")
