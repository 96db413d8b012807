"""All that a graph file or an engines file may say, as frozen, strictly typed Structs.

The loader decodes YAML into these once; afterwards nobody checks a type or a bound again. Stage kinds and engine
backends of other packages subclass `StageSpec` and `EngineSpec` and register through entry points.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

Temperature = Annotated[float, Meta(ge=0.0, le=5.0)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
Tokens = Annotated[int, Meta(ge=1, le=1_000_000)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
PositiveSeconds = Annotated[float, Meta(gt=0.0)]
NAME_PATTERN = r"^[a-z][a-z0-9_-]{0,63}$"
"""Of graphs, stages, params and roles; the loader checks it (a `Meta(pattern=...)` can crash the interpreter at its
exit: msgspec issue 717)."""
Name = str
Param = bool | int | float | str


class StageSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What every stage may say."""

    after: Name | tuple[Name, ...] = ()
    """Stages of the same block that must have been applied before this one starts."""
    when: str | None = None
    """`STAGE.accepted` or `STAGE.rejected`: run only on this verdict of an earlier stage that judges."""

    drafts: ClassVar[bool] = False
    """Proposes candidates that a later stage must judge."""
    judges: ClassVar[bool] = False
    """Gives a verdict on candidates, accepted or rejected."""
    writes: ClassVar[bool] = False
    """Commits text to the thought by itself."""
    answers: ClassVar[bool] = False
    """Finishes the chain."""


class GenerateSpec(StageSpec, frozen=True, kw_only=True, tag="generate"):
    """One engine writes: guidance (SpecCoT eq. 2), a fallback step (eq. 5), a whole thought or a whole response."""

    engine: Name
    unit: Literal["tokens", "step", "thought", "response"]
    """`tokens`: `max_tokens` of them, across lines, unless the thought ends before; `step`: to a blank line; `thought`:
    to `</think>`; `response`: to the end."""
    max_tokens: Annotated[int, Meta(ge=0, le=1_000_000)]
    """0, of `unit: tokens` alone: the stage does nothing, and leaves no call and no step (SpecCoT 4.3: no guidance)."""
    temperature: Temperature = 0.6
    top_p: TopP = 1.0
    first_steps: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """In a `repeat`: this stage alone writes the first n steps (SpecReason 4.1, second knob)."""

    writes: ClassVar[bool] = True


class DraftSpec(StageSpec, frozen=True, kw_only=True, tag="draft"):
    """Propose candidates for the next step, or for the whole thought (SpecCoT eq. 3, SCoT eq. 1)."""

    engine: Name
    unit: Literal["step", "thought"] = "step"
    candidates: Annotated[int, Meta(ge=1, le=35)] = 5
    max_tokens: Tokens
    temperature: Temperature = 0.6
    top_p: TopP = 1.0

    drafts: ClassVar[bool] = True


class ChooseSpec(StageSpec, frozen=True, kw_only=True, tag="choose"):
    """One token names the best candidate, or 0 for none (SpecCoT eq. 4, SCoT eq. 3)."""

    engine: Name
    unit: Literal["step", "thought"] = "step"
    """What is drafted, and so how the question is worded: candidates for the next step, or for the whole thought (SCoT 3.4)."""
    reject: bool = True
    """false: 0 is not offered and one of the candidates is always accepted (best of N; SCoT 4.3, without error correction)."""

    judges: ClassVar[bool] = True


class ScoreSpec(StageSpec, frozen=True, kw_only=True, tag="score"):
    """One token, 0 to 9, rates the only candidate; it is accepted from `threshold` on (SpecReason 4.1)."""

    engine: Name
    threshold: Annotated[float, Meta(ge=0.0, le=9.0)] = 7.0
    method: Literal["greedy", "expected"] = "greedy"
    """`greedy`: the likeliest digit; `expected`: the mean over the ten digits' probabilities."""

    judges: ClassVar[bool] = True


class LikelihoodSpec(StageSpec, frozen=True, kw_only=True, tag="likelihood"):
    """A candidate's own log probability under the engine, with no question asked; the likeliest one is accepted from
    `threshold` on. SpecReason 4.1 names log probabilities as future work."""

    engine: Name
    threshold: Annotated[float, Meta(le=0.0)] = -0.5
    """Nats per token."""
    statistic: Literal["mean", "minimum"] = "mean"
    """`mean`: over the candidate's tokens; `minimum`: of its least likely token, so that one wrong number is enough."""

    judges: ClassVar[bool] = True


class AnswerSpec(StageSpec, frozen=True, kw_only=True, tag="answer"):
    """Close the thought and write the answer; the chain is finished then."""

    engine: Name
    max_tokens: Tokens = 1024
    temperature: Temperature = 0.6
    top_p: TopP = 1.0

    answers: ClassVar[bool] = True


class UntilSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ends a `repeat`; whichever holds first. Reaching the context length always ends it."""

    thought_closed: bool = False
    """The last step closed the thought."""
    answer_boxed: bool = False
    """The thought contains a closed `\\boxed{}`."""
    repeated: Annotated[int, Meta(ge=2, le=1000)] | None = None
    """The same step was committed this many times in a row."""
    max_steps: Count | None = None
    """This many steps were committed, guidance not counted."""
    token_budget: Tokens | None = None
    """This many thought tokens were committed."""


class RepeatSpec(StageSpec, frozen=True, kw_only=True, tag="repeat"):
    """A block of stages, run again and again until an exit holds."""

    until: UntilSpec
    stages: dict[Name, StageSpec] = {}


class EngineSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="backend"):
    """What every engine may say."""

    max_in_flight: Annotated[int, Meta(ge=1, le=65536)] = 64
    """Most requests sent to the engine at once; the others wait in its lane."""
    timeout_s: PositiveSeconds = 600.0
    """An attempt at a call that takes longer is given up."""
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 0
    """Times that a call is sent again when its attempt timed out, or the engine could not answer for the moment or answered
    with what is no answer; then its chain fails."""


class RestartableSpec(EngineSpec, frozen=True, kw_only=True):
    """What every engine may say that this package starts, and can start again."""

    max_restarts: Annotated[int, Meta(ge=0, le=1000)] = 2
    """Times in a run that the engine is started again after it died, or computed nothing for half of `timeout_s` though it
    had calls; its calls are sent again, which `max_retries` does not count. The next death ends the run."""


class TorchSpec(RestartableSpec, frozen=True, kw_only=True, tag="torch"):
    """A transformers model under this package's continuous-batching loop, in a worker process of its own."""

    model: str
    """A folder, a hub name, or `bundled:NAME` for a model that comes with the package."""
    device: Literal["auto", "cpu", "cuda", "cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7"] = "auto"
    """`auto`: the first CUDA device if there is one, else the CPU."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """`auto`: what the model was saved in; below 20M parameters on a CPU float32, which is faster there and rounds less."""
    max_num_seqs: Annotated[int, Meta(ge=1, le=4096)] = 64
    """Sequences computed together; a request of n candidates takes n."""
    max_model_len: Annotated[int, Meta(ge=16)] | None = None
    """Context length in tokens; by default the model's own."""
    max_num_batched_tokens: Annotated[int, Meta(ge=16)] = 2048
    """Most prompt tokens computed in one iteration; longer prompts are prefilled in chunks."""
    kv_cache_slots: Annotated[int, Meta(ge=1)] | None = None
    """Sequences whose keys and values are kept, running or cached; by default twice `max_num_seqs`."""
    core: Annotated[int, Meta(ge=0)] | None = None
    """CPU core the worker is pinned to."""
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    """CPU threads of one operation."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy`: random weights of the model's shape, for throughput work without a download."""
    trust_remote_code: bool = False


class SpeculativeSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token-level speculation inside one engine, in vLLM's words: the hierarchical systems of SpecReason 4.2 and SpecCoT A.3."""

    method: Literal["ngram", "draft_model"]
    """`ngram`: what followed the same tokens earlier in the prompt; `draft_model`: a small model of the same vocabulary."""
    num_speculative_tokens: Annotated[int, Meta(ge=1, le=64)] = 5
    """Tokens proposed at a time."""
    model: str | None = None
    """Of `draft_model`: a folder, a hub name, or `bundled:NAME`."""
    prompt_lookup_max: Annotated[int, Meta(ge=1, le=64)] = 4
    """Of `ngram`: longest and shortest sequence that is looked up."""
    prompt_lookup_min: Annotated[int, Meta(ge=1, le=64)] = 1


class VllmSpec(RestartableSpec, frozen=True, kw_only=True, tag="vllm"):
    """vLLM's `AsyncLLM`, in a worker process of its own; needs the extra `pipeline[vllm]` or, without a GPU, vLLM's CPU build."""

    model: str
    """A folder, a hub name, or `bundled:NAME` for a model that comes with the package."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    quantization: str | None = None
    """As vLLM names it (`fp8`, `awq`, `gptq`, ...); by default what the model's own configuration says."""
    load_format: Literal["auto", "dummy", "safetensors", "pt"] = "auto"
    """`dummy`: random weights of the model's shape, for throughput work without a download."""
    max_model_len: Annotated[int, Meta(ge=16)] | None = None
    """Context length in tokens; by default the model's own."""
    max_num_seqs: Annotated[int, Meta(ge=1, le=65536)] = 256
    """Sequences computed together; a request of n candidates takes n."""
    max_num_batched_tokens: Annotated[int, Meta(ge=16)] | None = None
    """Most tokens computed in one iteration; by default vLLM's choice."""
    devices: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    """GPUs by their index; by default the first `tensor_parallel_size` of them."""
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=64)] = 1
    """GPUs that share every layer."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    """Share of each GPU's memory for weights, activations and cache. Engines that share a GPU must all say it; one alone
    takes 0.9."""
    kv_cache_gib: Annotated[float, Meta(gt=0.0)] | None = None
    """Size of the key-value cache; by default what the share of the GPU leaves, and 1 GiB without a GPU."""
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"] = "auto"
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool | None = None
    """By default on with a GPU and off without: there a seeded request whose prefill is split kills vLLM 0.32."""
    enforce_eager: bool | None = None
    """No CUDA graphs and no compilation; by default only without a GPU."""
    lora_path: str | None = None
    """Folder of a LoRA adapter that every request uses."""
    speculative_config: SpeculativeSpec | None = None
    core: Annotated[int, Meta(ge=0)] | None = None
    """Without a GPU: the first of the `threads` cores the engine computes on; by default cores of its own where there are enough."""
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Without a GPU: cores it computes on."""
    trust_remote_code: bool = False


class OpenAISpec(EngineSpec, frozen=True, kw_only=True, tag="openai"):
    """One or more servers with OpenAI's completions endpoint: vLLM, SGLang, llama.cpp, hosted ones. Needs the extra `pipeline[openai]`."""

    model: str
    """The name under which the server serves the model."""
    base_url: str | tuple[str, ...]
    """Up to and including `/v1`; several are replicas of one another."""
    tokenizer: str | None = None
    """Folder, hub name or `bundled:NAME` of the model's tokenizer and chat template; by default `model`."""
    api_key_env: str | None = None
    """Environment variable that holds the key; by default no key is sent."""
    max_model_len: Annotated[int, Meta(ge=16)] | None = None
    """Context length in tokens; by default what the server says."""
    prompts: Literal["auto", "ids", "text"] = "auto"
    """How prompts are sent; `auto`: as token ids where the server takes them and returns ids, else as text."""
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 8
    reconnect_s: PositiveSeconds = 180.0
    """When no replica has answered for this long, the engine counts as dead."""


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

    A step is right if its luck, uniform in [0, 1), is below `step_accuracy`. For a share `step_correlation` of the
    steps, picked by problem and step number, that luck is drawn from problem and step number as well, so that all
    candidates are right or wrong together, and where one engine fails every less accurate one does; for the others each
    candidate has a luck of its own. Either way a candidate is right with chance a = `step_accuracy`, any two agree with
    correlation c = `step_correlation`, and all of N are wrong with chance c (1 - a) + (1 - c) (1 - a)^N.
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


class ReplaySpec(EngineSpec, frozen=True, kw_only=True, tag="replay"):
    """What a recorded run's engine of the same role answered, once more, on virtual time and without any model."""

    run: str
    """Folder of the recorded run."""
    costs: Literal["auto", "recorded", "simulated"] = "auto"
    """How long a call takes. `recorded`: as long as it took then, whatever runs beside it. `simulated`: what a roofline says: of
    a run that was simulated its own, else the one in its `calibration.yaml`. `auto`: `simulated` where there is a roofline."""
    costs_from: str | None = None
    """An engines file of simulated engines whose roofline counts instead; of what they would write nothing is used."""
    model: str = ""
    """A label for the trace; by default the recorded model's."""
    trust_remote_code: bool = False
    """Let code run that comes with the recorded model's tokenizer; a run folder cannot ask for that itself."""
    max_in_flight: Annotated[int, Meta(ge=0, le=65536)] = 0
    """0: as recorded."""
    timeout_s: Annotated[float, Meta(ge=0.0)] = 0.0
    """0: as recorded."""
    max_retries: Annotated[int, Meta(ge=-1, le=100)] = -1
    """-1: as recorded."""


class GraphSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graph file."""

    name: Name
    params: dict[Name, Param] = {}
    """Named values; `$NAME` elsewhere in the file takes one, `--set NAME=VALUE` replaces it."""
    engines: str | dict[Name, EngineSpec]
    """The roles: an engines file (relative to this one), or the mapping itself."""
    instruction: str | None = None
    """Follows every problem in the prompt as it stands here, so it mostly begins with a line break; by default a request
    to reason step by step and to box the answer."""
    stages: dict[Name, StageSpec] = {}
