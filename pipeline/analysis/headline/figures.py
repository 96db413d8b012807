"""The figures of a run: `Summary` and its parts."""

from msgspec import Struct

from pipeline.analysis.quality.estimates import NOTHING, Estimate
from pipeline.analysis.quality.option_mass import OptionMass
from pipeline.analysis.quality.samples import Interval


class EngineSummary(Struct, frozen=True, kw_only=True):
    """The figures of one engine of a run; of several replicas those of all their engines of one role."""

    calls: int
    input_tokens: int
    """Prompt tokens, cached ones included."""
    cached_share: float | None
    """Share of the prompt tokens that were in the prefix cache, 0 to 1, of the calls for which the engine says so; null where it does for
    none."""
    output_tokens: int
    output_tokens_per_s: float | None
    """`output_tokens` over the wall time."""
    busy_s: float
    """Seconds in which at least one request was in flight; of several replicas the mean of their engines of this role."""
    busy_share: float
    """`busy_s` over the span of the calls, 0 to 1."""
    mean_in_flight: float
    """Requests in flight, averaged over the span of the calls; of several replicas those of all."""
    retried_calls: int
    """Attempts at a call after the first one."""
    restarts: int | None
    """Times that the engine was started again after it died, by its own count; null where a session left no count."""
    speculated_tokens: int | None
    """Tokens that token-level speculation inside the engine proposed, by its own count; null where it does not speculate."""
    accepted_speculated_tokens: int | None
    """Those of `speculated_tokens` that were accepted."""


class StageSummary(Struct, frozen=True):
    """The figures of one stage of the graph."""

    calls: int
    failed_calls: int
    input_tokens: int
    output_tokens: int
    in_flight_s: float
    """Seconds that its requests were in flight, added up over the requests."""
    wait_s: float
    """Seconds that its requests were queued, here and at the engine where that reports it, added up over the requests."""


class Baseline(Struct, frozen=True, kw_only=True):
    """The run of the target alone over the same problems, and how a run compares with it. What is not known is null."""

    run: str
    """Name of its folder."""
    status: str
    """Its state; only of a finished run the figures are known."""
    problems_per_s: float | None = None
    accuracy: float | None = None
    times_as_fast: float | None = None
    """Problems a second of the run over those of the baseline; each of the two has one wall time, so that there is no interval."""
    speed_up: Estimate = NOTHING
    """Time of a problem in the baseline over that in the run."""
    flags: tuple[str, ...] = ()
    """Reasons other than the graph why the two may differ, as clauses."""


class Left(Struct, frozen=True, kw_only=True):
    """The work left when a run ended before its chains did, and its cost if the rest is like the chains so far. Null: unknown."""

    chains: int
    begun: int
    """Those of `chains` that continue from a recorded call."""
    tokens: int | None = None
    """Tokens that the engines would sample."""
    time_s: float | None = None
    """With the batch size, graph and engines that it had."""


class Summary(Struct, frozen=True, kw_only=True):
    """The figures of a run. A rate is null where its denominator is zero or not known."""

    run: str
    """Name of the run folder."""
    status: str | None
    """As in `run.json`: `finished`, for example; null where there is none."""
    error: str | None = None
    """What ended it early, as in `run.json`; null where nothing did, or a person."""
    graph: str = ""
    """Name of the graph; empty where `run.json` does not say, as the fields up to `take_turns` are."""
    models: dict[str, str] = {}
    """By role, without their folders."""
    has_toy_models: bool = False
    """Whether all of them are the bundled toy models."""
    drafters: tuple[str, ...] = ()
    """Roles that draft."""
    planned: int | None = None
    """Chains of the run, those that have not started included."""
    problems_planned: int | None = None
    """Problems of the run; null where each has one chain."""
    schedule: str | None = None
    resumable: bool = True
    """Whether the command line can resume it: not where its graph or its engines were given as values in Python."""
    startup_s: float | None = None
    """Seconds of opening the engines, of all sessions."""
    simulated: bool = False
    """Whether its clock was simulated."""
    simulator: str = ""
    """How far simulated speeds are from measured ones; empty where they are measured."""
    answers: str | None = None
    """`simulated` or `recorded` where models did not give the answers; see `resources.answers`."""
    take_turns: tuple[str, ...] = ()
    """Roles of engines that computed on one GPU in turns, because CUDA MPS did not run."""
    example: str | None = None
    """A problem of which a chain gave an answer."""
    baseline: Baseline | None = None
    """The run of the target alone (`run --baseline`), where `headline.baseline` has read it."""
    batch_size: int | None
    """As in `run.json`: the most chains in flight at once, on each replica where there are several."""
    pauses: int | None = None
    """Times that a chain had to pause for room in a cache; null where the run does not say."""
    left: Left | None = None
    """Null where all chains are over."""
    wall_time_s: float | None
    """As in `run.json`; without one, from the first chain's start until the last one's end."""
    problems: int
    """Distinct input rows that have a chain."""
    chains: int
    """Chains that have ended; of a chain that was resumed only the last attempt counts."""
    done: int
    """Chains that neither failed nor were cancelled."""
    empty_answers: int = 0
    """Those of `done` whose answer has no text."""
    empty_thoughts: int = 0
    """Those of `done` whose thought has no tokens."""
    failed: int
    cancelled: int
    graded: int
    """Chains that count as right or wrong: those whose answer was graded, and failed ones with a reference answer."""
    failed_as_wrong: int = 0
    """Those of `graded` that failed; see `rows.counted`."""
    correct: int
    """Those of `graded` that are right."""
    grading_errors: dict[str, int] = {}
    """Chains whose answer was not compared with the reference to the end, by the reason, most frequent first; some are graded as wrong."""
    accuracy: float | None
    """`correct` over `graded`, 0 to 1; of several samples a problem this is pass@1."""
    option_mass: OptionMass | None = None
    """How much of the probability verifications gave to their valid options; null without any that says."""
    accuracy_interval: Interval | None
    """95 % interval of `accuracy`; see `samples.interval`."""
    samples: int
    """The most graded chains of one problem."""
    pass_at: dict[str, float]
    """pass@k by k, for 1, 2, 4, ... up to `samples`; see `samples.pass_at`."""
    majority_accuracy: float | None
    """Share of problems whose most frequent answer is right, 0 to 1; null with one sample a problem."""
    problems_per_s: float | None
    """Problems with a chain that is done, over the wall time."""
    steps: int
    """Committed steps, guidance included."""
    steps_per_s: float | None
    output_tokens: int
    """Generated tokens: those that all engines sampled, whatever became of them."""
    output_tokens_per_s: float | None
    """Sampled tokens of all engines over the wall time."""
    kept_tokens: int | None
    """Tokens of the thoughts and answers of the chains that are done; null where the graph is not known."""
    kept_tokens_per_s: float | None
    verified_steps: int
    """Committed steps whose candidates were verified."""
    accepted_steps: int
    """Steps of which a candidate was accepted."""
    fallback_steps: int
    """Steps that were written after all candidates were rejected."""
    unverified_steps: int
    """Steps by the draft that a gate let pass: neither accepted nor rejected."""
    unverified_share: float | None
    """Unverified over all steps, 0 to 1; null where the graph has no gate."""
    acceptance_rate: float | None
    """Accepted over verified steps, 0 to 1."""
    fallback_rate: float | None
    """Steps written by a fallback over verified steps, 0 to 1."""
    thought_tokens: int
    """Tokens of all committed steps."""
    draft_share: float | None
    """Share of `thought_tokens` that are in steps by the draft, accepted or unverified, 0 to 1."""
    draft_tokens: int
    """Tokens that were sampled for candidates, also where no step came of them."""
    wasted_draft_tokens: int
    """Those of `draft_tokens` that were not committed."""
    span_s: float
    """Seconds from the first call that was sent until the last that ended, without pauses between sessions."""
    overlap_share: float
    """Share of `span_s` in which two or more engines were busy, 0 to 1; of several replicas the mean of each one's with its own engines."""
    tail_time_s: float | None
    """Seconds at the end of the run in which fewer chains lived than the batch size, or than the most that ever did; null without
    chains. Of several replicas: since the first one had fewer, see `timeline`."""
    replicas: int = 1
    """Those that were started or have rows."""
    engines: dict[str, EngineSummary]
    """By role."""
    stages: dict[str, StageSummary]
    """By the stage's name."""
    stop_reasons: dict[str, int]
    """Chains by what ended them, most frequent first."""
    errors: dict[str, int]
    """Failed chains by the type of their error, most frequent first."""
    error_examples: dict[str, str]
    """One message for each type of error."""
