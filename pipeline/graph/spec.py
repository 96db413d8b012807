"""The keys of a graph file as frozen, strictly typed Structs, and the base classes of the specs of stages and engines.

The loader decodes YAML into these once; afterwards nothing checks a type or a bound again. Every kind of stage and every
engine backend, built in or of another package, subclasses `StageSpec` or `EngineSpec` where it is implemented. What the
compiler, the trace and the analyses need to know of a stage they learn from the capabilities below, never from its kind.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

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
"""Pattern of the names of graphs, stages, params and roles; the loader checks it (a `Meta(pattern=...)` can crash the
interpreter at its exit: msgspec issue 717)."""
Name = str
AdapterName = Annotated[str, Meta(min_length=1, max_length=64)]
Param = bool | int | float | str | None
Speculate = Literal["always", "never", "auto"]
"""Whether the steps of a loop are speculated: all of them, none (the target alone writes, in one request), or as it pays."""
PLAIN_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""How text is sampled by a model's own distribution."""
Purpose = Literal["guide", "draft", "judge", "write", "answer"]
"""What a call is for: to give the direction before the first step, to propose candidates, to judge them, to write a step or a
whole thought, to answer."""


class StageSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The keys that every stage of a graph file may have, and the capabilities that every kind of stage states."""

    after: Name | tuple[Name, ...] = ()
    """Stages of the same block that must have been applied before this one starts."""
    when: str | None = None
    """`STAGE.accepted` or `STAGE.rejected`: run only on this verdict of an earlier stage that judges."""
    prompts: Prompts | None = None
    """What is said to the model in this stage; None: what the graph says."""
    adapter: str | None = None
    """The adapter that the stage's engine computes its calls with, by its name under `adapters` in the engines file; None: the model as it
    is."""

    drafts: ClassVar[bool] = False
    """Whether it proposes candidates that a later stage must judge."""
    judges: ClassVar[bool] = False
    """Whether it gives a verdict on candidates, accepted or rejected."""
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
        """The engine that this stage calls, by its role in the graph; None of a `repeat`."""
        return getattr(self, "engine", None)

    @property
    def purpose(self) -> Purpose:
        """What the stage's calls are for; a column of the trace."""
        return "draft" if self.drafts else "judge" if self.judges else "answer" if self.answers else "write"

    @property
    def needs(self) -> Mapping[str, object]:
        """What it asks of its engine that not every engine can do, by the names of the fact `cannot` (`Engine.facts`), with the value of a
        parameter or True."""
        return {}

    @property
    def drafted(self) -> int:
        """How many candidates one run of the stage proposes."""
        return 0

    @property
    def leading_steps(self) -> int:
        """How many of the first steps of a `repeat` this stage writes alone."""
        return 0

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


def pending_drafts(before: Mapping[str, StageSpec]) -> int:
    """Candidates that a judge behind the stages `before` gets: those drafted last, where others were drafted because earlier ones were
    rejected."""
    again = [spec for spec in before.values() if spec.drafted and spec.when is not None and spec.when.endswith(".rejected")]
    return sum(spec.drafted for spec in again[-1:] or before.values())


class Sampling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The keys of `SamplingSpec` that stages have in common; None: what its default says."""

    temperature: Temperature | None = None
    """0: greedy. Null: 1, or what the graph says."""
    top_p: TopP | None = None
    """Nucleus sampling. Null: 1 (off), or what the graph says."""
    top_k: TopK | None = None
    """Sample from the k most likely tokens; 0: all."""
    min_p: MinP | None = None
    """Least probability relative to the most likely token; 0: off."""


class SamplingSpec(StageSpec, frozen=True, kw_only=True):
    """The keys of a stage that samples text."""

    temperature: Temperature = 0.6
    """0 is greedy."""
    top_p: TopP = 1.0
    """Only the likeliest tokens are sampled that have this share of the probability together; 1: all."""
    top_k: TopK = 0
    """Only so many of the likeliest tokens are sampled; 0: all."""
    min_p: MinP = 0.0
    """Only tokens are sampled that have at least this share of the probability of the likeliest one; 0: all."""

    @property
    def sampling(self) -> dict[str, Any]:
        """These keys as fields of a `Request`."""
        return {name: getattr(self, name) for name in PLAIN_SAMPLING}

    @property
    def needs(self) -> Mapping[str, object]:
        """See `StageSpec.needs`."""
        unusual = {name: value for name, value in self.sampling.items() if name != "temperature" and value != PLAIN_SAMPLING[name]}
        return unusual | ({"seeds": True} if self.temperature else {})


class UntilSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ends a `repeat`; whichever holds first. Reaching the context length always ends it."""

    thought_closed: bool = False
    """Exit when the last step has closed the thought."""
    answer_boxed: bool = False
    """Exit when the thought contains a closed `\\boxed{}`."""
    repeated: Annotated[int, Meta(ge=0, le=1000)] | None = None
    """Exit when the same step was committed this many times in a row; 0: never."""
    max_steps: Count | None = None
    """Exit when this many steps were committed, guidance not counted."""
    token_budget: Tokens | None = None
    """Exit when this many thought tokens were committed."""


class RepeatSpec(StageSpec, frozen=True, kw_only=True, tag="repeat"):
    """A block of stages, run again and again until an exit holds."""

    until: UntilSpec
    """When the loop ends."""
    speculate: Speculate = "always"
    """`always`: every step is drafted and judged. `never`: the graph is the target's own path, one request a problem, as `target.yaml`
    makes it; nothing is drafted, judged or guided. `auto`: each chain is switched between the two as it pays (`graph/direct.py` says
    for which graphs). Then answers depend on when a chain was switched."""
    stages: dict[Name, StageSpec] = {}
    """The stages of one round."""


class EngineSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="backend"):
    """The keys that every engine of an engines file may have."""

    max_in_flight: Annotated[int, Meta(ge=1, le=65536)] = 64
    """Most requests sent to the engine at once; the others wait in its lane."""
    hang_s: PositiveSeconds = 300.0
    """An engine that has calls and makes no progress for this many seconds hangs: one that this package started is killed and started
    again, and calls to any other, in flight for as long, are given up. Progress is what it computes, whichever call that is for; of a
    server, what arrives from it. Time in which this process is suspended does not count."""
    timeout_s: PositiveSeconds | None = None
    """An attempt at a call that takes longer than this many seconds is given up, also while its engine makes progress; the time in the
    engine's own queue counts, that in which this process is suspended does not. Null: a call may take as long as its engine works."""
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 0
    """Times that a call is sent again after its attempt was given up, the engine was unavailable for the moment, or its answer was
    invalid; after that many its chain fails. Pauses between them double from half a second to 30 s, or are as long as the engine
    asks for (`Retry-After`), but no longer than 300 s."""

    @property
    def backend(self) -> str:
        """The word under `backend` in an engines file."""
        return str(self.__struct_config__.tag)

    @property
    def adapter_names(self) -> Collection[str] | None:
        """The adapters that stages may name, which are those under its key `adapters`, if it has one; None: any, because a recorded run
        tells which calls had one."""
        return tuple(getattr(self, "adapters", ()))

    @property
    def cannot(self) -> tuple[str, ...]:
        """What no engine of this spec can do though a stage may need it (`StageSpec.needs`), as far as the spec alone tells."""
        return ()

    def located(self, folder: Path) -> Self:
        """The spec with absolute paths in place of those that count from `folder`, which is that of the file it stands in."""
        return self


class RestartableSpec(EngineSpec, frozen=True, kw_only=True):
    """The keys that every engine may have which this package starts itself, and so can start again."""

    max_restarts: Annotated[int, Meta(ge=0, le=1000)] = 2
    """Times that the engine is started again after it died or hung (`hang_s`), counted anew once it has been up for an hour; its calls are
    sent again, which `max_retries` does not count. The next death ends the run."""
    startup_timeout_s: PositiveSeconds = 3600.0
    """A start that takes longer than this many seconds, with the download of the model where that is needed, is given up."""


class GraphSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a graph file."""

    name: Name
    """Name of the graph: lower-case letters, digits, - and _."""
    params: dict[Name, Param] = {}
    """Named values; `$NAME` elsewhere in the file takes one, `--set NAME=VALUE` replaces it."""
    engines: str | dict[Name, EngineSpec]
    """The roles: an engines file, by its path from this one or by a bundled name, or the mapping itself."""
    prompts: Prompts = DEFAULT_PROMPTS
    """What is said to the models."""
    sampling: Sampling = Sampling()
    """How text is sampled by stages that do not say otherwise."""
    stages: dict[Name, StageSpec] = {}
    """The stages by name, in any order: `after` says what waits for what."""
