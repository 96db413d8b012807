"""The keys that an engines file may hold for an engine `sim`: its device, the model on it, and what it writes."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from pipeline.graph.spec import AdapterName, RestartableSpec, Tokens

Preset = Literal["gsm8k", "math"]
"""The names of `PRESETS`."""
MAX_LENGTHS = {"steps": 10_000, "step_tokens": 100_000}
"""The maximum number of steps of a thought, and of tokens of a step, where the lengths are measured ones."""
Distribution = Callable[[float], float]
"""The length for a standard normal draw: the greater the draw, the greater the length."""


def quantiles(values: Mapping[float, float], most: float) -> Distribution:
    """The distribution with these `values` by their percentiles, in order: between two of them, and beyond the outermost, the logarithm of
    a length is linear in the normal score of its share. 0 and 100 bound it; no length is above `most`."""
    bounds = math.log(values.get(0, 1.0)), math.log(values.get(100, most))
    inner = {NormalDist().inv_cdf(percent / 100): math.log(value) for percent, value in values.items() if 0 < percent < 100}
    normals, logs = tuple(inner), tuple(inner.values())

    def at(normal: float) -> float:
        place = min(max(bisect_left(normals, normal), 1), len(normals) - 1)
        share = (normal - normals[place - 1]) / (normals[place] - normals[place - 1])
        return math.exp(min(max(logs[place - 1] + share * (logs[place] - logs[place - 1]), bounds[0]), bounds[1]))

    return at


PRESETS: dict[Preset, dict[str, dict[float, float]]] = {
    # The 1,500 thoughts of R1-Distill-Qwen-32B about GSM8K's training problems that were published with SCoT, cut at blank lines: 8.7 steps
    # on average with a ln sigma of 0.72, and 137 characters a step with 0.90. The longest thoughts are loops.
    "gsm8k": {
        "steps": {0: 1, 1: 2, 5: 3, 25: 3, 50: 4, 75: 5, 90: 11, 95: 26, 98: 43, 99: 64, 99.5: 166, 99.9: 584, 100: 1102},
        "step_tokens": {1: 4, 5: 5, 10: 9, 25: 21, 50: 41, 75: 68, 90: 97, 95: 117, 99: 159, 99.9: 224, 100: 483},
    },
    # 332 thoughts of R1-Distill-Qwen-14B about MATH-500, cut near 8,600 characters: 4,760 characters and 42.8 steps on average, a step of
    # 109 characters on average and 71 in the median, ln sigma 1.00. The steps are log-normal with GSM8K's ln sigma of 0.7, assumed, and
    # have this mean once they are cut there; uncut it is 51.
    "math": {"steps": {10: 16.1, 90: 96.9}, "step_tokens": {10: 6.5, 50: 25.4, 90: 84.4}},
}
"""Percentiles of measured lengths by name. A token is taken for 2.8 characters: an evaluation of R1-Distill-Qwen-32B over several sets of
mathematical problems printed 7,886 characters and 2,849 tokens a thought. Of tokens per step, p10 and p90 of `math` are those at which
mean and ln sigma come out as measured."""

KERNEL_WAIT = 0.55
"""Under CUDA MPS, for what share of one kernel of each other busy engine a kernel waits, on average: what fits the measured times of
`bench/results/gpu-*.json` best (`bench/sharing.py`), of two decoders without fused kernels on one H200. Two runs of vLLM there lie between
0.1 and 0.55."""


class SimDeviceSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulated accelerator; engines that name the same device share it."""

    name: str
    """Engines that name the same device share it."""
    flops_per_s: Annotated[float, Meta(gt=0)]
    """Rate of dense matrix products reached in practice, FLOP/s."""
    bytes_per_s: Annotated[float, Meta(gt=0)]
    """Memory bandwidth reached in practice, bytes/s."""
    overhead_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Seconds added to every iteration, for launches, sampling and scheduling."""
    sequence_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Seconds added to an iteration for each sequence that it continues."""
    sharing: Literal["time_slices", "mps"] = "time_slices"
    """How engines that are busy at the same time share it. `time_slices`: whole iterations take turns, `overhead_s` included, so each of k
    engines runs at 1/k of its rate. `mps`, as under CUDA MPS: kernels of different engines overlap and wait for each other, those of an
    engine being as long as its iterations over its `layers`. bench/calibration.md has the error of each on a measured H200."""
    fit_error: Annotated[float, Meta(ge=0)] | None = None
    """How well `pipeline calibrate` could fit these rates: the mean of |ln| of simulated over recorded times of calls. Null: not fitted."""


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
        defaults = dict(zip(self.__struct_fields__, self.__struct_defaults__, strict=True))
        for key in ("steps_mean", "steps_sigma", "step_tokens_mean", "step_tokens_sigma"):
            if self.preset is not None and getattr(self, key) != defaults[key]:
                raise ValueError(f"`preset` and `{key}` both set `{key.rpartition('_')[0]}`; drop one")

    def distribution(self, part: Literal["steps", "step_tokens"]) -> Distribution:
        """The distribution of the steps of a thought, or of the tokens of a step."""
        if self.preset is not None:
            return quantiles(PRESETS[self.preset][part], MAX_LENGTHS[part])
        sigma = getattr(self, f"{part}_sigma")
        log_mean = math.log(getattr(self, f"{part}_mean")) - sigma * sigma / 2
        return lambda normal: math.exp(log_mean + sigma * normal)


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
    layers: Layers = 1
    """Layers of the drafting model, an EAGLE head has one."""
    kv_bytes_per_token: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    """Bytes per token of the drafting model's KV cache; `kv_cache_tokens` must leave room for them."""
    overhead_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Seconds added per proposed token: launches and sampling of one pass of the draft."""
    verification_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Seconds added per iteration: preparing what is verified, and rejection sampling."""
    overlap: Probability = 1.0
    """Share of the arithmetic of proposed tokens that the memory traffic of an iteration hides; 1: all that fits, as in a roofline."""


class SimSpec(RestartableSpec, frozen=True, kw_only=True, tag="sim"):
    """A simulated model on a virtual clock: times from a roofline, seeded text."""

    virtual_time: ClassVar[bool] = True
    model: str
    """Name of the model in the trace; the seeded text depends on it."""
    device: SimDeviceSpec
    """The simulated accelerator."""
    parameters: Annotated[float, Meta(gt=0, le=1e15)]
    """Number of parameters; each costs 2 FLOP per token."""
    bytes_per_parameter: Annotated[float, Meta(gt=0, le=1e15)] = 2.0
    """Bytes per parameter."""
    layers: Layers = 32
    """Layers of the model. They only count under `sharing: mps`, where an iteration divides into as many kernels."""
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
