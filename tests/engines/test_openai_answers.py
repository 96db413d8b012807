"""Whatever a server sends ends as an answer, as a bad completion or as a refusal, over real HTTP."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings

from pipeline.engine import Completion, Request
from pipeline.engines.openai.backend import open_openai
from pipeline.engines.openai.client import Broken, Server
from pipeline.engines.openai.engine import Deployment, OpenAIEngine
from pipeline.engines.openai.probe import ProbedServer, find_model, listed_model, probe_server
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.validate import validate_completion
from pipeline.errors import EngineUnavailable, GraphError, PipelineError, RequestRefused
from tests.support.odd_replies import OddReply, odd_replies
from tests.support.paths import ROOT
from tests.support.small_server import HOSTED, LLAMA, SGLANG, VLLM, WAIT_S, Fault, Kind, SmallServer, Writer, small_server

TOKENIZER = HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))
PROMPT = TOKENIZER.encode(TOKENIZER.render([{"role": "user", "content": "Tom has 3 pens and buys 2. How many?"}]))
THINK_CLOSE = TOKENIZER.special_ids["</think>"]
DIGITS = tuple(TOKENIZER.encode(digit)[-1] for digit in "0123456789")
KEY = "sk-canary/7f3a+9"
MOST_CHARS = 800
"""Longest message of an error."""


def ask(**fields: Any) -> Request:
    return Request(**{"request_id": "r", "prompt_ids": PROMPT, "max_tokens": 60, "logprobs": True} | fields)


WRITE = ask(n=2, temperature=0.5, stop=("\n\n",), stop_ids=(THINK_CLOSE,))
CHOOSE = ask(max_tokens=1, option_ids=DIGITS[:3])
SCORE = ask(prompt_ids=PROMPT[:-3], max_tokens=1, scored_ids=tuple(PROMPT[-3:]))
CASES: dict[str, tuple[Kind, Request]] = {
    "ids": (VLLM, WRITE),
    "choice": (VLLM, CHOOSE),
    "scores": (VLLM, SCORE),
    "text": (HOSTED, WRITE),
    "text that tells": (SGLANG, WRITE),
    "text choice": (SGLANG, CHOOSE),
    "one at a time": (LLAMA, ask(stop=("\n\n",))),
}
TIMES = {
    "metrics": {"time_to_first_token_ms": 2.5, "generation_time_ms": 10, "queue_time_ms": 1},
    "timings": {"prompt_ms": 2, "predicted_ms": 1},
}


class Case(NamedTuple):
    """A server, a request, and an engine over the server which has asked it what it can do."""

    portal: BlockingPortal
    small: SmallServer
    server: Server
    opened: OpenAIEngine
    spec: OpenAISpec
    request: Request
    valid: bytes
    """The body of the server's own answer to the request."""

    def outcome(self, fault: Fault) -> Completion | PipelineError:
        """What becomes of the request where the server does this with it."""
        self.small.always = fault
        return self.portal.call(self._generate)

    async def _generate(self) -> Completion | PipelineError:
        deployment = Deployment("draft", self.spec, [self.server], 512)
        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                engine = OpenAIEngine(deployment, self.opened.tokenizer, self.opened.can, self.opened.facts, tasks)
                try:
                    return await engine.generate(self.request)
                except PipelineError as error:
                    return error
                finally:
                    tasks.cancel_scope.cancel()


@pytest.fixture(scope="module")
def cases() -> Iterator[dict[str, Case]]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMALL_LOGIN", KEY)
        portal = stack.enter_context(start_blocking_portal())
        made = {}
        for name, (kind, request) in CASES.items():
            small = stack.enter_context(small_server(kind, TOKENIZER, key=KEY))
            spec = OpenAISpec(
                model="tiny",
                base_url=small.base_url,
                tokenizer="bundled:tiny-target",
                max_model_len=512,
                api_key_env="SMALL_LOGIN",
                reconnect_s=0.05,
            )
            engines: AbstractContextManager[Any] = portal.wrap_async_context_manager(open_openai({"draft": spec}))
            opened = stack.enter_context(engines)["draft"]
            server = portal.call(_server, small.base_url)
            stack.callback(portal.call, server.aclose)
            portal.call(opened.generate, request)
            body = msgspec.json.decode(Writer(small, small.bodies[-1]).reply()[2])
            made[name] = Case(portal, small, server, opened, spec, request, msgspec.json.encode(body | TIMES))
        yield made


async def _server(url: str) -> Server:
    return Server("engine 'draft'", url, KEY, 4)


def check(request: Request, outcome: Completion | PipelineError) -> None:
    """Hold an outcome to the promise: an answer that can be kept, or an error of one line that a retry or a chain's row can take."""
    assert KEY not in repr(outcome)
    if isinstance(outcome, Completion):
        flaw = validate_completion(outcome, request, 1 << 20)
        assert flaw is None or len(flaw) < MOST_CHARS
        if flaw is None:
            msgspec.json.encode(outcome)
            for candidate in outcome.candidates:
                assert TOKENIZER.decode(candidate.ids) == candidate.text
            assert max(outcome.usage.input_tokens, outcome.usage.output_tokens) < 1 << 20
        return
    assert isinstance(outcome, EngineUnavailable | RequestRefused)
    says = str(outcome)
    assert len(says) < MOST_CHARS
    assert "\n" not in says
    if isinstance(outcome, EngineUnavailable):
        assert 0 <= (outcome.retry_after_s or 0) <= 3600


def always(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The same examples every time; the one that fails is printed as small as it can be made."""
    return settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, print_blob=True, suppress_health_check=list(HealthCheck)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_whatever_is_answered_ends_as_an_answer_or_as_an_error_of_one_call(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    refusal = b'{"error": {"message": "context length is 99", "type": "x", "code": 400, "n_ctx": 99}, "message": "m", "detail": ["d"]}'

    @always(300)
    @given(reply=odd_replies([case.valid, case.valid, case.valid, refusal], KEY))
    def holds(reply: OddReply) -> None:
        check(case.request, case.outcome(reply.fault()))

    holds()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/models", "/version", "/v1/completions"])
def test_whatever_is_said_at_the_start_opens_the_engine_or_is_one_sentence(cases: dict[str, Case], path: str) -> None:
    case = cases["ids"]
    cards = [{"id": "other", "context_length": 0.5}, {"id": "tiny", "owned_by": "vllm", "max_model_len": 512, "meta": {"n_ctx": 400}}]
    card = msgspec.json.encode({"object": "list", "data": cards})
    originals = {"/v1/models": [card], "/version": [b'{"version": "0.32.0"}'], "/v1/completions": [case.valid]}[path]

    @always(120)
    @given(reply=odd_replies(originals, KEY))
    def holds(reply: OddReply) -> None:
        case.small.always = lambda handler, well: reply.fault()(handler, well) if handler.path == path else handler.send(well)
        found = case.portal.call(_start, case)
        assert KEY not in repr(found)
        assert len(str(found)) < 3 * MOST_CHARS
        if not isinstance(found, GraphError):
            assert 16 <= (found.model.own_context or 16) < 1 << 31
            msgspec.json.encode(found.model)

    holds()


async def _start(case: Case) -> ProbedServer | GraphError:
    """What a run finds out about the server at its start."""
    with anyio.fail_after(WAIT_S):
        with suppress(Broken):
            await listed_model(case.server, "tiny")
        try:
            model = await find_model("engine 'draft'", case.server, case.spec)
            return await probe_server("engine 'draft'", case.server, model, case.spec, TOKENIZER)
        except GraphError as error:
            return error
