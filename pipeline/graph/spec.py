"""The keys of a graph file as frozen, strictly typed Structs, and the base classes of the specs of stages and engines.

The loader decodes YAML into these once; afterwards nothing checks a type or a bound again. Every kind of stage and every
engine backend, built in or of another package, subclasses `StageSpec` or `EngineSpec` where it is implemented. What the
compiler, the trace and the analyses need to know of a stage they learn from the capabilities below, never from its kind.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from pipeline.graph.prompts import DEFAULT_PROMPTS, Prompts

Temperature = Annotated[float, Meta(ge=0.0, le=5.0)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
TopK = Annotated[int, Meta(ge=0, le=1_000_000)]
MinP = Annotated[float, Meta(ge=0.0, le=1.0)]
Tokens = Annotated[int, Meta(ge=1, le=1_000_000)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
PositiveSeconds = Annotated[float, Meta(gt=0.0)]
NAME_PATTERN = r"^[a-z][a-z0-9_-]{0,63}$"
"""Names of graphs, stages, params and roles; the loader checks it, as `Meta(pattern=...)` can crash the interpreter (msgspec issue 717)."""
Name = str
AdapterName = Annotated[str, Meta(min_length=1, max_length=64)]
Param = bool | int | float | str | None
Speculate = Literal["always", "never"]
"""Whether the steps of a loop are speculated: all of them, or none (the target alone writes, in one request)."""
PLAIN_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""How text is sampled by a model's own distribution."""
Purpose = Literal["guide", "draft", "judge", "write", "trial", "answer", "gate"]
"""What a call is for: to give guidance before the first step, to propose candidates, to judge them, to write a step or a
whole thought, to ask for the answer before the thought is over, to answer. A gate makes no calls."""


class StageSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The keys that every stage of a graph file may have, and the capabilities that every kind of stage states."""

    after: Name | tuple[Name, ...] = ()
    """Stages of the same block that come before this one."""
    when: str | None = None
    """`STAGE.accepted` or `STAGE.rejected`: run only after this verdict of an earlier judge. `STAGE.flagged` or `STAGE.passed`: run only if
    an earlier gate flagged the draft, or did not."""

    judges: ClassVar[bool] = False
    """Whether it gives a verdict on candidates, accepted or rejected."""
    gates: ClassVar[bool] = False
    """Whether it flags candidates, or lets them pass, without a call to any engine."""
    writes: ClassVar[bool] = False
    """Whether it commits text to the thought without a verdict."""
    answers: ClassVar[bool] = False
    """Whether it writes the answer that follows the thought."""

    @property
    def kind(self) -> str:
        """The word under `kind` in a graph file."""
        return str(self.__struct_config__.tag)

    @property
    def role(self) -> str | None:
        """The role whose engine it calls; None of a stage that calls none."""
        return None

    @property
    def purpose(self) -> Purpose:
        """What the stage's calls are for; a column of the trace."""
        if self.gates:
            return "gate"
        return "draft" if self.drafts else "judge" if self.judges else "answer" if self.answers else "write"

    @property
    def needs(self) -> Mapping[str, object]:
        """What it asks of its engine that not every engine can do, by the names of the fact `cannot` (`Engine.facts`), with the value of a
        parameter or True."""
        return {}

    @property
    def reads_logprobs(self) -> bool:
        """Whether it reads the log probabilities of the candidates before it, which are requested for it."""
        return False

    @property
    def commits_passed(self) -> bool:
        """Of a gate: whether what passes becomes a step by this stage; else by one that runs when it passes."""
        return self.gates

    @property
    def drafted(self) -> int:
        """How many candidates one run of the stage proposes, which a later stage must judge."""
        return 0

    @property
    def drafts(self) -> bool:
        """Whether it proposes candidates."""
        return self.drafted > 0

    @property
    def may_reject(self) -> bool:
        """Whether it can reject all candidates."""
        return self.judges

    @property
    def finishes(self) -> bool:
        """Whether a chain ends with it."""
        return self.answers

    def flaws(self, before: Mapping[str, "StageSpec"], *, inside_repeat: bool) -> Iterator[tuple[str, str]]:
        """Everything that is wrong with the stage in its graph beyond types and bounds, each as a field and one clause.

        The field is empty where the stage as a whole is wrong. `before` are the stages that it waits for, directly or not, by name.
        """
        yield from ()


def waits_for(spec: StageSpec) -> tuple[str, ...]:
    """The names under `after`."""
    return (spec.after,) if isinstance(spec.after, str) else spec.after


def pending_drafts(before: Mapping[str, StageSpec]) -> int:
    """Candidates that a judge after the stages `before` gets: those drafted last, where others were drafted because earlier ones were
    rejected."""
    again = [spec for spec in before.values() if spec.drafted and spec.when is not None and spec.when.endswith(".rejected")]
    return sum(spec.drafted for spec in again[-1:] or before.values())


class Sampling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sampling of all stages that state nothing else."""

    temperature: Temperature | None = None
    """0: greedy; null: the default of the stage."""
    top_p: TopP | None = None
    """Nucleus sampling; null: off."""
    top_k: TopK | None = None
    """Sample from the k most likely tokens; 0: no limit."""
    min_p: MinP | None = None
    """Minimum probability relative to that of the most likely token; 0: off."""


class CallSpec(StageSpec, frozen=True, kw_only=True):
    """The keys of a stage that calls an engine."""

    engine: Name
    """The role whose engine it calls."""
    adapter: str | None = None
    """LoRA adapter of its calls: a name under `adapters` in the engines file; null: the unmodified model."""

    @property
    def role(self) -> str:
        return self.engine


class SamplingSpec(CallSpec, frozen=True, kw_only=True):
    """The keys of a stage that samples text."""

    temperature: Temperature = 0.6
    """0: greedy."""
    top_p: TopP = 1.0
    """Nucleus sampling: the most likely tokens with this total probability; 1: off."""
    top_k: TopK = 0
    """Sample from the k most likely tokens; 0: no limit."""
    min_p: MinP = 0.0
    """Minimum probability relative to that of the most likely token; 0: off."""

    @property
    def sampling(self) -> dict[str, Any]:
        """These keys as fields of a `Request`."""
        return {name: getattr(self, name) for name in PLAIN_SAMPLING}

    @property
    def needs(self) -> Mapping[str, object]:
        unusual = {name: value for name, value in self.sampling.items() if name != "temperature" and value != PLAIN_SAMPLING[name]}
        return unusual | ({"seeds": True} if self.temperature else {})


class UntilSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stop conditions of a `repeat`: the first that holds ends it. So does the end of the context.

    For `answer_confident` and `answer_stable` the engine of the `answer` stage is asked for a trial answer now and then
    (`prompts.trial`), in at most 20 tokens, which are not kept.
    """

    thought_closed: bool = False
    """Stop when the last step has closed the thought."""
    answer_boxed: bool = False
    """Stop when the thought contains a closed `\\boxed{}`, `Answer:` or `ANSWER:`."""
    repeated: Annotated[int, Meta(ge=0, le=1000)] | None = None
    """Stop when the same step was committed this many times in a row, and the thought has more steps than that; 0: off."""
    max_steps: Count | None = None
    """Stop after this many steps, not counting guidance."""
    token_budget: Tokens | None = None
    """Stop after this many tokens of the thought."""
    answer_confident: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    """Stop when the geometric mean of the probabilities of the trial answer's tokens is at least this (DEER); null: off."""
    answer_stable: Annotated[int, Meta(ge=2, le=1000)] | None = None
    """Stop when the same trial answer was given this many times in a row (Dynasor); null: off."""
    every: Count = 1
    """The interval of trial answers in steps."""

    @property
    def tries(self) -> bool:
        """Whether the answer is asked for before the end."""
        return self.answer_confident is not None or self.answer_stable is not None


class RepeatSpec(StageSpec, frozen=True, kw_only=True, tag="repeat"):
    """A block of stages, repeated until a stop condition holds."""

    until: UntilSpec
    """The stop conditions."""
    speculate: Speculate = "always"
    """`always`: every step is drafted and judged. `never`: the target alone, one request per problem, as in `target.yaml`."""
    stages: dict[Name, StageSpec] = {}
    """The stages of one round."""


class TrialSpec(CallSpec, frozen=True, kw_only=True, tag="trial"):
    """Ask for the answer before the thought is over. No graph file has such a stage: the compiler adds it where an `until` needs it."""

    confidence: bool
    """Whether it is asked how sure the engine is."""

    @property
    def purpose(self) -> Purpose:
        return "trial"

    @property
    def needs(self) -> Mapping[str, object]:
        return {"continues": True} | ({"logprobs": True} if self.confidence else {})


class FunctionJudgeSpec(StageSpec, frozen=True, kw_only=True, tag=False):
    """The keys of a judge that is a function."""

    judges: ClassVar[bool] = True

    kind: str
    """The judge's name."""


class EngineSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="backend"):
    """The keys that every engine of an engines file may have."""

    virtual_time: ClassVar[bool] = False
    """Whether such engines compute on a simulated clock; the whole run then uses it."""
    max_in_flight: Annotated[int, Meta(ge=1, le=65536)] = 64
    """Maximum number of requests sent to the engine at once; the others wait in its client queue."""
    hang_s: PositiveSeconds = 300.0
    """Seconds without progress after which an engine with calls counts as hanging. One that this package started is killed and started
    again; calls to any other time out. Progress is any computation, or an answer of a server. Time in which this process is
    suspended does not count."""
    timeout_s: PositiveSeconds | None = None
    """Seconds after which an attempt at a call times out even if its engine makes progress; time in the engine's own queue counts. Null: no
    limit while the engine makes progress."""
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 0
    """How often a call is sent again after it timed out, the engine was unavailable, or its answer was invalid; then its chain fails.
    Pauses double from half a second to 30 s, or are as long as the engine asks for (`Retry-After`), at most 300 s."""

    @property
    def backend(self) -> str:
        """The word under `backend` in an engines file."""
        return str(self.__struct_config__.tag)

    @property
    def gpus(self) -> tuple[int, ...]:
        """Indices of the GPUs that its engine computes on; on a machine without any it computes on the CPU. Empty: on none."""
        return ()

    @property
    def cannot(self) -> tuple[str, ...]:
        """What no engine of this spec can do though a stage may need it (`StageSpec.needs`), as far as the spec alone tells."""
        return ()


class RestartableSpec(EngineSpec, frozen=True, kw_only=True):
    """The keys that every engine may have which this package starts itself, and so can start again."""

    max_restarts: Annotated[int, Meta(ge=0, le=1000)] = 2
    """How often a session starts the engine again after it died or hung (`hang_s`). Its calls are sent again, which does not count for
    `max_retries`. The next death ends the run."""
    startup_timeout_s: PositiveSeconds = 3600.0
    """Time limit of a start in seconds, including the download of the model."""


class OpenSpec(EngineSpec, frozen=True, kw_only=True, tag="open"):
    """The spec, in a plan, of an engine that the caller of the Python API has opened."""

    model: str = ""
    """A label for the trace."""


def check_reserved(key: str, value: Mapping[str, Any], reserved: Mapping[str, str]) -> None:
    """Raise `ValueError` where the `value` of `key` names one of the `reserved` fields, which hold who sets them."""
    for name in value.keys() & reserved.keys():
        raise ValueError(f"{key} must not hold `{name}`: {reserved[name]}")


class GraphSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a graph file."""

    name: Name
    """Name of the graph: lower-case letters, digits, `-` and `_`."""
    params: dict[Name, Param] = {}
    """Named values: `$NAME` elsewhere in the file inserts one, `--set NAME=VALUE` overrides it."""
    engines: dict[Name, EngineSpec]
    """The engines file that a run without --engines takes: a path relative to this file, or a bundled name."""
    prompts: Prompts = DEFAULT_PROMPTS
    """All texts that the models are given."""
    sampling: Sampling = Sampling()
    """Sampling of all stages that state nothing else."""
    stages: dict[Name, StageSpec] = {}
    """The stages by name, in any order; `after` says what waits for what."""
