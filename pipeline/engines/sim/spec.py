"""The keys that an engines file may hold for an engine `sim`: its device, the model on it, what it writes, and its faults."""

from pathlib import Path
from typing import Annotated, Literal, Self

from msgspec import Meta, Struct
from msgspec.structs import force_setattr, replace

from pipeline.engines.sim.lengths import MOST, PRESETS, Distribution, Preset, SimLengthsSpec, distribution, log_normal
from pipeline.graph.spec import AdapterName, Count, RestartableSpec, Tokens

_DEFAULTS = {"steps": {"steps_mean": 12.0, "steps_sigma": 0.5}, "step_tokens": {"step_tokens_mean": 40.0, "step_tokens_sigma": 0.6}}
"""The keys of a length, and the values that hold where nothing else gives it; named as in `SimLengthsSpec`."""


class SimDeviceSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulated accelerator; engines that name the same device share it."""

    name: str
    """Engines that name the same device share it."""
    flops_per_s: Annotated[float, Meta(gt=0)]
    """Rate of dense matrix products that is reached in practice, FLOP/s."""
    bytes_per_s: Annotated[float, Meta(gt=0)]
    """Memory bandwidth that is reached in practice, bytes/s."""
    overhead_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Seconds added to every iteration, for launches, sampling and scheduling."""
    sharing: Literal["time_slices", "mps"] = "time_slices"
    """How engines that are busy at the same time share it. `time_slices`, as processes on one GPU do: whole iterations take turns, so
    that of k engines each runs at 1/k of its rate. `mps`, as under CUDA MPS: kernels run side by side and share bandwidth and multipliers
    in proportion to what each takes alone, while `overhead_s` runs beside."""
    sharing_efficiency: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of these rates that is reached while two or more engines are busy: a factor to measure."""
    fit_error: Annotated[float, Meta(ge=0)] | None = None
    """How far the times of calls are from those that these rates were fitted to, by `pipeline calibrate`: the mean of |ln|. Null: they
    were not fitted."""


class SimTextSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a simulated engine writes: lengths and quality, drawn from the seeds of the run.

    Lengths of thoughts and steps are log-normal by the keys `steps_*` and `step_tokens_*`, or those of a `preset`, a file or a recorded
    run (`lengths`). One length has one source: a key beside a preset or a file that gives the same length is refused.

    Whether a step is right is decided by a number, uniform in [0, 1): it is if that is below `step_accuracy`. For a share
    `step_correlation` of the steps, picked by problem and step number, the number follows from problem and step number as
    well, so that all candidates are right or wrong together, and where one engine fails every less accurate one does; for
    the others each candidate has a number of its own. Either way a candidate is right with chance a = `step_accuracy`, any two
    agree with correlation c = `step_correlation`, and all of N are wrong with chance c (1 - a) + (1 - c) (1 - a)^N.

    With `difficulty: beta` every step has a chance of being right, the same for all candidates of an engine, which is beta-distributed over
    the steps with mean a and the parameters a (1/c - 1) and (1 - a) (1/c - 1). Any two candidates agree with correlation c here as well,
    and a step that is hard for one engine is hard for all. Five drafts of each of 500 problems of GSM8K, published with SCoT: 92, 81, 63,
    95, 81 and 88 problems have none to five right, which is a beta with both parameters near 1 (0.88 fits best; a = 0.50, c = 0.36).
    """

    preset: Preset | None = None
    """Lengths as measured on texts of reasoning models: see `lengths.PRESETS`."""
    lengths: str | SimLengthsSpec | None = None
    """A file that holds a `SimLengthsSpec`, or the folder of a recorded run whose lengths are taken. A relative path counts from the folder
    of the engines file, or where it is not there from the working folder. A plan holds what was read."""
    steps_mean: Annotated[float, Meta(gt=0, le=1e5)] | None = None
    """Mean number of steps of a thought, which is log-normal over the problems; 12 where nothing else gives it. `steps_sigma`, 0.5, is the
    sigma of its logarithm."""
    steps_sigma: Annotated[float, Meta(ge=0, le=3)] | None = None
    """Standard deviation of the logarithm of the number of steps."""
    step_tokens_mean: Annotated[float, Meta(gt=1, le=1e5)] | None = None
    """Mean number of tokens of a step, which is log-normal over the candidates; 40 where nothing else gives it. `step_tokens_sigma`, 0.6,
    is the sigma of its logarithm."""
    step_tokens_sigma: Annotated[float, Meta(ge=0, le=3)] | None = None
    """Standard deviation of the logarithm of a step's length."""
    answer_tokens: Tokens = 40
    """Tokens of an answer."""
    step_accuracy: Annotated[float, Meta(ge=0, le=1)] = 0.9
    """Chance that a step this engine writes is right."""
    difficulty: Literal["mixture", "beta"] = "mixture"
    """How being right is correlated within a step: a share of the steps turns out alike for all candidates, or each step has a chance."""
    step_correlation: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Correlation of being right between two candidates of a step; 0: candidates fail independently of each other."""
    verifier_accuracy: Annotated[float, Meta(ge=0, le=1)] = 0.95
    """Chance that this engine judges one candidate rightly."""

    def __post_init__(self) -> None:
        """Raise `ValueError` where one length has two sources; fill in the defaults where it has none."""
        if self.preset is not None and self.lengths is not None:
            raise ValueError("`preset` and `lengths` both say how long thoughts are; drop one")
        if isinstance(self.lengths, str):
            return  # which lengths it gives is known once it is read
        for part, defaults in _DEFAULTS.items():
            source = self._source(part)
            for key, value in defaults.items():
                if source is None and getattr(self, key) is None:
                    force_setattr(self, key, value)
                elif source is not None and getattr(self, key) is not None:
                    raise ValueError(f"`{source}` and `{key}` both give `{part}`; drop one, or set it to null")

    @property
    def measured(self) -> bool:
        """Whether lengths are those of a preset, a file or a recorded run."""
        return self.preset is not None or self.lengths is not None

    def distribution(self, part: Literal["steps", "step_tokens"]) -> Distribution:
        """The distribution of the steps of a thought, or of the tokens of a step. `lengths` must have been read."""
        assert not isinstance(self.lengths, str), "lengths are read before an engine opens"
        measured = PRESETS[self.preset] if self.preset is not None else self.lengths
        values = getattr(measured, part, None)
        if values is not None:
            return distribution(values, MOST[part])
        mean, sigma = (getattr(self, key) for key in _DEFAULTS[part])
        return log_normal(mean, sigma)

    def _source(self, part: str) -> str | None:
        """The key that gives a length; None where the keys of `_DEFAULTS` do."""
        if self.preset is not None:
            return "preset"
        return "lengths" if getattr(self.lengths, part, None) is not None else None


class SimSpeculativeSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token-level speculation inside a simulated engine, with a stated acceptance: it changes the time and never the text.

    An iteration verifies the last token and those proposed after it for every sequence, so that it computes `num_speculative_tokens` + 1
    tokens of each. The draft computes one token of every sequence for each token proposed, and every prompt once, on the same device.
    """

    num_speculative_tokens: Annotated[int, Meta(ge=1, le=64)] = 5
    """Tokens proposed at a time."""
    acceptance: Annotated[float, Meta(ge=0, le=1)]
    """Chance that a proposed token is accepted, where those before it are."""
    parameters: Annotated[float, Meta(ge=0, le=1e15)] = 0.0
    """Number of the draft's weights; 0: proposing costs nothing but `overhead_s`, as with n-grams."""
    bytes_per_parameter: Annotated[float, Meta(gt=0, le=1e15)] = 2.0
    """Bytes of a weight of the drafting model."""
    kv_bytes_per_token: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    """Bytes of the draft's keys and values of one token over all layers; `kv_cache_tokens` is to leave room for them."""
    overhead_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Seconds added for each token proposed."""


class SimFaultsSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a simulated engine fails, to try out what a run does then. Without these it never fails."""

    dies_after_calls: Count | None = None
    """It dies at the call after this many; once restarted it counts from 0."""
    hangs_after_calls: Count | None = None
    """It computes nothing more from the call after this many on; once restarted it counts from 0."""
    garbage_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Share of the attempts that get an invalid answer, drawn by request id, seed and attempt."""


class SimSpec(RestartableSpec, frozen=True, kw_only=True, tag="sim"):
    """A simulated model that takes the time that a roofline gives and writes seeded text, on virtual time."""

    model: str
    """The model's name in the trace; the seeded text depends on it."""
    device: SimDeviceSpec
    """The accelerator that is simulated."""
    parameters: Annotated[float, Meta(gt=0, le=1e15)]
    """Number of the model's weights; each costs 2 FLOP a token."""
    bytes_per_parameter: Annotated[float, Meta(gt=0, le=1e15)] = 2.0
    """Bytes of a weight."""
    kv_bytes_per_token: Annotated[float, Meta(ge=0, le=1e12)]
    """Bytes of the keys and values of one token over all layers."""
    kv_cache_tokens: Annotated[int, Meta(ge=1, le=1_000_000_000_000)] = 1_000_000
    """Tokens whose keys and values fit into the cache."""
    max_num_seqs: Annotated[int, Meta(ge=1, le=1_000_000)] = 256
    """Most sequences computed together."""
    max_num_batched_tokens: Annotated[int, Meta(ge=16, le=1_000_000_000)] = 8192
    """Most tokens computed in one iteration."""
    max_model_len: Annotated[int, Meta(ge=16, le=1_000_000_000)] = 32768
    """Context length in tokens."""
    speculative: SimSpeculativeSpec | None = None
    """Token-level speculation within the engine; null: none."""
    adapters: tuple[AdapterName, ...] = ()
    """Names of adapters that stages may ask for; one changes neither the text nor its costs, but shares no cached prefix with another, or
    with the model as it is."""
    text: SimTextSpec = SimTextSpec()
    """Lengths and quality of what is written."""
    faults: SimFaultsSpec = SimFaultsSpec()
    """Faults that are injected."""

    def located(self, folder: Path) -> Self:
        """See `EngineSpec.located`."""
        if not isinstance(self.text.lengths, str):
            return self
        beside = folder / self.text.lengths
        path = beside if beside.exists() else Path(self.text.lengths)
        return replace(self, text=replace(self.text, lengths=str(path.absolute())))
