"""Finds out, by asking it, whether a server with chat completions alone serves a model, takes the fields of a request, and answers."""

import anyio

from pipeline.engines.chat.spec import ChatSpec
from pipeline.engines.openai.client import ASK_S, Broken, Oversized, Reply, Server, server_error_of
from pipeline.engines.openai.probe import FIRST_DELAY_S, listed_models, served_model
from pipeline.engines.openai.recovery import REFUSED_S
from pipeline.engines.openai.replies import Malformed, Unanswered, Unreadable, refuse_closed
from pipeline.engines.openai.response import decode_response
from pipeline.errors import GraphError

_MOST_BYTES = 1 << 20
_TOKENS = 16
"""Most tokens of the reply that is asked for."""


async def check_model(where: str, server: Server, spec: ChatSpec) -> None:
    """Ask the server for its models, and its model for one small reply with all fields that a run sends. Raises `GraphError`, with the
    server's own words, where it cannot be reached, wants another key, does not serve the model, refuses the request or answers with what
    is no chat."""

    async def ask(model: str) -> Reply:
        return await server.send("/chat/completions", small_body(spec, model), _MOST_BYTES)

    models = await listed_models(where, server, spec.api_key_env, spec.startup_timeout_s)
    model = await served_model(where, server, models, spec.model, ask)
    try:
        reply = await ask(model.id)
    except Broken as error:
        raise GraphError(where, f"the server {error}") from None
    refuse_closed(where, server, spec.api_key_env, reply)
    if not reply.ok and reply.status not in (429, 503):
        said = server_error_of(reply).text
        remedy = "max_tokens_key, send_sampling, chat_template_kwargs and extra determine what is sent"
        raise GraphError(where, f"{server.url} rejects a small chat with {spec.model!r} (status {reply.status}): {said}; {remedy}")
    if nonsense := _nonsense_in(reply):
        raise GraphError(where, f"{server.url} does not answer a chat with {spec.model!r} (it {server.quote(nonsense)}); check base_url")


async def lasting_nonsense(server: Server, spec: ChatSpec) -> str | None:
    """What a server answers to small chats, all of `REFUSED_S` seconds long, that is no reply of a chat, as the end of a sentence about the
    server. None where one has another reply, be it a refusal, or none."""
    began, words = anyio.current_time(), ""
    while anyio.current_time() - began < REFUSED_S:
        found: str | None = None
        with anyio.move_on_after(ASK_S):
            found = await _nonsense(server, spec)
        if found is None:
            return None
        words = found
        await anyio.sleep(FIRST_DELAY_S)
    return f"{words}; it has answered no small chat for {REFUSED_S:g} s"


async def _nonsense(server: Server, spec: ChatSpec) -> str | None:
    try:
        nonsense = _nonsense_in(await server.send("/chat/completions", small_body(spec, spec.model), _MOST_BYTES))
    except Oversized as error:
        return str(error)
    except Broken:
        return None
    return nonsense and f"at {server.url} {server.quote(nonsense)}"


def _nonsense_in(reply: Reply) -> str | None:
    """What makes a reply of status 200 no chat completion, as the end of a sentence about the server; None for any other."""
    try:
        if reply.ok and not decode_response(reply.content).choices:
            return "sent an answer that holds no reply"
    except (Malformed, Unreadable) as flaw:
        return str(flaw)
    except Unanswered:
        return None
    return None


def small_body(spec: ChatSpec, model: str) -> dict[str, object]:
    """A small request to `model` with all fields that the requests of a run have."""
    sampling = {"temperature": 0.6, "top_p": 1.0, "seed": 0} if spec.send_sampling else {}
    messages = [{"role": "user", "content": "0 or 1?"}]
    return {"model": model, "messages": messages, spec.max_tokens_key: _TOKENS, **sampling, **spec.fields}
