"""The tables of a run folder: one Struct per table, one field per column; and rows of them as Arrow record batches.

The Structs are the schema: Arrow types come from the annotations, and the unit and the name of vLLM's metric (`vllm`) are in the Parquet
field metadata.
Durations are seconds by a monotonic clock, instants nanoseconds UTC.
"""

from collections.abc import Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pyarrow as pa
from msgspec import Meta, Struct
from msgspec.structs import astuple

from pipeline.confidence import Confidence, Measure
from pipeline.engine import Candidate, Completion, FinishReason, Tokenizer, Usage


def column(unit: str = "", vllm: str = "") -> Any:
    """Annotation of a column: its unit, and its name in vLLM."""
    names = {"unit": unit, "vllm": vllm}
    return Meta(extra={key: value for key, value in names.items() if value})


Tokens = Annotated[int, column("{token}")]
Seconds = Annotated[float, column("s")]
Instant = Annotated[int, column("ns since 1970-01-01 UTC")]


UNFINISHED = ("error", "cancelled")
"""The values of `stop_reason` of chains that gave no answer."""


def counted(correct: bool | None, stop_reason: str, reference_answer: str | None) -> bool | None:
    """Whether a chain counts as right in every accuracy, from these fields of its `ChainRow`; None where it does not count.

    A chain that failed has no grade, and counts as wrong where its problem has a reference answer. One that was cancelled counts as
    nothing, as it is solved when the run is resumed.
    """
    if stop_reason in UNFINISHED:
        return False if stop_reason == "error" and reference_answer is not None else None
    return correct


class ChainKey(Struct, frozen=True):
    """The chain that a row is about: the first columns of each table but `problems`."""

    run_id: str
    """The run's id in `run.json`."""
    problem_id: str
    """The problem's id in the input; the number of its row if the input has no ids."""
    chain_id: str
    """The attempt at the problem: `problem_id#sample_index`."""
    sample_index: int
    """Number of the attempt, from 0."""


class CallRow(ChainKey, frozen=True):
    """One attempt of one request to an engine. `ChainRecorder` makes it by position, in a fifth of the time that keywords take."""

    step_index: int
    """The step of the thought, from 0."""
    call_index: int
    """Order of the chain's calls, from 0."""
    attempt: int
    """0 for the first attempt; each retry has its own row."""
    stage: str
    """Name of the stage in the graph."""
    kind: str
    """Kind of that stage, such as `draft` or `choose`."""
    purpose: str
    """What the call was for: `guide`, `draft`, `judge`, `write`, `trial` (to ask for the answer before the thought is over) or `answer`."""
    engine: str
    """The role of the engine."""
    request_id: Annotated[str, column(vllm="request_id")]
    """The engine's id of the request."""
    temperature: float
    """Sampling temperature; 0: greedy."""
    top_p: float
    """Nucleus sampling; 1: off."""
    max_tokens: Tokens
    """Maximum number of tokens of each candidate."""
    seed: int
    """Seed of the request."""
    choice_count: int
    """Number of candidates requested."""
    stop_sequences: tuple[str, ...]
    """Texts at which the output ends."""
    prompt_digest: int | None
    """Hash of the prompt and of what else decides the answer; null if no answer came."""
    input_tokens: Annotated[int, column("{token}", vllm="vllm:prompt_tokens_total")]
    """Tokens of the prompt."""
    cached_input_tokens: Annotated[int | None, column("{token}", vllm="num_cached_tokens")]
    """Those found in the engine's prefix cache; null if the engine does not report it, or no answer came."""
    output_tokens: Annotated[int, column("{token}", vllm="vllm:generation_tokens_total")]
    """Sampled tokens, including end-of-sequence tokens, which are not in `output_token_ids`."""
    eos_tokens: Tokens
    """End-of-sequence tokens among them: one per candidate that stopped, except at a requested stop sequence."""
    candidate_index: tuple[int, ...]
    """Index of each candidate of the call, aligned with the three lists below."""
    output_token_ids: tuple[tuple[int, ...], ...]
    """The tokens of each candidate."""
    finish_reason: Annotated[tuple[str, ...], column(vllm="finished_reason")]
    """`stop`, or `length` (cut at `max_tokens` or the end of the context)."""
    stop_reason: Annotated[tuple[str | None, ...], column(vllm="stop_reason")]
    """Stop sequence at which each candidate ended; null: none."""
    option_ids: tuple[int, ...]
    """Options of a single-token choice, as tokens."""
    option_logprobs: tuple[float, ...]
    """Natural log of the probability of each option, before masking; empty if the call was no choice."""
    submit_unix_ns: Instant
    """When the request was sent to the engine."""
    end_unix_ns: Instant
    """When its answer had arrived completely."""
    client_wait_s: Seconds
    """From when the chain was ready until the request was sent."""
    queue_time_s: Annotated[float | None, column("s", vllm="vllm:request_queue_time_seconds")]
    """Time in the engine's own queue; null if the engine does not report it."""
    prefill_time_s: Annotated[float | None, column("s", vllm="vllm:request_prefill_time_seconds")]
    """Time of computing the prompt; null if the engine does not report it."""
    decode_time_s: Annotated[float | None, column("s", vllm="vllm:request_decode_time_seconds")]
    """Time of sampling the tokens after the first; null if the engine does not report it."""
    time_to_first_token_s: Annotated[float | None, column("s", vllm="vllm:time_to_first_token_seconds")]
    """From the arrival of the request at the engine, including queue time."""
    time_per_output_token_s: Annotated[float | None, column("s", vllm="vllm:inter_token_latency_seconds")]
    """Decode time divided by one less than the tokens of the longest candidate; null for one token."""
    e2e_latency_s: Annotated[float, column("s", vllm="vllm:e2e_request_latency_seconds")]
    """From when the request was sent until its answer had arrived completely."""
    error_type: str | None
    """The error's type; null: none."""
    error_message: str | None
    """The error message."""
    adapter: str | None = None
    """The adapter of the call, by its name in the engines file; null: the unmodified model."""
    response_model: str | None = None
    """The model that answered, as the server names it; null if it does not, and for engines that are no servers."""
    replica: int | None = None
    """The replica whose engines computed the call, from 0, which is that of its chain; null in runs of one process."""
    logprob_mean: Annotated[tuple[float | None, ...], column("nat")] = ()
    """Mean log probability of the tokens of each candidate, in natural units; null for one without tokens. This column and the next three
    are empty if no log probabilities were requested."""
    logprob_min: Annotated[tuple[float | None, ...], column("nat")] = ()
    """Log probability of the least likely token of each candidate."""
    first_entropy: Annotated[tuple[float | None, ...], column("nat")] = ()
    """Entropy of the first token of each candidate, from the log probabilities of the likeliest 20 tokens, or of as many as a server
    names: a lower bound."""
    logprob_margin: Annotated[tuple[float | None, ...], column("1")] = ()
    """Probability of the likeliest token less that of the second, mean over the tokens of each candidate."""


MEASURED_IN: dict[Measure, str] = {
    "mean": "logprob_mean",
    "min": "logprob_min",
    "first_entropy": "first_entropy",
    "margin": "logprob_margin",
}
"""For each number of a `Confidence` the column of `CallRow` that holds it."""


class AnsweredCall(Struct, frozen=True, kw_only=True):
    """How a call was answered, and what it cost; fields are columns of the calls table."""

    request_id: str
    prompt_digest: int | None
    output_token_ids: tuple[tuple[int, ...], ...]
    finish_reason: tuple[FinishReason, ...]
    stop_reason: tuple[str | None, ...]
    option_logprobs: tuple[float, ...]
    logprob_mean: tuple[float | None, ...]
    logprob_min: tuple[float | None, ...]
    first_entropy: tuple[float | None, ...]
    logprob_margin: tuple[float | None, ...]
    client_wait_s: float
    input_tokens: int
    cached_input_tokens: int | None
    output_tokens: int

    @property
    def usage(self) -> Usage:
        """What it cost."""
        return Usage(input_tokens=self.input_tokens, cached_input_tokens=self.cached_input_tokens, output_tokens=self.output_tokens)

    def completion(self, tokenizer: Tokenizer) -> Completion:
        """The completion that the engine gave, with texts decoded from the recorded ids."""
        return Completion(candidates=self.candidates(tokenizer), option_logprobs=self.option_logprobs, usage=self.usage)

    def candidates(self, tokenizer: Tokenizer) -> tuple[Candidate, ...]:
        """Its candidates, with decoded texts; without confidence where no log probabilities were recorded."""
        sure = list(zip(*(getattr(self, name) for name in MEASURED_IN.values()), strict=True)) or [(None,)] * len(self.output_token_ids)
        return tuple(
            Candidate(
                ids=ids,
                text=tokenizer.decode(ids),
                cumulative_logprob=None,
                finish_reason=finish,
                stop_reason=stop,
                confidence=None if each[0] is None else Confidence(**dict(zip(MEASURED_IN, each, strict=True))),
            )
            for ids, finish, stop, each in zip(self.output_token_ids, self.finish_reason, self.stop_reason, sure, strict=True)
        )


class StepRow(ChainKey, frozen=True):
    """One committed step of a thought; made by position, as `CallRow` is."""

    step_index: int
    """Number of the step, from 0; guidance, if there is any, is step 0."""
    stage: str
    """The stage that wrote the step."""
    source_engine: str
    """The role of the engine that wrote it."""
    decision: str
    """`guidance`, `accepted`, `unverified` (by the draft, which a gate let pass: neither accepted nor rejected), `fallback` (after all
    candidates were rejected), `first_steps`, or `written` (without a draft, or because a gate flagged it)."""
    verify_kind: str | None
    """Kind of the stage that gave the verdict, such as `choose` or `score`; null if nothing was verified."""
    verify_stage: str | None
    """Name of that stage in the graph."""
    score_value: float | None
    """The value that the verdict is based on, on the scale that the next five columns describe, as is `threshold`."""
    score_scale: str | None
    """What the value means, such as `score` or `probability of the chosen option`."""
    score_low: float | None
    """Minimum possible value; null: none."""
    score_high: float | None
    """Maximum possible value; null: none."""
    score_integers: bool | None
    """Whether only integers are possible."""
    score_label: str | None
    """The option that was chosen, one of `score_options`."""
    score_options: tuple[str, ...]
    """The options that could be chosen, in order."""
    score_of_candidates: bool | None
    """Whether the options are candidates: option k is the k-th distinct candidate, from 1, and option 0 none of them."""
    score_probs: tuple[float, ...]
    """Probability of each option, in order, renormalized."""
    score_mass: float | None
    """Total probability of the options before renormalizing."""
    threshold: float | None
    """The threshold of the verdict; null: none."""
    num_candidates: int
    """Number of drafted candidates."""
    num_distinct_candidates: int
    """Number of those that differ in their token ids."""
    chosen_candidate: int | None
    """Index of the candidate that the step is, accepted or unverified; null: none."""
    step_text: str
    """The committed text."""
    step_token_ids: tuple[int, ...]
    """Its token ids in the vocabulary of `source_engine`."""
    step_tokens: Tokens
    """Its length. Where `chosen_candidate` is set these are the drafted tokens that were kept, else none of `draft_tokens` were."""
    candidate_texts: tuple[str, ...]
    """The text of each candidate."""
    candidate_tokens: Annotated[tuple[int, ...], column("{token}")]
    """Length of each candidate."""
    draft_tokens: Tokens
    """Tokens sampled for candidates."""
    step_time_s: Seconds
    """From the commit of the previous step to that of this one."""
    wait_time_s: Seconds
    """The part of `step_time_s` in which its calls waited in client queues."""
    start_unix_ns: Instant
    """When the previous step was committed."""
    end_unix_ns: Instant
    """When it was committed."""
    calls: Annotated[int | None, column("{request}")] = None
    """Number of the chain's calls when the step was committed: those with a smaller `call_index`."""
    cut: bool | None = None
    """Whether it was cut at a token limit (of the stage, the budget or the context) instead of ending at a blank line, the end of the
    thought or of the sequence."""
    gate_stage: tuple[str, ...] = ()
    """The gates that looked at the draft, in order; the next four columns have one entry for each."""
    gate_statistic: tuple[str, ...] = ()
    """`mean`, `min`, `first_entropy`, `margin` (see the columns of the calls table) or `repeats`."""
    gate_value: tuple[float | None, ...] = ()
    """Its value for the candidate that looks surest; null if no candidate has one."""
    gate_threshold: tuple[float, ...] = ()
    """The threshold of the gate."""
    gate_flagged: tuple[bool, ...] = ()
    """Whether the gate flagged the draft."""


class ChainRow(ChainKey, frozen=True):
    """One chain: its answer, or what went wrong."""

    input_row: int
    """Number of the row in the input, from 1."""
    answer: str | None
    """The answer that the text states: see Grading in the guide Your own data."""
    answer_text: str | None
    """The whole text after the thought."""
    reference_answer: str | None
    """The reference answer of the input; null: none."""
    correct: bool | None
    """Whether the answer is correct; null: no reference answer, a failed chain, or a failure of the grader (see `grading_error`)."""
    grader: str
    """How the answer is compared: `math`, `numeric`, `letter`, or the name of a plugin's grader."""
    grading_error: str | None
    """Why the comparison was not completed: a time limit, a lost grader. Null: it was."""
    stop_reason: str
    """The stop condition that ended the thought, or `error` or `cancelled`."""
    error_type: str | None
    """The error's type; null: none."""
    error_message: str | None
    """The error message."""
    error_stage: str | None
    """The stage in which it occurred; null: none, or while the input was read."""
    steps: Annotated[int, column("{step}")]
    """Number of committed steps."""
    accepted_steps: Annotated[int, column("{step}")]
    """Number of steps that were accepted candidates."""
    fallback_steps: Annotated[int, column("{step}")]
    """Number of steps written after all candidates were rejected."""
    thought_tokens: Tokens
    """Length of the thought."""
    engines: tuple[str, ...]
    """The roles of the graph, in order, for the two lists below."""
    input_tokens: Annotated[tuple[int, ...], column("{token}")]
    """Prompt tokens that each engine read for this chain, counting every attempt of a call."""
    output_tokens: Annotated[tuple[int, ...], column("{token}")]
    """Tokens that each engine sampled for this chain, including end-of-sequence tokens."""
    wasted_draft_tokens: Tokens
    """Tokens sampled for candidates that were not committed, by any engine."""
    calls: Annotated[int, column("{request}")]
    """Number of calls to engines, including failed ones."""
    chain_time_s: Seconds
    """From the start of the chain to its end."""
    wait_time_s: Seconds
    """The part of `chain_time_s` in which its calls waited in client queues."""
    start_unix_ns: Instant
    """When the chain started."""
    end_unix_ns: Instant
    """When it ended."""
    replica: int | None = None
    """The replica that solved it, from 0; null in runs of one process."""
    unverified_steps: Annotated[int, column("{step}")] = 0
    """Number of steps by the draft that a gate let pass, which nothing verified."""
    answer_cut: bool | None = None
    """Whether the text after the thought was cut at a token limit; null: there is none."""


class ProblemRow(Struct, frozen=True, kw_only=True):
    """One row of the input, as it was when the run began."""

    input_row: int
    """Number of the row in the input, from 1."""
    problem_id: str
    """The problem's id in the input; the number of its row if the input has no ids."""
    problem: str | None = None
    """Text of the problem; null if the row has none."""
    reference_answer: str | None = None
    """The reference answer of the input; null: none."""
    options: tuple[str, ...] = ()
    """The options of a multiple-choice problem in the order of their letters; else empty."""
    grader: str | None = None
    """How its answer is graded; null: the row does not say."""
    history: str | None = None
    """The chat before the problem as a JSON array of messages; null: none."""
    flaw: str | None = None
    """Why the row has no problem; null: it has one."""
    input: str | None = None
    """The whole row as a JSON object, by the column names of the file; null if it cannot be read."""
    settings: str | None = None
    """What the row says of its own chains, as a JSON object; null: nothing."""


class RewardRow(ChainKey, frozen=True, kw_only=True):
    """The reward of one drafted candidate, or of a committed step that is none of the candidates."""

    step_index: int
    """The step of the thought, from 0."""
    candidate_index: int | None
    """Index of the candidate; null for a step that was not drafted."""
    selected: bool
    """Whether it was committed; of equal candidates only the one that the step names."""
    decision: str
    """The decision of the step, as in `StepRow`."""
    source_engine: str
    """The role that wrote it."""
    reward: Annotated[float | None, column("1")]
    """P(good) / (P(good) + P(bad)) after the text, 0 to 1; for a text of several steps, such as a whole thought, the minimum of
    their rewards (as Math-Shepherd scores a solution). Null: not scored."""
    reward_error: str | None
    """Why there is no reward."""
    model: str
    """The reward model."""


TABLES: dict[str, type[Struct]] = {"calls": CallRow, "steps": StepRow, "chains": ChainRow}
"""The tables that a run writes, each before those that rest on it."""
ROWS: dict[str, type[Struct]] = {**TABLES, "rewards": RewardRow, "problems": ProblemRow}
"""Every table that a run folder may have, with the type of its rows."""

_SCALARS: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


@cache
def schema_of(row: type[Struct]) -> pa.Schema:
    """Arrow schema of a Struct: types from its annotations, unit and foreign names as field metadata."""
    return pa.schema([_field(name, hint) for name, hint in get_type_hints(row, include_extras=True).items()])


def columns_of(schema: pa.Schema, rows: Sequence[Struct]) -> pa.RecordBatch:
    """`rows` as one record batch; their Struct is the one that `schema` was made of."""
    columns = zip(*map(astuple, rows), strict=True) if rows else [()] * len(schema)
    arrays = [_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def table_of(row: type[Struct], rows: Sequence[Struct]) -> pa.Table:
    """`rows` of the Struct type `row` as a table."""
    return pa.Table.from_batches([columns_of(schema_of(row), rows)])


def with_values(batch: pa.RecordBatch, name: str, values: Sequence[Any]) -> pa.RecordBatch:
    """`batch` with other values in one of its columns."""
    place = batch.schema.get_field_index(name)
    return batch.set_column(place, batch.schema.field(place), pa.array(values, batch.schema.field(place).type))


def _field(name: str, hint: Any) -> pa.Field:
    metadata: dict[str, str] = {}
    if get_origin(hint) is Annotated:
        hint, *metas = get_args(hint)
        metadata = {key: value for meta in metas if isinstance(meta, Meta) for key, value in (meta.extra or {}).items()}
    kind, nullable = _kind(hint)
    return pa.field(name, kind, nullable, metadata or None)


def _kind(hint: Any) -> tuple[pa.DataType, bool]:
    """Arrow type of an annotation, and whether it may be null."""
    if get_origin(hint) is UnionType:
        return _kind(next(arm for arm in get_args(hint) if arm is not NoneType))[0], True
    if get_origin(hint) is tuple:
        return pa.list_(pa.field("item", *_kind(get_args(hint)[0]))), False
    return _SCALARS[hint], False


def _array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(column, kind)
    except UnicodeEncodeError:
        return pa.array(_encodable(column), kind)


def _encodable(value: Any) -> Any:
    """A lone surrogate, which UTF-8 cannot hold, becomes a question mark: one odd character must not end the run."""
    if isinstance(value, tuple):
        return tuple(map(_encodable, value))
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
