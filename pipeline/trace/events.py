"""The tables of a run folder: one Struct per table, one field per column.

The Structs are the schema: `store` builds Arrow types from the annotations and puts unit and foreign names
(`otel`: OpenTelemetry GenAI attribute or metric, `vllm`: its Prometheus name) into the Parquet field metadata.
Durations are seconds by a monotonic clock, instants nanoseconds UTC.
"""

from typing import Annotated, Any, Literal, get_args, get_type_hints

from msgspec import Meta, Struct


def column(unit: str = "", otel: str = "", vllm: str = "") -> Any:
    """Annotation of a column: its unit, and its names in OpenTelemetry and vLLM."""
    return Meta(extra={key: value for key, value in (("unit", unit), ("otel", otel), ("vllm", vllm)) if value})


def names_in(row: type[Struct], system: Literal["otel", "vllm"]) -> dict[str, str]:
    """The names that `system` has for the columns of a table, by our names; columns without one are left out."""
    hints = get_type_hints(row, include_extras=True)
    extras = {name: meta.extra or {} for name, hint in hints.items() for meta in get_args(hint) if isinstance(meta, Meta)}
    return {name: str(extra[system]) for name, extra in extras.items() if system in extra}


Tokens = Annotated[int, column("{token}")]
Seconds = Annotated[float, column("s")]
Instant = Annotated[int, column("ns since 1970-01-01 UTC")]


UNFINISHED = ("error", "cancelled")
"""The values of `stop_reason` of chains that gave no answer."""


def counted(correct: bool | None, stop_reason: str, reference_answer: str | None) -> bool | None:
    """Whether a chain counts as right in every accuracy, from these fields of its `ChainRow`; None where it does not count.

    A chain that failed has no grade, and counts as wrong where its problem has a reference answer. One that was cancelled counts as
    nothing, as it is solved when the run goes on.
    """
    if stop_reason in UNFINISHED:
        return False if stop_reason == "error" and reference_answer is not None else None
    return correct


class CallRow(Struct, frozen=True):
    """One attempt of one request to an engine. `ChainRecorder` makes it by position, in a fifth of the time that keywords take."""

    run_id: str
    """The run, as `run.json` names it."""
    problem_id: str
    """The problem, as the input names it; its row where the input has no ids."""
    chain_id: Annotated[str, column(otel="gen_ai.conversation.id")]
    """The attempt at the problem: `problem_id#sample_index`."""
    sample_index: int
    """Which of the problem's samples it is, from 0."""
    step_index: int
    """Which step of the thought it belongs to, from 0."""
    call_index: int
    """Order of the chain's calls, from 0."""
    attempt: int
    """0 of the first attempt; each retry after an error has a row of its own."""
    stage: Annotated[str, column(otel="gen_ai.prompt.name")]
    """The name of the stage in the graph."""
    kind: str
    """The kind of that stage, such as `draft` or `choose`."""
    purpose: str
    """What the call was for: `guide`, `draft`, `judge`, `write` or `answer`."""
    engine: Annotated[str, column(otel="server.address")]
    """The role of the engine."""
    operation_name: Annotated[str, column(otel="gen_ai.operation.name")]
    """GenAI operation: `text_completion`."""
    request_model: Annotated[str, column(otel="gen_ai.request.model")]
    """The model of the engine, as its engines file names it."""
    request_id: Annotated[str, column(otel="gen_ai.response.id", vllm="request_id")]
    """The engine's own id of the request."""
    temperature: Annotated[float, column(otel="gen_ai.request.temperature")]
    """Sampling temperature; 0: greedy."""
    top_p: Annotated[float, column(otel="gen_ai.request.top_p")]
    """Nucleus sampling; 1: off."""
    max_tokens: Annotated[int, column("{token}", otel="gen_ai.request.max_tokens")]
    """Limit of the output of each candidate."""
    seed: Annotated[int, column(otel="gen_ai.request.seed")]
    """Seed of the request."""
    choice_count: Annotated[int, column(otel="gen_ai.request.choice.count")]
    """Candidates that were asked for."""
    stop_sequences: Annotated[tuple[str, ...], column(otel="gen_ai.request.stop_sequences")]
    """Texts at which the output ends."""
    prompt_digest: int | None
    """`Request.digest`: equal where prompts are equal. Null where no answer came."""
    input_tokens: Annotated[int, column("{token}", otel="gen_ai.usage.input_tokens", vllm="vllm:prompt_tokens_total")]
    """Tokens of the prompt."""
    cached_input_tokens: Annotated[int | None, column("{token}", otel="gen_ai.usage.cache_read.input_tokens", vllm="num_cached_tokens")]
    """Those of them that were in the engine's prefix cache; null where the engine does not say, and where no answer came."""
    output_tokens: Annotated[int, column("{token}", otel="gen_ai.usage.output_tokens", vllm="vllm:generation_tokens_total")]
    """Sampled tokens, end-of-sequence ones included; those are not among `output_token_ids`."""
    eos_tokens: Tokens
    """End-of-sequence tokens among them: one of each candidate that stopped, unless at a stop sequence that was asked for."""
    candidate_index: tuple[int, ...]
    """Index of each candidate of this call, aligned with the three lists below."""
    output_token_ids: tuple[tuple[int, ...], ...]
    """The tokens of each candidate."""
    finish_reason: Annotated[tuple[str, ...], column(otel="gen_ai.response.finish_reasons", vllm="finished_reason")]
    """`stop`, `length` (cut at `max_tokens` or the end of the context), or `interrupted`: cut because the run asked for it, perhaps
    without any token."""
    stop_reason: Annotated[tuple[str | None, ...], column(vllm="stop_reason")]
    """The stop sequence at which each candidate ended; null: none."""
    option_ids: tuple[int, ...]
    """Tokens among which a single-token choice was made."""
    option_logprobs: tuple[float, ...]
    """Natural log of the probability of each option, before masking; empty when the call was no choice."""
    scored_logprobs: tuple[float, ...]
    """Natural log of the probability of each token that was to be scored; empty when none was."""
    submit_unix_ns: Instant
    """When the request left for the engine."""
    end_unix_ns: Instant
    """When its answer had arrived."""
    client_wait_s: Seconds
    """From the moment the chain was ready until the request left for the engine."""
    queue_time_s: Annotated[float | None, column("s", otel="gen_ai.latency.time_in_queue", vllm="vllm:request_queue_time_seconds")]
    """In the engine's own queue; null where the engine does not report it."""
    prefill_time_s: Annotated[
        float | None, column("s", otel="gen_ai.latency.time_in_model_prefill", vllm="vllm:request_prefill_time_seconds")
    ]
    """Computing the prompt; null where the engine does not report it."""
    decode_time_s: Annotated[float | None, column("s", otel="gen_ai.latency.time_in_model_decode", vllm="vllm:request_decode_time_seconds")]
    """Sampling tokens after the first; null where the engine does not report it."""
    inference_time_s: Annotated[
        float | None, column("s", otel="gen_ai.latency.time_in_model_inference", vllm="vllm:request_inference_time_seconds")
    ]
    """Prefill and decode time together."""
    time_to_first_token_s: Annotated[
        float | None, column("s", otel="gen_ai.server.time_to_first_token", vllm="vllm:time_to_first_token_seconds")
    ]
    """From the arrival of the request at the engine, queue time included."""
    time_per_output_token_s: Annotated[
        float | None, column("s", otel="gen_ai.server.time_per_output_token", vllm="vllm:inter_token_latency_seconds")
    ]
    """Decode time divided by the output tokens of the longest candidate less one; null for one token."""
    e2e_latency_s: Annotated[float, column("s", otel="gen_ai.client.operation.duration", vllm="vllm:e2e_request_latency_seconds")]
    """From the request's leaving for the engine until its whole answer had arrived."""
    in_flight_engine: Annotated[int, column("{request}", vllm="vllm:num_requests_running")]
    """Requests at this engine when this one left, itself included."""
    in_flight_stage: Annotated[int, column("{request}")]
    """Those of `in_flight_engine` that belong to the same stage."""
    waiting_engine: Annotated[int, column("{request}", vllm="vllm:num_requests_waiting")]
    """Requests that stayed in the lane when this one left."""
    error_type: Annotated[str | None, column(otel="error.type")]
    """The error's type; null: none."""
    error_message: str | None
    """The error in a sentence."""
    recomputed_input_tokens: Annotated[int | None, column("{token}")] = None
    """Tokens of the chain's context that this engine had computed for an earlier call of the chain, had evicted since and computed again:
    at least so many, as only the context of an earlier step counts, in full blocks of the cache (`block_size` in the facts of the
    engine, else 16 tokens). Null where the engine does not say what was cached, and in traces of earlier versions."""
    top_k: Annotated[int | None, column(otel="gen_ai.request.top_k")] = None
    """0: all tokens. Null in traces of earlier versions, which had no bound."""
    min_p: float | None = None
    """0: no bound. Null in traces of earlier versions."""
    adapter: str | None = None
    """The adapter that the engine computed the call with, by its name in the engines file; null: the model as it is."""
    response_model: Annotated[str | None, column(otel="gen_ai.response.model")] = None
    """The model that answered, by the name that a server gives it; null where it gives none, and for engines that are no servers."""
    replica: Annotated[int | None, column(otel="service.instance.id")] = None
    """The replica whose engines computed the call, from 0; null where the run has one process, and in traces of earlier versions."""
    node: Annotated[str | None, column(otel="host.id")] = None
    """The cluster's id of the machine that the replica was on; null as `replica` is."""


class StepRow(Struct, frozen=True):
    """One committed step of a thought; made by position, as `CallRow` is."""

    run_id: str
    """The run, as `run.json` names it."""
    problem_id: str
    """The problem, as the input names it; its row where the input has no ids."""
    chain_id: Annotated[str, column(otel="gen_ai.conversation.id")]
    """The attempt at the problem: `problem_id#sample_index`."""
    sample_index: int
    """Which of the problem's samples it is, from 0."""
    step_index: int
    """From 0; guidance, where a graph has it, is step 0."""
    stage: str
    """The stage that wrote the step."""
    source_engine: str
    """The role of the engine that wrote it."""
    decision: str
    """`guidance`, `accepted`, `fallback`, `first_steps`, `written`, or `interrupted`: what the target had written when the chain was
    switched to speculation."""
    verify_kind: Annotated[str | None, column(otel="gen_ai.evaluation.name")]
    """The kind of stage that gave the verdict, such as `choose`, `score` or `likelihood`; null when nothing was verified."""
    verify_stage: str | None
    """The name of the verifying stage in the graph."""
    score_value: Annotated[float | None, column(otel="gen_ai.evaluation.score.value")]
    """The value that the verdict depends on, on the scale that the five columns below describe; `threshold` is on the same scale."""
    score_scale: str | None
    """What the value means: `score`, `probability of the chosen option`."""
    score_unit: str | None
    """The unit of the value; empty where it has none."""
    score_low: float | None
    """Least possible value; null where there is none."""
    score_high: float | None
    """Greatest possible value; null where there is none."""
    score_integers: bool | None
    """Whether only whole numbers are possible."""
    score_label: Annotated[str | None, column(otel="gen_ai.evaluation.score.label")]
    """The option that was chosen, one of `score_options`."""
    score_options: tuple[str, ...]
    """The options that could be chosen, in order."""
    score_of_candidates: bool | None
    """Whether the options are candidates: option k is the k-th distinct candidate, from 1, and option 0 none of them."""
    score_probs: tuple[float, ...]
    """Probability of each option, in order, renormalised."""
    score_mass: float | None
    """Total probability of the options before renormalising; of a `likelihood` stage that of writing one of the candidates."""
    threshold: float | None
    """The bound that the verdict was held against; null: none."""
    num_candidates: int
    """Candidates that were drafted."""
    num_distinct_candidates: int
    """Those that differ in their token ids."""
    chosen_candidate: int | None
    """Index among the drafted candidates; null when none was accepted."""
    step_text: str
    """The text that joined the thought."""
    step_token_ids: tuple[int, ...]
    """Its token ids in the vocabulary of `source_engine`."""
    candidate_texts: tuple[str, ...]
    """The text of each candidate."""
    candidate_tokens: Annotated[tuple[int, ...], column("{token}")]
    """The length of each candidate."""
    draft_tokens: Tokens
    """Tokens sampled for candidates."""
    draft_tokens_wasted: Tokens
    """Drafted tokens that were not committed."""
    verify_input_tokens: Tokens
    """Prompt tokens of verification."""
    verify_tokens: Tokens
    """Tokens sampled by verification."""
    fallback_tokens: Tokens
    """Tokens sampled for a step after all candidates were rejected."""
    step_time_s: Seconds
    """From the commit of the step before it until its own."""
    wait_time_s: Seconds
    """The part of `step_time_s` in which its calls waited in lanes."""
    start_unix_ns: Instant
    """When the step before it was committed."""
    end_unix_ns: Instant
    """When it was committed."""
    calls: Annotated[int | None, column("{request}")] = None
    """The chain's calls when the step was committed: those with a smaller `call_index`. Null in traces of earlier versions."""
    mode: str | None = None
    """`speculative`: the loop wrote it, or the guidance before it; `direct`: the target alone. Null of graphs in whose loops nothing
    is drafted, and in traces of earlier versions."""
    cut: bool | None = None
    """Whether it ended at a limit of tokens (its stage's, the budget's or the context's), and not at a blank line, the end of the thought
    or of the sequence. Null in traces of earlier versions."""


class ChainRow(Struct, frozen=True):
    """One chain: its answer, or what went wrong."""

    run_id: str
    """The run, as `run.json` names it."""
    problem_id: str
    """The problem, as the input names it; its row where the input has no ids."""
    chain_id: Annotated[str, column(otel="gen_ai.conversation.id")]
    """The attempt at the problem: `problem_id#sample_index`."""
    sample_index: int
    """Which of the problem's samples it is, from 0."""
    input_row: int
    """Row of the input file, from 1."""
    answer: str | None
    """The content of the last `\\boxed{}`, or else the whole text of the answer."""
    answer_text: str | None
    """The whole text that was written after the thought."""
    reference_answer: str | None
    """The right answer by the input; null: it has none."""
    correct: Annotated[bool | None, column(otel="gen_ai.evaluation.score.label")]
    """Null where the input has no answer, the chain failed, or the grader failed; then `grading_error` says why."""
    grader: Annotated[str, column(otel="gen_ai.evaluation.name")]
    """How the answer is compared with the reference: `math`, `numeric` or `letter`."""
    grading_error: Annotated[str | None, column(otel="gen_ai.evaluation.explanation")]
    """What kept answer and reference from being compared to the end: a time limit, a lost grader. Null where nothing did."""
    stop_reason: str
    """The exit of the loop's `until` that ended the thought, or `error` or `cancelled`."""
    error_type: Annotated[str | None, column(otel="error.type")]
    """The error's type; null: none."""
    error_message: str | None
    """The error in a sentence."""
    error_stage: str | None
    """The stage in which it came up; null: none, or while the input was read."""
    steps: Annotated[int, column("{step}")]
    """Committed steps."""
    accepted_steps: Annotated[int, column("{step}")]
    """Steps that were accepted candidates."""
    fallback_steps: Annotated[int, column("{step}")]
    """Steps that the verifier's engine wrote after it rejected all candidates."""
    thought_tokens: Tokens
    """Length of the thought."""
    engines: tuple[str, ...]
    """The roles of the graph, in order, for the two lists below."""
    input_tokens: Annotated[tuple[int, ...], column("{token}")]
    """Prompt tokens that each engine read for this chain, every attempt of a call counted."""
    output_tokens: Annotated[tuple[int, ...], column("{token}")]
    """Tokens that each engine sampled for this chain, end-of-sequence ones included."""
    draft_input_tokens: Tokens
    """Tokens of the role `draft`, like the next column; the two after them are of the role `target`. 0 where a graph has no such role."""
    draft_output_tokens: Tokens
    """Tokens sampled by the role `draft`."""
    target_input_tokens: Tokens
    """Prompt tokens of the role `target`."""
    target_output_tokens: Tokens
    """Tokens sampled by the role `target`."""
    wasted_draft_tokens: Tokens
    """Tokens sampled for candidates that were not committed, whatever engine drafted them."""
    calls: Annotated[int, column("{request}")]
    """Calls to engines, failed ones included."""
    chain_time_s: Seconds
    """From the chain's admission to its end."""
    active_time_s: Seconds
    """The part of `chain_time_s` in which a call was at an engine."""
    wait_time_s: Seconds
    """The part of `chain_time_s` in which its calls waited in lanes."""
    start_unix_ns: Instant
    """When the chain was admitted."""
    end_unix_ns: Instant
    """When it ended."""
    expected_length: float | None = None
    """By what its place among the chains was decided where expected-long ones begin first: tokens of the thought that were expected, or,
    of a first sample without an earlier run, characters of the problem. Null in the order of the input and in earlier versions."""
    replica: Annotated[int | None, column(otel="service.instance.id")] = None
    """The replica on which it ended, from 0; null where the run has one process, and in traces of earlier versions."""
    node: Annotated[str | None, column(otel="host.id")] = None
    """The cluster's id of the machine that the replica was on; null as `replica` is."""


class ProblemRow(Struct, frozen=True, kw_only=True):
    """One row of the input that was asked for, as it was when the run began."""

    input_row: int
    """Its number in the input file, from 1."""
    problem_id: str
    """The problem, as the input names it; its row where the input has no ids."""
    problem: str | None
    """The text that the models are asked about; null where the row holds no problem."""
    reference_answer: str | None
    """The right answer by the input; null: it has none."""
    options: tuple[str, ...]
    """The options of a multiple-choice problem in the order of their letters; else empty."""
    grader: str | None
    """How its answer is to be graded; null where the row does not say."""
    history: str | None
    """The chat before the problem as a JSON array of messages; null where it has none."""
    flaw: str | None
    """Why the row holds no problem."""
    input: str | None
    """The whole row as a JSON object, by the file's own names of columns; null where it cannot be read."""


class RewardRow(Struct, frozen=True, kw_only=True):
    """The reward of one drafted candidate, or of a committed step that is none of the candidates."""

    run_id: str
    """The run, as `run.json` names it."""
    problem_id: str
    """The problem, as the input names it; its row where the input has no ids."""
    chain_id: Annotated[str, column(otel="gen_ai.conversation.id")]
    """The attempt at the problem: `problem_id#sample_index`."""
    sample_index: int
    """Which of the problem's samples it is, from 0."""
    step_index: int
    """Which step of the thought it belongs to, from 0."""
    candidate_index: int | None
    """Index among the step's drafted candidates; null for a step that an engine wrote."""
    selected: bool
    """Whether it was committed; of candidates with the same text only the one that the step names."""
    decision: str
    """The decision of the step, as in `StepRow`."""
    source_engine: str
    """The role that wrote it."""
    reward: Annotated[float | None, column("1", otel="gen_ai.evaluation.score.value")]
    """P(good) / (P(good) + P(bad)) after the text, 0 to 1; for a text of several steps, such as a whole thought, the least of their
    rewards (Math-Shepherd's rule for a solution). Null where it was not scored."""
    reward_error: Annotated[str | None, column(otel="error.message")]
    """Why there is no reward."""
    model: str
    """The reward model."""
