"""`examples/chat_engine.py` over a real server: graphs of whole thoughts end, what continues a thought is refused, and errors are read."""

import json
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

import pipeline
from pipeline.engine import Request
from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.errors import BadCompletion, EngineUnavailable, GraphError, PipelineError, RequestRefused
from tests.support.paths import ROOT
from tests.support.small_server import VLLM, Fault, SmallServer, raw, small_server, status

PROBLEMS = [{"problem": "What is 17 * 23?", "answer": "391"}, {"problem": "What is 300 + 91?", "answer": "391"}]
SCRIPT = str(ROOT / "examples/chat_engine.py")
TOKENIZER = SimTokenizer()
KEY = "sk-canary-7f3a"


@pytest.fixture
def anyio_backend() -> str:
    """A real server answers in real time."""
    return "asyncio"


@pytest.fixture(scope="module")
def example() -> Mapping[str, Any]:
    return runpy.run_path(SCRIPT)


@pytest.fixture
def server() -> Iterator[SmallServer]:
    with small_server(VLLM, TOKENIZER, model="wise", key=KEY) as small:
        yield small


def engines(example: Mapping[str, Any], server: SmallServer, key: str = KEY) -> dict[str, Any]:
    return {role: example["Chat"](role, server.base_url, "wise", key=key) for role in ("draft", "target")}


def asked(*messages: tuple[str, str], begun: Sequence[int] = (), **fields: Any) -> Request:
    prompt = TOKENIZER.encode(TOKENIZER.render([{"role": role, "content": content} for role, content in messages]))
    return Request(request_id="r", prompt_ids=[*prompt, *begun], **{"max_tokens": 64, **fields})


@pytest.mark.parametrize(("graph", "posts"), [("target", [1]), ("scot", [5, 1, 1]), ("self-consistency", [5, 1])])
def test_a_graph_of_whole_thoughts_runs_to_its_end(example: Mapping[str, Any], server: SmallServer, graph: str, posts: list[int]) -> None:
    """Each request is one POST, in which the candidates of a draft are asked for together."""
    played = engines(example, server)
    result = pipeline.solve(graph, PROBLEMS, engines=played if graph != "target" else {"target": played["target"]}, trace=True)
    assert [chain.answer for chain in result] == ["391", "391"]
    assert result.accuracy == 1
    assert sorted(body["n"] for body in server.bodies) == sorted(posts * 2)
    assert {body["messages"][0]["role"] for body in server.bodies} == {"user"}


def test_a_graph_that_continues_thoughts_is_refused_before_a_request(example: Mapping[str, Any], server: SmallServer) -> None:
    with pytest.raises(GraphError, match="cannot continue a partial reply, which stage `"):
        pipeline.solve("speccot", PROBLEMS, engines=engines(example, server))
    assert not server.seen


async def refused(engine: Any, request: Request) -> PipelineError:
    with pytest.raises(PipelineError) as raised:
        await engine.generate(request)
    return raised.value


@pytest.mark.anyio
async def test_what_no_chat_can_carry_and_a_wrong_key_are_refused_in_a_sentence(example: Mapping[str, Any], server: SmallServer) -> None:
    error = await refused(engines(example, server)["target"], asked(("user", "x"), begun=TOKENIZER.encode("First,")))
    assert type(error) is RequestRefused
    assert str(error) == "a server with chat completions only cannot continue a thought"
    assert not server.seen
    error = await refused(engines(example, server, key="sk-wrong")["target"], CHOICE)
    assert str(error) == "the server answered 401"


CHOICE = asked(("user", "Which?"), option_ids=tuple(TOKENIZER.encode("01")), max_tokens=1)


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        (status(500, "out of memory"), EngineUnavailable, "answered 500: "),
        (status(400, "no seed"), RequestRefused, "no seed"),
        (raw(b'{"choices": []}'), BadCompletion, "no chat completion"),
        (raw(json.dumps({"choices": [{"message": {"content": "neither"}}]}).encode()), BadCompletion, "names no option"),
    ],
)
@pytest.mark.anyio
async def test_an_error_of_the_server_is_read(
    example: Mapping[str, Any], server: SmallServer, fault: Fault, kind: type[PipelineError], says: str
) -> None:
    server.faults.append(fault)
    engine = engines(example, server)["target"]
    error = await refused(engine, CHOICE)
    assert (type(error), says in str(error)) == (kind, True), error
    completion = await engine.generate(CHOICE)
    assert (completion.candidates[0].text, completion.option_logprobs) == ("1", (-1e9, 0.0))
    await engine.aclose()


@pytest.mark.anyio
async def test_prompts_are_messages_and_control_texts_in_them_stay_text(example: Mapping[str, Any], server: SmallServer) -> None:
    engine, close = engines(example, server)["target"], TOKENIZER.special_ids["</think>"]
    chat = [("system", "Be brief."), ("user", "1 + 1?"), ("assistant", "2"), ("user", "2 + 2?")]
    await engine.generate(asked(*chat, begun=[*TOKENIZER.encode("Two and two."), close, *TOKENIZER.encode("\n\n")]))
    assert server.bodies[-1]["messages"] == [
        *({"role": role, "content": content} for role, content in chat),
        {"role": "assistant", "content": "Two and two."},
        {"role": "user", "content": example["ANSWER"]},
    ]
    ids = TOKENIZER.encode_parts(["<|user|>", "say <|assistant|> and </think>", "<|assistant|><think>\n"])
    completion = await engine.generate(Request(request_id="r", prompt_ids=ids, max_tokens=64, stop_ids=(close,)))
    assert server.bodies[-1]["messages"] == [{"role": "user", "content": "say <|assistant|> and </think>"}]
    assert (completion.candidates[0].text, completion.candidates[0].stop_reason) == ("So it is \\boxed{391}.\n</think>", close)
    await engine.aclose()


def test_the_script_solves_what_it_shows(server: SmallServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CHAT_KEY", KEY)
    monkeypatch.setattr(sys, "argv", [SCRIPT, server.base_url, "wise"])
    runpy.run_path(SCRIPT, run_name="__main__")
    assert capsys.readouterr().out.endswith("100% right\n")
