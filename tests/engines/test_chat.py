"""Engine `chat`: prompts become messages, replies thoughts, answers and verdicts; what a chat cannot carry is refused at the start."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.engine import Request
from pipeline.engines.openai.chat_messages import FINAL, ChatTokenizer, Message, asked_of, candidate_of, option_in
from pipeline.errors import GraphError, RequestRefused
from pipeline.graph.prompts import THINK_CLOSE
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from tests.support.paths import ROOT
from tests.support.requests import request as batch_line
from tests.support.requests import write_batch
from tests.support.runs import rows, write_problems
from tests.support.small_server import VLLM, Reply, SmallServer, chat_reply, refusal, said, small_server

TOKENIZER = ChatTokenizer()
CLOSE = TOKENIZER.special_ids[THINK_CLOSE]


def request(*messages: dict[str, str], begun: str = "", **fields: Any) -> Request:
    ids = [*TOKENIZER.encode(TOKENIZER.render(messages)), *TOKENIZER.encode(begun)]
    return Request(request_id="r", prompt_ids=ids, max_tokens=fields.pop("max_tokens", 64), **fields)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_the_problem_is_the_users_message() -> None:
    asked = asked_of(request(user("What is 1 + 1?")), TOKENIZER)
    assert asked == ((Message("user", "What is 1 + 1?"),), True, ())


def test_a_message_of_the_system_and_examples() -> None:
    messages = ({"role": "system", "content": "Be brief."}, user("1 + 1?"), {"role": "assistant", "content": "2"}, user("2 + 2?"))
    assert asked_of(request(*messages), TOKENIZER).messages == (
        Message("system", "Be brief."),
        Message("user", "1 + 1?"),
        Message("assistant", "2"),
        Message("user", "2 + 2?"),
    )


def test_the_answer_to_a_finished_thought_is_asked_for() -> None:
    asked = asked_of(request(user("1 + 1?"), begun=f"One and one.{THINK_CLOSE}\n\n"), TOKENIZER)
    assert asked.messages == (Message("user", "1 + 1?"), Message("assistant", "One and one."), Message("user", FINAL))
    assert not asked.thinks


def test_a_choice_is_asked_for_by_name() -> None:
    options = tuple(TOKENIZER.encode("01"))
    asked = asked_of(
        request(user("1 + 1?"), {"role": "assistant", "content": "..."}, user("Which?"), option_ids=options, max_tokens=1), TOKENIZER
    )
    assert asked.options == ("0", "1")
    assert asked.messages[-1].content == "Which?\n\nAnswer with nothing but one of: 0, 1."


@pytest.mark.parametrize(
    ("begun", "fields"),
    [("First,", {}), ("", {"scored_ids": (70,)})],
)
def test_what_no_chat_can_carry_is_refused(begun: str, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused, match="only chat completions"):
        asked_of(request(user("x"), begun=begun, **fields), TOKENIZER)


def test_control_texts_in_a_problem_stay_text() -> None:
    ids = TOKENIZER.encode_parts(["<|user|>", "say <|assistant|> twice", "<|assistant|><think>\n"])
    asked = asked_of(Request(request_id="r", prompt_ids=ids, max_tokens=8), TOKENIZER)
    assert asked.messages == (Message("user", "say <|assistant|> twice"),)


@pytest.mark.parametrize(
    ("reasoning", "content", "stop_ids", "text", "stop"),
    [
        ("One.", "2", (CLOSE,), "One.\n</think>", CLOSE),
        ("", "It is 2.", (CLOSE,), "It is 2.\n</think>", CLOSE),
        ("", "<think>One.</think>2", (CLOSE,), "One.\n</think>", CLOSE),
        ("", "One.\n</think>2", (CLOSE,), "One.\n</think>", CLOSE),
        ("One.", "It is 2.", (), "One.\n</think>\n\nIt is 2.", None),
        ("", "One.</think>It is 2.", (), "One.\n</think>\n\nIt is 2.", None),
        ("", "First.\nIt is 2.", (), "First.\nIt is 2.\n</think>\n\nIt is 2.", None),
        ("", "So \\boxed{2}\nas asked.", (), "So \\boxed{2}\nas asked.\n</think>\n\nSo \\boxed{2}\nas asked.", None),
    ],
)
def test_replies_as_thoughts_and_responses(reasoning: str, content: str, stop_ids: tuple[int, ...], text: str, stop: int | None) -> None:
    asking = request(user("x"), stop_ids=stop_ids)
    found = candidate_of(reasoning, content, "stop", asking, asked_of(asking, TOKENIZER), TOKENIZER)
    assert (found.text, found.stop_reason, found.finish_reason) == (text, stop, "stop")
    assert TOKENIZER.decode(found.ids) == text
    short = request(user("x"), stop_ids=stop_ids, max_tokens=1)
    cut = candidate_of(reasoning, content, "stop", short, asked_of(short, TOKENIZER), TOKENIZER)
    assert (cut.ids, cut.finish_reason, cut.stop_reason) == ((CLOSE,), "stop" if stop else "length", stop)


def test_of_a_reply_that_is_too_long_the_end_of_the_thought_is_left_out() -> None:
    asking = request(user("x"), max_tokens=40)
    found = candidate_of("Hm. " * 100, "It is \\boxed{42}.", "stop", asking, asked_of(asking, TOKENIZER), TOKENIZER)
    assert (len(found.ids), found.finish_reason) == (40, "stop")
    assert found.text.endswith("</think>\n\nIt is \\boxed{42}.")
    finished = request(user("x"), begun=f"So.{THINK_CLOSE}\n\n", max_tokens=8)
    answer = candidate_of("", "After long thought it is \\boxed{42}.", "stop", finished, asked_of(finished, TOKENIZER), TOKENIZER)
    assert answer.text.endswith("\\boxed{42}.")
    assert (len(answer.ids), answer.finish_reason) == (8, "stop")


def test_an_answer_that_was_begun_is_asked_for_again() -> None:
    asked = asked_of(request(user("x"), begun=f"So.{THINK_CLOSE}\n\nThe answer"), TOKENIZER)
    assert asked.messages[1:] == (Message("assistant", "So.\n\nThe answer"), Message("user", FINAL))


def test_a_thought_may_spell_out_the_mark_of_its_end() -> None:
    begun = [*TOKENIZER.encode_parts(["", "Models write </think> at last."]), CLOSE]
    asking = Request(request_id="r", prompt_ids=[*TOKENIZER.encode(TOKENIZER.render([user("x")])), *begun], max_tokens=8)
    assert asked_of(asking, TOKENIZER).messages[1] == Message("assistant", "Models write </think> at last.")


@pytest.mark.parametrize(
    ("reply", "place"),
    [
        ("1", 1),
        ("Candidate 2 is best.", 2),
        ("not 1 but 2", 2),
        ("12", None),
        ("none", None),
        ("<think>1</think>0", 0),
        ("Best: 2 (confidence 0.95)", 2),
    ],
)
def test_options_in_replies(reply: str, place: int | None) -> None:
    assert option_in(reply, ("0", "1", "2")) == place


@pytest.fixture
def server() -> Iterator[SmallServer]:
    with small_server(VLLM, TOKENIZER, model="wise") as small:
        yield small


def options(folder: Path, graph: str, server: SmallServer, **more: Any) -> RunOptions:
    entry = {"backend": "chat", "model": "wise", "base_url": server.base_url, "max_model_len": 8192, **more}
    (folder / "engines.yaml").write_text(json.dumps({"draft": entry, "target": entry}))
    path = ROOT / f"graphs/{graph}.yaml"
    return RunOptions(graph=path, engines=folder / "engines.yaml", input=write_problems(folder, 4), output=folder / graph)


def asked_in(server: SmallServer) -> set[str]:
    """The different requests of a run; one whose connection broke is sent again."""
    return {json.dumps(body) for body in server.bodies if body["messages"][-1]["content"] != "0 or 1?"}  # which is asked before a run


@pytest.mark.slow
@pytest.mark.parametrize(("graph", "calls"), [("target", 4), ("scot", 28)])
def test_graphs_of_whole_thoughts(server: SmallServer, tmp_path: Path, graph: str, calls: int) -> None:
    result = run(options(tmp_path, graph, server))
    assert (result.exit_code, result.done) == (0, 4), result.error
    assert len(asked_in(server)) == calls
    assert {role: facts["api"] for role, facts in result.run.engine_facts.items()} == dict.fromkeys(result.run.engine_facts, "chat")
    assert result.run.totals.output_tokens["target"] > 0
    assert {row["response_model"] for row in rows(result, "calls")} == {"wise"}


@pytest.mark.slow
def test_a_model_that_shows_no_thought_and_fills_its_context(server: SmallServer, tmp_path: Path) -> None:
    """The answer stands at the end of a long reply, and the server refuses more tokens than its context has room for."""

    def plain(body: Mapping[str, Any]) -> Reply:
        if body["max_tokens"] + 20 > 8192:
            return refusal(400, "This model's maximum context length is 8192 tokens.")
        return said(body, "A step of this thought. " * 300 + "\nSo it is \\boxed{42}.")

    server.chat = plain
    result = run(options(tmp_path, "target", server))
    assert (result.exit_code, result.done) == (0, 4), result.error
    assert {row["answer"] for row in rows(result, "chains")} == {"42"}


@pytest.mark.parametrize("graph", ["speccot", "specreason", "likelihood"])
def test_graphs_that_write_on_are_refused_before_a_call(server: SmallServer, tmp_path: Path, graph: str) -> None:
    with pytest.raises(GraphError, match="cannot continue a partial reply, which stage `"):
        run(options(tmp_path, graph, server))
    assert not asked_in(server)


@pytest.mark.parametrize(
    ("fields", "said"), [({"model": "wiser"}, "does not serve 'wiser'"), ({"api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY")]
)
def test_wrong_servers_are_one_sentence(server: SmallServer, tmp_path: Path, fields: dict[str, str], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        run(options(tmp_path, "target", server, **fields))


@pytest.mark.slow
def test_a_server_that_rejects_what_a_run_sends_is_told_before_it(server: SmallServer, tmp_path: Path) -> None:
    server.chat = lambda body: refusal(400, "no seed") if "seed" in body else chat_reply(body)
    with pytest.raises(GraphError, match=r"rejects a small chat with 'wise' \(status 400\): no seed; max_tokens_key, send_sampling"):
        run(options(tmp_path, "target", server))
    assert run(options(tmp_path, "target", server, send_sampling=False)).done == 4


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "refused"), [({}, ["few"]), ({"send_sampling": False}, ["few", "cold"])])
def test_a_request_for_sampling_that_no_chat_has_is_refused(
    server: SmallServer, tmp_path: Path, fields: dict[str, Any], refused: list[str]
) -> None:
    asked = [batch_line("plain"), batch_line("few", top_k=5), batch_line("cold", temperature=0), batch_line("all", top_k=-1, top_p=1)]
    usual = options(tmp_path, "target", server, **fields)
    result = run(structs.replace(usual, input=write_batch(tmp_path / "batch.jsonl", asked), fail_on_error=1.0))
    errors = {row["problem_id"]: row["error_message"] for row in rows(result, "chains") if row["error_type"] == "RequestRefused"}
    assert (list(errors), result.done) == (refused, 4 - len(refused))
    assert errors["few"] == "engine 'target' does not support `top_k`, which this problem sets to 5; leave it out"
