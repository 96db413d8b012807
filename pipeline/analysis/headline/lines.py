"""A run in ten lines: a `Summary` enters, a `Headline` leaves, which `run`, `resume`, `show` and `report` print alike. Pure."""

import shlex
from collections.abc import Iterator, Mapping

from msgspec import Struct

from pipeline.analysis.headline.figures import Baseline, Left, Summary
from pipeline.analysis.headline.limits import limit, percent
from pipeline.analysis.quality.option_mass import mass_sentence

WHEN_TO_USE = "docs: concepts/when-to-use"
"""Where it is explained when speculation pays."""
MAX_REASONS = 3
"""How many reasons for missing grades are told."""


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


def headline(found: Summary, place: str = "") -> Headline:
    """The summary in ten lines. `place`: the run folder as commands name it; empty: suggest no command."""
    rows = (*_failed(found, place), *_accuracy(found), *_empty(found), *_drafting(found), *_tokens(found))
    rows = (*rows, *_engines(found), *_baseline(found, place), *_limit(found), *_simulated(found))
    return Headline(about=_about(found), head=_head(found), rows=rows, commands=_commands(found, place) if place else ())


def _commands(s: Summary, place: str) -> tuple[tuple[str, str], ...]:
    stopped = s.status not in (None, "finished", "starting", "running") and s.resumable
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


def _about(s: Summary) -> str:
    chains = s.chains if s.planned is None else s.planned
    problems = chains if s.problems_planned is None else s.problems_planned
    return about(s.graph or s.run, problems, chains, s.models, s.batch_size, toy=s.has_toy_models)


def _head(s: Summary) -> str:
    planned = s.chains if s.planned is None else s.planned
    chains = "" if s.samples < 2 else f" chains ({_samples(s)} samples a problem)"
    state = "" if s.status in (None, "finished") else f"{s.status}: "
    said = f"{state}{s.done:,} of {planned:,}{chains} solved"
    if not s.wall_time_s:
        return said
    rate = "" if s.problems_per_s is None else f": {_number(s.problems_per_s)} problems/s"
    return f"{said} in {_seconds(s.wall_time_s)}{' of simulated time' if s.simulated else ''}{rate}"


def _samples(s: Summary) -> str:
    """How many samples a problem has; of problems that say it themselves the most."""
    even = None in (s.planned, s.problems_planned) or s.planned == s.samples * (s.problems_planned or 0)
    return f"{s.samples}" if even else f"up to {s.samples}"


def _failed(s: Summary, place: str) -> Iterator[Row]:
    if s.status == "failed" and s.error:
        yield Row("stopped", "", s.error)
    if s.failed:
        causes = ", ".join(f"{count:,} {kind}" for kind, count in s.errors.items())
        example = next(iter(s.error_examples.values()), "")
        alike = s.failed == s.chains and len(s.errors) == 1 and place and s.resumable
        remedy = f"; mend that, then:  pipeline resume {place} --retry-failed" if alike else ""
        yield Row("failed", _percent(s.failed / s.chains), f"{s.failed:,} of {s.chains:,} chains: {causes}; for example: {example}{remedy}")
    if s.left is not None:
        yield Row("left", f"{s.left.chains:,}", f"chains, {s.left.begun:,} of them begun: {_rest(s.left)}")
    elif s.cancelled:
        yield Row("cancelled", f"{s.cancelled:,}", "chains" + (", which `pipeline resume` solves" if s.resumable else ""))
    if (retried := sum(engine.retried_calls for engine in s.engines.values())) > 0:
        yield Row("retries", f"{retried:,}", "failed attempts at a call were repeated")
    if said := _restarts(s):
        yield Row("restarts", "", said)


def _accuracy(s: Summary) -> Iterator[Row]:
    if not s.graded:
        yield Row("accuracy", "-", _why_not_graded(s))
        return
    if s.answers == "simulated" and not s.correct:
        yield Row("accuracy", "-", "answers are simulated")
        return
    of = f" {s.answers} answers" if s.answers else ""
    lost = f", {s.failed_as_wrong:,} of them failed and count as wrong" if s.failed_as_wrong else ""
    bounds = s.accuracy_interval
    interval = f", 95 % interval {100 * bounds.low:.1f} to {100 * bounds.high:.1f}" if bounds else ""
    clusters = ", problems as clusters" if bounds and bounds.method == "clusters" else ""
    yield Row("accuracy", _percent(s.accuracy), f"{s.correct:,} of {s.graded:,}{of}{lost}{interval}{clusters}")
    if s.grading_errors:
        yield Row("grading", "", _grading_errors(s))
    if s.samples > 1:
        powers = ", ".join(f"pass@{k} {_percent(share)}" for k, share in s.pass_at.items())
        yield Row("samples", _samples(s), f"{powers}; majority vote {_percent(s.majority_accuracy)}")


def _empty(s: Summary) -> Iterator[Row]:
    """That all answers, or all thoughts of a graph that drafts them, have no text."""
    of = f"{s.done:,} of {s.done:,}"
    if s.done and s.empty_answers == s.done:
        yield Row("empty", "", f"{of} answers are empty; does the server take the text out, as reasoning or as a call of a tool?")
    if s.done and s.drafters and s.empty_thoughts == s.done:
        yield Row("empty", "", f"{of} thoughts are empty; does the model end its turn at once? See `pipeline graph prompt`")


def _restarts(s: Summary) -> str:
    """Which engines died and were started again, and how often; empty where none did."""
    return ", ".join(
        f"{name} crashed and was restarted {'once' if engine.restarts == 1 else f'{engine.restarts} times'}"
        for name, engine in s.engines.items()
        if engine.restarts
    )


def _why_not_graded(s: Summary) -> str:
    """Why no answer of the run was graded."""
    if s.grading_errors:
        return f"not graded; `pipeline grade` can do it later: {_grading_errors(s)}"
    return "no reference answers" if s.done else "no chain finished"


def _grading_errors(s: Summary) -> str:
    """What kept answers from being compared, the most frequent reasons."""
    first = dict(list(s.grading_errors.items())[:MAX_REASONS])
    more = len(s.grading_errors) - len(first)
    said = [f"{count:,} not graded: {why}" for why, count in first.items()]
    return "; ".join(said) + (f"; and {more} other reasons" if more else "")


def _drafting(s: Summary) -> Iterator[Row]:
    if s.unverified_share is not None:
        by_draft = f"; {_percent(s.draft_share)} of the reasoning is the draft's" if s.draft_share is not None else ""
        yield Row("unverified", _percent(s.unverified_share), f"of {s.steps:,} steps by the draft and verified by nothing{by_draft}")
    if not s.verified_steps:
        return
    written = f", {_percent(s.draft_share)} of the reasoning" if s.draft_share is not None and s.unverified_share is None else ""
    rewritten = f"; {s.fallback_steps:,} rewritten by the target" if s.fallback_steps else ""
    drafted = "drafted" if s.unverified_share is None else "verified"
    yield Row("drafting", _percent(s.acceptance_rate), f"of {s.verified_steps:,} {drafted} steps accepted{written}{rewritten}")
    if s.option_mass and s.option_mass.flagged:
        yield Row("options", "", mass_sentence(s.option_mass))


def _tokens(s: Summary) -> Iterator[Row]:
    if not s.output_tokens or s.kept_tokens is None:
        return
    speeds = ""
    if s.kept_tokens_per_s is not None and s.output_tokens_per_s is not None:
        speeds = f": {_number(s.kept_tokens_per_s)} kept tokens/s, {_number(s.output_tokens_per_s)} generated tokens/s"
    discarded = f"; {_percent(s.wasted_draft_tokens / s.draft_tokens)} of the drafted ones were discarded" if s.draft_tokens else ""
    yield Row("tokens", _percent(s.kept_tokens / s.output_tokens), f"of {s.output_tokens:,} generated were kept{speeds}{discarded}")


def _rest(left: Left) -> str:
    """What the rest of a run would take."""
    if left.tokens is None:
        return "none is over, so that it is not known what they take"
    parts = [f"{left.tokens:,} tokens"]
    parts += [] if left.time_s is None else [_seconds(left.time_s)]
    return f"about {', '.join(parts)} more, as the chains so far"


def _engines(s: Summary) -> Iterator[Row]:
    busy = {role: engine for role, engine in s.engines.items() if engine.calls}
    if busy and s.span_s:
        said = [f"{role} {_percent(engine.busy_share)}{' busy' if not place else ''}" for place, (role, engine) in enumerate(busy.items())]
        yield Row("engines", "", ", ".join(said) + (f", mean of {s.replicas} replicas" if s.replicas > 1 else ""))
    for role, engine in busy.items():
        if engine.speculated_tokens:
            accepted = (engine.accepted_speculated_tokens or 0) / engine.speculated_tokens
            yield Row(
                "speculation", _percent(accepted), f"of {engine.speculated_tokens:,} tokens that {role} proposed to itself were accepted"
            )


def _baseline(s: Summary, place: str) -> Iterator[Row]:
    found = s.baseline
    command = f"pipeline resume {place} --baseline" if place and s.resumable else ""
    if found is None:
        if command and s.drafters:
            yield Row("baseline", "not run", f"to compare with the target alone:  {command}")
    elif found.times_as_fast is None or s.problems_per_s is None:
        unfinished = f"the run of the target alone is {found.status}"
        why = "; ".join(found.flags) or ("no time to compare" if found.status == "finished" else unfinished)
        yield Row("baseline", "-", f"{why}{f':  {command}' if command and found.status != 'finished' else ''}")
    else:
        yield Row("baseline", f"{found.times_as_fast:.2f} x", _compared(found, s.problems_per_s))
        if said := "; ".join(_also_compared(s, found)):
            yield Row("", "", said)
        if found.flags:
            yield Row("differs", "", "; ".join(found.flags))


def _compared(found: Baseline, rate: float) -> str:
    """How fast the run is compared with the target alone."""
    ratio = found.speed_up
    each = f"; a single problem {ratio.value:.2f} times as fast [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio.value else ""
    return f"as fast as the target alone: {_number(rate)} against {_number(found.problems_per_s)} problems/s{each}"


def _also_compared(s: Summary, found: Baseline) -> Iterator[str]:
    """What else is to be said of the comparison."""
    if s.accuracy is not None and found.accuracy is not None and s.answers != "simulated":
        yield f"accuracy {_percent(s.accuracy)} against {_percent(found.accuracy)}"
    if s.simulated:
        yield "both are simulated"
    if s.has_toy_models and found.times_as_fast is not None and found.times_as_fast < 1:
        yield f"a loss is expected of toy models, see {WHEN_TO_USE}"


def _limit(s: Summary) -> Iterator[Row]:
    if (said := limit(s)) is not None:
        yield Row("limited by", "", said)


def _simulated(s: Summary) -> Iterator[Row]:
    if s.simulator:
        yield Row("simulated", "", s.simulator.removeprefix("Simulated; "))


def _percent(share: float | None) -> str:
    return "-" if share is None else percent(share, 1)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02} min"
