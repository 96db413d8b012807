"""What a recorded call says to requests that ask the same, less, or something else."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.confidence import Confidence
from pipeline.engine import Request
from pipeline.engines.sim.replay import RecordedCall, RecordedText, output_of
from pipeline.engines.sim.tokenizer import VOCAB_SIZE, SimTokenizer
from pipeline.errors import GraphError, NeverGenerated
from pipeline.store.rows import MEASURED_IN, CallRow
from pipeline.store.store import RunStore
from tests.support.rows import blank
from tests.support.run_files import SIM, write_run_json

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
        "prompt_digest": request().digest(),
        "top_p": 1.0,
        "max_tokens": len(SAID),
        "seed": 5,
        "choice_count": 2,
        "stop_sequences": ("\n\n",),
        "output_token_ids": (SAID, ENDED),
        "finish_reason": ("length", "stop"),
        "stop_reason": (None, None),
        **{column: (getattr(SURE, measure), None) for measure, column in MEASURED_IN.items()},
    }
    found: RecordedCall = blank(RecordedCall, **ours | {"input_tokens": len(PROMPT), "output_tokens": len(SAID) + len(ENDED)} | fields)
    return found


@pytest.mark.parametrize("limit", range(1, len(SAID)))
def test_a_lower_limit_cuts_and_the_end_of_the_sequence_takes_a_token(limit: int) -> None:
    answer = output_of(call(), request(max_tokens=limit), limit, TOKENIZER)
    found = [(c.text, c.finish_reason, length) for c, length in zip(answer.candidates, answer.lengths, strict=True)]
    assert found[0] == (TOKENIZER.decode(SAID[:limit]), "length", limit)
    ended = (TOKENIZER.decode(ENDED), "stop", len(ENDED) + 1)
    assert found[1] == (ended if limit > len(ENDED) else (TOKENIZER.decode(ENDED[:limit]), "length", limit))


def test_a_text_whose_tokens_were_counted_elsewhere_is_given_as_it_is_where_the_limit_is_the_same() -> None:
    """A server that returns text: it cut at its own 64 tokens, which are fewer here."""
    served = call(max_tokens=64)
    assert [each.ids for each in output_of(served, request(max_tokens=64), 64, TOKENIZER).candidates] == [SAID, ENDED]
    with pytest.raises(NeverGenerated):
        output_of(served, request(max_tokens=65), 65, TOKENIZER)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A call that was answered at its second attempt, one that never was, and one more of each in a second part."""
    failed = {"error_type": "CallTimeout", "prompt_digest": None, "output_token_ids": (), "finish_reason": (), "stop_reason": ()}
    facts = {"answers": "simulated", "max_model_len": 100, "vocab_size": VOCAB_SIZE}
    write_run_json(tmp_path, engines={"draft": SIM}, engine_facts={"draft": facts})
    for number in range(2):
        store = RunStore(tmp_path)

        def row(name: str, number: int = number, **fields: Any) -> CallRow:
            made: CallRow = blank(CallRow, **{**structs.asdict(call()), "engine": "draft", "request_id": f"p#{number}/{name}", **fields})
            return made

        store.append("calls", [row("1/draft", **failed), row("2/draft", **failed), row("1/draft")])
        store.close()
    return tmp_path


def test_an_answered_attempt_is_found_in_any_part(recorded: Path) -> None:
    source = RecordedText("draft", str(recorded))
    for number in range(2):
        found = source.output(request(request_id=f"p#{number}/1/draft", max_tokens=len(SAID)), 100)
        assert [each.ids for each in found.candidates] == [SAID, ENDED]
    assert source.facts == {"answers": "simulated", "replay": str(recorded)}
    with pytest.raises(GraphError, match="had no such engine; known are `draft`"):
        RecordedText("target", str(recorded))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"request_id": "p#0/3/draft"}, "the recorded run answered no such call"),
        ({"prompt_ids": PROMPT[1:]}, "the graph uses another wording or adapter"),
        ({"stop_ids": (1,)}, "the graph uses another wording or adapter"),
        ({"n": 3}, "asks for 3 candidates, but 2 were recorded"),
        ({"temperature": 0.5}, "other `temperature`"),
        ({"stop": ()}, "other `stop_sequences`"),
        ({"option_ids": (1, 2)}, "other `option_ids`"),
        ({"logprobs": True}, "no log probabilities of this text were recorded"),
        ({"max_tokens": len(SAID) + 1}, r"allows \d+ tokens, but a recorded text was cut at \d+"),
        ({"logprobs": True, "n": 1, "max_tokens": 2}, "no log probabilities of this text were recorded"),
    ],
)
def test_why_there_is_no_answer_is_said(recorded: Path, fields: dict[str, Any], says: str) -> None:
    asked = request(**{"request_id": "p#0/1/draft", "max_tokens": len(SAID), **fields})
    with pytest.raises(NeverGenerated, match=f"needs text that was never generated: .*{says}"):
        RecordedText("draft", str(recorded)).output(asked, 100)


def test_how_sure_the_model_was_is_told_where_it_was_recorded(recorded: Path) -> None:
    asked = request(request_id="p#0/1/draft", max_tokens=len(SAID), logprobs=True, n=1)
    assert [each.confidence for each in RecordedText("draft", str(recorded)).output(asked, 100).candidates] == [SURE]


def test_a_digest_tells_what_is_asked_about() -> None:
    others = [request(prompt_ids=(1, 2, 3)), request(prompt_ids=(2, 1))]
    others += [request(prompt_ids=(1, 2), stop_ids=stop_ids) for stop_ids in ((), (3,), (3, 4))]
    assert len({each.digest() for each in others}) == len(others)
    assert request(prompt_ids=[1, 2]).digest() == request(prompt_ids=(1, 2), request_id="other", priority=3).digest()
    assert all(-(1 << 63) <= each.digest() < 1 << 63 for each in others)
