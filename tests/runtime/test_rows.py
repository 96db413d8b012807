"""What the first rows of a session, and its failed attempts, show: a run that is in vain stops, and silence has a reason."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.errors import RunError
from pipeline.options import RunOptions
from pipeline.run.prepare import resume_options
from pipeline.run.run import run
from pipeline.runtime.rows import FIRST, QUIET_NS, FirstRows, Setbacks
from pipeline.store.rows import CallRow, ChainRow, StepRow
from tests.support.paths import ROOT
from tests.support.rows import blank
from tests.support.runs import servers_file, write_problems
from tests.support.served import TOKENIZER
from tests.support.small_server import HOSTED, Fault, Handler, Reply, edited, small_server, status

VERDICT: StepRow = blank(
    StepRow, verify_stage="verify", score_options=("0", "1"), score_probs=(0.0, 0.0), score_mass=0.0, decision="fallback"
)


def failed(number: int, words: str = "answered 400: {id} asks for {number} tokens", error: str = "RequestRefused") -> ChainRow:
    name = f"p{number}#0"
    words = words.format(id=name, number=number)
    return blank(ChainRow, chain_id=name, error_type=error, error_message=words, error_stage="draft", stop_reason="error")


def test_a_run_stops_where_no_option_had_probability_in_its_first_verdicts() -> None:
    first = FirstRows()
    for _ in range(FIRST - 1):
        first.step(VERDICT)
        first.step(structs.replace(VERDICT, score_mass=None))  # of a judge that chooses among no options
    with pytest.raises(RunError, match=r"in the first 32 verdicts of stage 'verify', whose options are '0', '1': every draft is paid for"):
        first.step(VERDICT)


def test_an_option_with_probability_lets_a_run_go_on_whatever_is_rejected() -> None:
    first = FirstRows()
    for number in range(3 * FIRST):
        first.step(structs.replace(VERDICT, score_mass=float(number == FIRST - 1)))


def test_a_run_stops_where_its_first_chains_end_with_one_refusal_whatever_the_request() -> None:
    first = FirstRows()
    for number in range(FIRST - 1):
        first.chain(failed(number))
        first.chain(blank(ChainRow, stop_reason="cancelled"))
        first.chain(blank(ChainRow, stop_reason="error", error_type="BadRow", error_message="row 3: no problem"))
    with pytest.raises(RunError, match=r"32 chains all failed in stage 'draft' with one error: answered 400: p99#0 asks.*--retry-failed"):
        first.chain(failed(99))


@pytest.mark.parametrize(
    "other", [blank(ChainRow, stop_reason="thought_closed"), failed(1, "answered 400: another"), failed(1, error="CallTimeout")]
)
def test_one_chain_that_ends_otherwise_lets_a_run_go_on(other: ChainRow) -> None:
    first = FirstRows()
    for row in (other, *map(failed, range(3 * FIRST))):
        first.chain(row)  # which would raise `RunError`


def test_a_silent_engine_is_told_at_its_second_failure_and_shown_until_it_answers() -> None:
    told: list[str] = []
    setbacks = Setbacks(told.append)
    calls = [blank(CallRow, request_id=f"{name}/1", chain_id=name, error_type="EngineUnavailable", error_message="503") for name in "abc"]
    for row in calls:
        setbacks.call(row)
    assert not told
    setbacks.call(structs.replace(calls[0], attempt=1))
    assert told == ["503; its calls wait for their next attempt, number 3"]
    setbacks.chain(failed(1))
    setbacks.chain(blank(ChainRow, chain_id="b"))
    assert setbacks.reasons(0) == ["503; its calls wait for their next attempt, number 3"]
    setbacks.call(structs.replace(calls[0], error_type=None))
    assert setbacks.reasons(QUIET_NS) == []
    setbacks.call(structs.replace(calls[0], attempt=1))
    assert (len(told), setbacks.reasons(QUIET_NS - 1)) == (1, []), "it has answered: a failure is nothing yet"
    assert setbacks.reasons(QUIET_NS) == ["503; its calls wait for their next attempt, number 3"]


def bad_names(answer: dict[str, Any]) -> None:
    """The log probabilities of tokens that are no options."""
    for choice in answer.get("choices", ()):
        if (known := choice.get("logprobs")) and known["top_logprobs"]:
            known["top_logprobs"] = [{f"zz{place}": value for place, value in enumerate(top.values())} for top in known["top_logprobs"]]


def long_refused(handler: Handler, reply: Reply) -> None:
    (status(400, "max_tokens must be at most 200") if handler.body["max_tokens"] > 200 else Handler.send)(handler, reply)


def in_the_run(fault: Fault) -> Fault:
    """A server that does this to the calls of a run, and answers what is asked at its opening."""
    return lambda handler, reply: (fault if "Problem number" in str(handler.body.get("prompt")) else Handler.send)(handler, reply)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [(edited(bad_names), "no option had any probability"), (long_refused, "answered 400: max_tokens must be at most 200")],
)
def test_a_run_in_vain_ends_as_failed_with_the_servers_words_and_goes_on_when_mended(tmp_path: Path, fault: Fault, words: str) -> None:
    with small_server(HOSTED, TOKENIZER) as server:
        engines = servers_file(tmp_path, model="tiny", more=", max_model_len: 512", draft=server.base_url, target=server.base_url)
        engines.write_text(engines.read_text().replace("tiny-draft", "tiny-target"))
        options = RunOptions(
            graph=ROOT / "graphs/speccot.yaml",
            input=(str(write_problems(tmp_path, 50)),),
            engines=engines,
            output=tmp_path / "run",
            settings=("max_steps=4",),
        )
        server.always = in_the_run(fault)
        stopped = run(options)
        assert (stopped.exit_code, stopped.run.status) == (1, "failed")
        assert words in str(stopped.error)
        assert stopped.run.error == str(stopped.error)
        assert stopped.done + stopped.failed < 50
        server.always = None
        resumed = run(structs.replace(resume_options(tmp_path / "run"), retry_failed=True))
        assert (resumed.exit_code, resumed.done) == (0, 50)
