"""The keys that an engines file may hold for an engine `sim`: its device, the model on it, and what it writes."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from pipeline.engines.sim.lengths import PRESETS, Distribution, Preset, log_normal
from pipeline.graph.spec import AdapterName, RestartableSpec, Tokens

KERNEL_WAIT = 0.55
"""The default of `kernel_wait`: what fits the measured times under CUDA MPS of `bench/results/gpu-*.json` best (`bench/sharing.py`)."""


class SimDeviceSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulated accelerator; engines that name the same device share it."""

    name: str
    """Engines that name the same device share it."""
    flops_per_s: Annotated[float, Meta(gt=0)]
    """Rate of dense matrix products reached in practice, FLOP/s."""
    prompt_flops_per_s: Annotated[float, Meta(gt=0)] | None = None
    """The same for tokens of prompts, many of which are computed together; null: no other."""
    bytes_per_s: Annotated[float, Meta(gt=0)]
    """Memory bandwidth reached in practice, bytes/s."""
    overhead_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Seconds added to every iteration, for launches, sampling and scheduling."""
    sequence_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Seconds added to an iteration for each sequence that it continues."""
    sharing: Literal["time_slices", "mps"] = "time_slices"
    """How engines that are busy at the same time share it. `time_slices`: whole iterations take turns, `overhead_s` included, so each of k
    engines runs at 1/k of its rate. `mps`, as under CUDA MPS: kernels of different engines overlap and wait for each other (`kernel_wait`).
    bench/calibration.md has the error of each on a measured H200."""
    kernel_wait: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Under `mps`, for what share of one kernel of each other busy engine a kernel waits, on average; 0: none waits, 1: they alternate.
    An engine's kernels are as long as its iterations over its `layers`. Null: 0.55, fitted to two decoders without fused kernels on
    one H200; two runs of vLLM there lie between 0.1 and 0.55 (bench/calibration.md)."""
    fit_error: Annotated[float, Meta(ge=0)] | None = None
    """How well `pipeline calibrate` could fit these rates: the mean of |ln| of simulated over recorded times of calls. Null: not fitted."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a `kernel_wait` that would not count."""
        if self.kernel_wait is not None and self.sharing != "mps":
            raise ValueError(f"`kernel_wait` is for `sharing: mps`, here it is `{self.sharing}`; drop it")

    @property
    def waits_for(self) -> float | None:
        """The share of a kernel of another engine for which a kernel waits; None where iterations take turns."""
        return (KERNEL_WAIT if self.kernel_wait is None else self.kernel_wait) if self.sharing == "mps" else None


class SimTextSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a simulated engine writes: lengths and quality, drawn from the seeds of the run.

    A step is correct if a number, uniform in [0, 1), is below `step_accuracy`. For a share `step_correlation` of the steps, picked by
    problem and step number, all candidates have the same number, so they are all correct or all wrong, and if one engine fails, every
    less accurate one does; for the other steps each candidate has its own. Either way a candidate is correct with probability
    a = `step_accuracy`, any two agree with correlation c = `step_correlation`, and all of N are wrong with probability
    c (1 - a) + (1 - c) (1 - a)^N. One wrong step spoils the answer.
    """

    preset: Preset | None = None
    """Lengths measured on texts of reasoning models, for those of steps and thoughts below."""
    steps_mean: Annotated[float, Meta(gt=0, le=1e5)] = 12.0
    """Mean number of steps of a thought at `verbosity` 1, log-normal over the problems."""
    steps_sigma: Annotated[float, Meta(ge=0, le=3)] = 0.5
    """Standard deviation of the logarithm of that number."""
    step_tokens_mean: Annotated[float, Meta(gt=1, le=1e5)] = 40.0
    """Mean number of tokens of a step, log-normal over the candidates; no step has fewer than 3."""
    step_tokens_sigma: Annotated[float, Meta(ge=0, le=3)] = 0.6
    """Standard deviation of the logarithm of that number."""
    answer_tokens: Tokens = 40
    """Number of tokens of an answer; boxed from 7 on."""
    verbosity: Annotated[float, Meta(ge=1, le=100)] = 1.0
    """How many times as many steps a thought of this engine alone has, on average, as at 1. A step covers ground with probability
    1 / `verbosity`, drawn for each candidate and whether it is correct or not; after any other, such as a second thought, as much is left
    as before. Of the candidates that it takes for right, a judge prefers those that cover ground."""
    step_accuracy: Annotated[float, Meta(ge=0, le=1)] = 0.9
    """Probability that a step of this engine is correct."""
    step_correlation: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Correlation between two candidates of a step, in whether they are correct and in the logarithms of their lengths; 0: independent."""
    verifier_accuracy: Annotated[float, Meta(ge=0, le=1)] = 0.95
    """Probability that this engine judges a candidate correctly, each by itself, so that of more wrong ones more are accepted."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a length that a preset already sets."""
        for part in ("steps", "step_tokens"):
            for key in (f"{part}_mean", f"{part}_sigma"):
                if self.preset is not None and getattr(self, key) != _DEFAULTS[key]:
                    raise ValueError(f"`preset` and `{key}` both set `{part}`; drop one")

    def distribution(self, part: Literal["steps", "step_tokens"]) -> Distribution:
        """The distribution of the steps of a thought, or of the tokens of a step."""
        if self.preset is not None:
            return PRESETS[self.preset][part]
        return log_normal(getattr(self, f"{part}_mean"), getattr(self, f"{part}_sigma"))


_DEFAULTS = dict(zip(SimTextSpec.__struct_fields__, SimTextSpec.__struct_defaults__, strict=True))
Probability = Annotated[float, Meta(ge=0, le=1)]
Layers = Annotated[int, Meta(ge=1, le=1_000_000)]


class SimSpeculativeSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token-level speculation inside a simulated engine, with a stated acceptance. It changes times, never texts.

    An iteration verifies the last token of every sequence and those proposed after it: `num_speculative_tokens` + 1 tokens. The draft
    computes one token of every sequence for each token proposed, and every prompt once, on the same device. What a roofline leaves out of
    the costs, `verification_s` and `overlap`, is fitted to printed speeds (bench/calibration.md).
    """

    num_speculative_tokens: Annotated[int, Meta(ge=1, le=64)] = 5
    """Tokens proposed at a time."""
    acceptance: Probability | Annotated[tuple[Probability, ...], Meta(min_length=1, max_length=64)]
    """Probability that a proposed token is accepted if those before it are: one for all, or one for each position; the last one counts for
    all further positions."""
    acceptance_sigma: Annotated[float, Meta(ge=0, le=3)] = 0.0
    """How much texts differ: the standard deviation over the candidates of the log odds of acceptance, whose mean over candidates is
    lower than what `acceptance` says of the candidate in the middle."""
    proposed_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of the iterations in which a sequence has a proposal: n-grams that never occurred before propose nothing. It says what
    verification costs; `acceptance` counts all iterations."""
    parameters: Annotated[float, Meta(ge=0, le=1e15)] = 0.0
    """Number of parameters of the drafting model; 0: proposing costs only `overhead_s`, as with n-grams."""
    bytes_per_parameter: Annotated[float, Meta(gt=0, le=1e15)] = 2.0
    """Bytes per parameter of the drafting model."""
    layers: Layers | None = None
    """Layers of the drafting model, an EAGLE head has one; null: as of a model with as many parameters."""
    kv_bytes_per_token: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    """Bytes per token of the drafting model's KV cache; `kv_cache_tokens` must leave room for them."""
    overhead_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Seconds added per proposed token: launches and sampling of one pass of the draft."""
    verification_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Seconds added per iteration: preparing what is verified, and rejection sampling."""
    overlap: Probability = 1.0
    """Share of the arithmetic of proposed tokens that the memory traffic of an iteration hides; 1: all that fits, as in a roofline."""

    def accepted_at(self, position: int) -> float:
        """The acceptance of the proposed token at `position`, from 0, of the candidate in the middle."""
        if isinstance(self.acceptance, tuple):
            return self.acceptance[min(position, len(self.acceptance) - 1)]
        return self.acceptance


class SimSpec(RestartableSpec, frozen=True, kw_only=True, tag="sim"):
    """A simulated model on a virtual clock: times from a roofline, seeded text."""

    model: str
    """Name of the model in the trace; the seeded text depends on it."""
    device: SimDeviceSpec
    """The simulated accelerator."""
    parameters: Annotated[float, Meta(gt=0, le=1e15)]
    """Number of parameters; each costs 2 FLOP per token."""
    bytes_per_parameter: Annotated[float, Meta(gt=0, le=1e15)] = 2.0
    """Bytes per parameter."""
    layers: Layers | None = None
    """Layers of the model; null: as many as dense transformers with as many parameters have. They only count under `sharing: mps`, where
    an iteration divides into as many kernels."""
    kv_bytes_per_token: Annotated[float, Meta(ge=0, le=1e12)]
    """Bytes per token of the KV cache, over all layers."""
    kv_cache_tokens: Annotated[int, Meta(ge=1, le=1_000_000_000_000)] = 1_000_000
    """Size of the KV cache in tokens."""
    max_num_seqs: Annotated[int, Meta(ge=1, le=1_000_000)] = 256
    """Maximum number of sequences computed together."""
    max_num_batched_tokens: Annotated[int, Meta(ge=16, le=1_000_000_000)] = 8192
    """Maximum number of tokens computed in one iteration."""
    max_model_len: Annotated[int, Meta(ge=16, le=1_000_000_000)] = 32768
    """Context length in tokens."""
    speculative: SimSpeculativeSpec | None = None
    """Token-level speculation inside the engine; null: none."""
    adapters: tuple[AdapterName, ...] = ()
    """Names of adapters that stages may use. They change neither texts nor times, but share no cached prefix with each other or with the
    unmodified model."""
    text: SimTextSpec = SimTextSpec()
    """Lengths and accuracy of what it writes."""
    replay: str | None = None
    """Folder of a recorded run: the engine answers what that of its role said there, instead of a `text`, and only what it was asked."""

    @property
    def tokenizer_name(self) -> None:
        return None
