"""What a recorded call says to requests that ask the same, less, or something else."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from pipeline.confidence import Confidence
from pipeline.engine import Request, Timing, Usage
from pipeline.engines.replay.calls import CALL_COLUMNS, RecordedCall, RecordedCalls
from pipeline.engines.replay.engine import RecordedText, ReplayEngine, mismatch, output_of
from pipeline.engines.sim.tokenizer import VOCAB_SIZE, SimTokenizer
from pipeline.errors import ContextOverflow, EngineDead, NeverGenerated
from pipeline.store.events import MEASURED_IN, CallRow
from pipeline.store.run_store import RunStore

TOKENIZER = SimTokenizer()
PROMPT = tuple(TOKENIZER.encode("What is 1 + 1?"))
SAID = tuple(TOKENIZER.encode("One and one is two."))
ENDED = tuple(TOKENIZER.encode("It is two"))


SURE = Confidence(mean=-0.5, min=-2.0, first_entropy=0.25, margin=0.75)


def request(**fields: Any) -> Request:
    return Request(**{"request_id": "p#0/1/draft", "prompt_ids": PROMPT, "max_tokens": 64, "n": 2, "seed": 5, "stop": ("\n\n",), **fields})


def call(**fields: Any) -> RecordedCall:
    """Two candidates: one that ran into the limit, and one that ended its turn."""
    ours: dict[str, Any] = {
        "request_id": "p#0/1/draft",
        "engine": "draft",
        "temperature": 0.0,
        "top_p": 1.0,
        "max_tokens": len(SAID),
        "seed": 5,
        "choice_count": 2,
        "stop_sequences": ("\n\n",),
        "option_ids": (),
        "output_token_ids": (SAID, ENDED),
        "finish_reason": ("length", "stop"),
        "stop_reason": (None, None),
        "option_logprobs": (),
        "scored_logprobs": (),
        "e2e_latency_s": 0.25,
        "usage": Usage(input_tokens=len(PROMPT), cached_input_tokens=3, output_tokens=len(SAID) + len(ENDED) + 1),
        "timing": Timing(queue_time_s=0.125, prefill_time_s=None),
        "confidences": [SURE, None],
    }
    return RecordedCall(**{**ours, **fields})


def texts(limit: int, **fields: Any) -> list[tuple[str, str, int]] | None:
    """Text, finish reason and sampled tokens of each candidate."""
    answer = output_of(call(), request(max_tokens=limit, **fields), limit, TOKENIZER)
    if answer is None:
        return None
    return [(c.text, c.finish_reason, length) for c, length in zip(answer.candidates, answer.lengths, strict=True)]


def test_the_same_request_gets_the_recorded_answer() -> None:
    assert texts(len(SAID)) == [("One and one is two.", "length", len(SAID)), ("It is two", "stop", len(ENDED) + 1)]


def test_fewer_candidates_are_the_first_ones() -> None:
    assert texts(len(SAID), n=1) == [("One and one is two.", "length", len(SAID))]


@pytest.mark.parametrize("limit", range(1, len(SAID)))
def test_a_lower_limit_cuts_and_the_end_of_the_sequence_takes_a_token(limit: int) -> None:
    found = texts(limit)
    assert found is not None
    assert found[0] == (TOKENIZER.decode(SAID[:limit]), "length", limit)
    ended = (TOKENIZER.decode(ENDED), "stop", len(ENDED) + 1)
    assert found[1] == (ended if limit > len(ENDED) else (TOKENIZER.decode(ENDED[:limit]), "length", limit))


def test_a_higher_limit_needs_text_that_is_not_there_unless_every_candidate_ended() -> None:
    assert texts(len(SAID) + 1) is None
    ended = call(finish_reason=("stop", "stop"), stop_reason=("\n\n", None))
    assert output_of(ended, request(max_tokens=1000), 1000, TOKENIZER) is not None


def test_a_text_whose_tokens_were_counted_elsewhere_is_given_as_it_is_where_the_limit_is_the_same() -> None:
    """A server that returns text: it cut at its own 64 tokens, which are fewer here."""
    served = call(max_tokens=64)
    assert output_of(served, request(max_tokens=64), 64, TOKENIZER) is not None
    assert output_of(served, request(max_tokens=65), 65, TOKENIZER) is None


def test_a_text_that_was_recorded_longer_than_asked_is_cut() -> None:
    answer = output_of(call(max_tokens=3), request(max_tokens=3), 3, TOKENIZER)
    assert answer is not None
    assert [(each.ids, each.finish_reason) for each in answer.candidates] == [(tuple(SAID[:3]), "length"), (tuple(ENDED[:3]), "length")]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"temperature": 0.5}, "a different temperature"),
        ({"top_p": 0.5}, "a different top_p"),
        ({"seed": 6}, "a different seed"),
        ({"stop": ()}, "a different stop"),
        ({"option_ids": (1, 2)}, "a different options"),
        ({"n": 3}, "3 candidates, but 2 were recorded"),
        ({}, None),
    ],
)
def test_what_asks_otherwise_gets_nothing(fields: dict[str, Any], says: str | None) -> None:
    found = mismatch(call(), request(**fields), "draft")
    assert found is None if says is None else says in str(found)


def test_another_engine_would_have_said_something_else() -> None:
    assert mismatch(call(), request(), "target") == "the recorded call went to the engine `draft`"


def row(blank: Any, **fields: Any) -> CallRow:
    recorded = call()
    own = {name: getattr(recorded, name) for name in CALL_COLUMNS}
    own |= {column: (getattr(SURE, measure), None) for measure, column in MEASURED_IN.items()}
    ours = {**own, "prompt_digest": request().digest(), "input_tokens": len(PROMPT), "cached_input_tokens": 3, "queue_time_s": 0.125}
    made: CallRow = blank(CallRow, **{**ours, **fields})
    return made


@pytest.fixture
def calls(tmp_path: Path, blank: Any) -> RecordedCalls:
    """A call that was answered at its second attempt, one that never was, and one more of each in a second part."""
    failed = {"error_type": "CallTimeout", "prompt_digest": None, "output_token_ids": (), "finish_reason": (), "stop_reason": ()}
    for number in range(2):
        store = RunStore(tmp_path)
        names = f"p#{number}/1/draft", f"p#{number}/2/draft"
        store.append("calls", [row(blank, request_id=name, **failed) for name in names] + [row(blank, request_id=names[0])])
        store.close()
    return RecordedCalls(tmp_path)


def test_an_answered_attempt_is_found_in_any_part(calls: RecordedCalls) -> None:
    for number in range(2):
        name = f"p#{number}/1/draft"
        found = calls.find(request(request_id=name))
        assert (found.request_id, found.output_token_ids, found.timing.queue_time_s) == (name, (SAID, ENDED), 0.125)
        assert found.timing.prefill_time_s is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"request_id": "p#0/3/draft"}, "the recorded run made no such call"),
        ({"request_id": "p#0/2/draft"}, "the recorded call got no answer"),
        ({"prompt_ids": PROMPT[1:]}, "the recorded call had a different prompt"),
        ({"stop_ids": (1,)}, "the recorded call had a different prompt"),
    ],
)
def test_why_there_is_no_answer_is_said(calls: RecordedCalls, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(NeverGenerated, match=f"needs text that was never generated: {says}") as caught:
        calls.find(request(**fields))
    assert caught.value.request_id == fields.get("request_id", "p#0/1/draft")


def test_a_run_without_calls_answers_nothing(tmp_path: Path) -> None:
    RunStore(tmp_path).close()
    with pytest.raises(NeverGenerated, match="made no such call"):
        RecordedCalls(tmp_path).find(request())


@pytest.mark.anyio
async def test_a_call_takes_as_long_as_it_took(calls: RecordedCalls) -> None:
    engine = ReplayEngine("draft", RecordedText("draft", calls, TOKENIZER, VOCAB_SIZE), max_model_len=100)
    start = anyio.current_time()
    completion = await engine.generate(request(max_tokens=len(SAID)))
    assert anyio.current_time() == start + 0.25
    assert completion.usage == Usage(input_tokens=len(PROMPT), output_tokens=len(SAID) + len(ENDED) + 1)
    with pytest.raises(NeverGenerated, match=r"allows 64 tokens, but a recorded text was cut at \d+"):
        await engine.generate(request())
    with pytest.raises(ContextOverflow):
        await engine.generate(request(prompt_ids=PROMPT * 20))
    found = engine.statistics()
    assert (found.requests, found.output_tokens, found.busy_s, found.running) == (1, completion.usage.output_tokens, 0.25, 0)


@pytest.mark.anyio
async def test_how_sure_the_model_was_is_told_where_it_was_recorded(calls: RecordedCalls) -> None:
    engine = ReplayEngine("draft", RecordedText("draft", calls, TOKENIZER, VOCAB_SIZE), max_model_len=100)
    found = await engine.generate(request(max_tokens=len(SAID), logprobs=True, n=1))
    assert [each.confidence for each in found.candidates] == [SURE]
    for asked in (request(max_tokens=len(SAID), logprobs=True), request(max_tokens=2, logprobs=True, n=1)):
        with pytest.raises(NeverGenerated, match="no log probabilities of this text were recorded"):
            await engine.generate(asked)


@pytest.mark.anyio
async def test_who_waits_for_an_engine_that_closes_is_told(calls: RecordedCalls) -> None:
    engine = ReplayEngine("draft", RecordedText("draft", calls, TOKENIZER, VOCAB_SIZE), max_model_len=100)
    told: list[str] = []

    async def ask() -> None:
        with pytest.raises(EngineDead, match="it was closed"):
            await engine.generate(request(max_tokens=len(SAID)))
        told.append("dead")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.sleep(0.125)
        assert engine.statistics().running == 1
        await engine.aclose()
    await ask()
    assert told == ["dead", "dead"]
    assert engine.statistics().busy_s == 0.125


def test_a_digest_tells_what_is_asked_about() -> None:
    others = [
        request(prompt_ids=(1, 2, 3)),
        request(prompt_ids=(1, 2)),
        request(prompt_ids=(1, 2), stop_ids=(3,)),
        request(prompt_ids=(1, 2), scored_ids=(3,)),
        request(prompt_ids=(1, 2), scored_ids=(3, 4)),
        request(prompt_ids=(1, 2), stop_ids=(3,), scored_ids=(4,)),
        request(prompt_ids=(2, 1)),
    ]
    assert len({each.digest() for each in others}) == len(others)
    assert request(prompt_ids=[1, 2]).digest() == request(prompt_ids=(1, 2), request_id="other", priority=3).digest()
    assert all(-(1 << 63) <= each.digest() < 1 << 63 for each in others)
