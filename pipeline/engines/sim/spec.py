"""What an engines file may say of an engine `sim`: the device, the model on it, what it writes, and what goes wrong."""

from typing import Annotated

from msgspec import Meta, Struct

from pipeline.graph.spec import Count, RestartableSpec, Tokens


class SimDeviceSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulated accelerator; engines that name the same device share it."""

    name: str
    flops_per_s: Annotated[float, Meta(gt=0)]
    """Dense matrix rate that is reached in practice, FLOP/s."""
    bytes_per_s: Annotated[float, Meta(gt=0)]
    """Memory bandwidth that is reached in practice, bytes/s."""
    overhead_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Added to every iteration: launches, sampling, scheduling."""


class SimTextSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a simulated engine writes: lengths and quality, drawn from the seeds of the run.

    Whether a step is right is decided by a number, uniform in [0, 1): it is if that is below `step_accuracy`. For a share
    `step_correlation` of the steps, picked by problem and step number, the number follows from problem and step number as
    well, so that all candidates are right or wrong together, and where one engine fails every less accurate one does; for
    the others each candidate has a number of its own. Either way a candidate is right with chance a = `step_accuracy`, any two
    agree with correlation c = `step_correlation`, and all of N are wrong with chance c (1 - a) + (1 - c) (1 - a)^N.
    """

    steps_mean: Annotated[float, Meta(gt=0, le=1e5)] = 12.0
    """Steps of a thought: log-normal over the problems, mean and sigma."""
    steps_sigma: Annotated[float, Meta(ge=0, le=3)] = 0.5
    step_tokens_mean: Annotated[float, Meta(gt=1, le=1e5)] = 40.0
    """Tokens of a step: log-normal over the candidates, mean and sigma."""
    step_tokens_sigma: Annotated[float, Meta(ge=0, le=3)] = 0.6
    answer_tokens: Tokens = 40
    step_accuracy: Annotated[float, Meta(ge=0, le=1)] = 0.9
    """Chance that a step this engine writes is right."""
    step_correlation: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Share of the steps that turn out alike for all candidates; 0: candidates fail independently of each other."""
    verifier_accuracy: Annotated[float, Meta(ge=0, le=1)] = 0.95
    """Chance that this engine judges one candidate rightly."""


class SimFaultsSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a simulated engine fails, for drills. It never fails by itself."""

    dies_after_calls: Count | None = None
    """It dies at the call after these; once started again it counts from 0."""
    hangs_after_calls: Count | None = None
    """It computes nothing more from the call after these on; once started again it counts from 0."""
    garbage_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Share of the attempts that are answered with what is no answer, drawn by the call's name and attempt."""


class SimSpec(RestartableSpec, frozen=True, kw_only=True, tag="sim"):
    """A model that costs what a roofline says and writes seeded text, on virtual time."""

    model: str
    """A label for the trace."""
    device: SimDeviceSpec
    parameters: Annotated[float, Meta(gt=0, le=1e15)]
    """Weights of the model; each costs 2 FLOP a token."""
    bytes_per_parameter: Annotated[float, Meta(gt=0, le=1e15)] = 2.0
    kv_bytes_per_token: Annotated[float, Meta(ge=0, le=1e12)]
    """Keys and values of one token over all layers, bytes."""
    kv_cache_tokens: Annotated[int, Meta(ge=1)] = 1_000_000
    """Tokens whose keys and values fit."""
    max_num_seqs: Annotated[int, Meta(ge=1)] = 256
    max_num_batched_tokens: Annotated[int, Meta(ge=16)] = 8192
    max_model_len: Annotated[int, Meta(ge=16)] = 32768
    text: SimTextSpec = SimTextSpec()
    faults: SimFaultsSpec = SimFaultsSpec()
