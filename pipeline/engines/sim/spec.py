"""The keys that an engines file may hold for an engine `sim`: its device, the model on it, what it writes, and its faults."""

from typing import Annotated

from msgspec import Meta, Struct

from pipeline.graph.spec import Count, RestartableSpec, Tokens


class SimDeviceSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulated accelerator; engines that name the same device share it."""

    name: str
    flops_per_s: Annotated[float, Meta(gt=0)]
    """Rate of dense matrix products that is reached in practice, FLOP/s."""
    bytes_per_s: Annotated[float, Meta(gt=0)]
    """Memory bandwidth that is reached in practice, bytes/s."""
    overhead_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Seconds added to every iteration, for launches, sampling and scheduling."""


class SimTextSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a simulated engine writes: lengths and quality, drawn from the seeds of the run.

    Whether a step is right is decided by a number, uniform in [0, 1): it is if that is below `step_accuracy`. For a share
    `step_correlation` of the steps, picked by problem and step number, the number follows from problem and step number as
    well, so that all candidates are right or wrong together, and where one engine fails every less accurate one does; for
    the others each candidate has a number of its own. Either way a candidate is right with chance a = `step_accuracy`, any two
    agree with correlation c = `step_correlation`, and all of N are wrong with chance c (1 - a) + (1 - c) (1 - a)^N.
    """

    steps_mean: Annotated[float, Meta(gt=0, le=1e5)] = 12.0
    """Mean number of steps of a thought, which is log-normal over the problems; `steps_sigma` is the sigma of its logarithm."""
    steps_sigma: Annotated[float, Meta(ge=0, le=3)] = 0.5
    step_tokens_mean: Annotated[float, Meta(gt=1, le=1e5)] = 40.0
    """Mean number of tokens of a step, which is log-normal over the candidates; `step_tokens_sigma` is the sigma of its logarithm."""
    step_tokens_sigma: Annotated[float, Meta(ge=0, le=3)] = 0.6
    answer_tokens: Tokens = 40
    """Tokens of an answer."""
    step_accuracy: Annotated[float, Meta(ge=0, le=1)] = 0.9
    """Chance that a step this engine writes is right."""
    step_correlation: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Share of the steps that turn out alike for all candidates; 0: candidates fail independently of each other."""
    verifier_accuracy: Annotated[float, Meta(ge=0, le=1)] = 0.95
    """Chance that this engine judges one candidate rightly."""


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
    parameters: Annotated[float, Meta(gt=0, le=1e15)]
    """Number of the model's weights; each costs 2 FLOP a token."""
    bytes_per_parameter: Annotated[float, Meta(gt=0, le=1e15)] = 2.0
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
    text: SimTextSpec = SimTextSpec()
    faults: SimFaultsSpec = SimFaultsSpec()
