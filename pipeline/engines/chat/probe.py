"""Finds out, by asking it, whether a server with chat completions alone serves a model and takes the fields of a request."""

from pipeline.engines.chat.spec import ChatSpec
from pipeline.engines.openai.client import Broken, Reply, Server, server_error_of
from pipeline.engines.openai.probe import listed_models, served_model
from pipeline.engines.openai.replies import refuse_closed
from pipeline.errors import GraphError

_MOST_BYTES = 1 << 20
_TOKENS = 16
"""Most tokens of the reply that is asked for."""


async def check_model(where: str, server: Server, spec: ChatSpec) -> None:
    """Ask the server for its models, and its model for one small reply with all fields that a run sends. Raises `GraphError`, with the
    server's own words, where it cannot be reached, wants another key, does not serve the model or refuses the request."""

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
        remedy = "max_tokens_key, send_sampling, chat_template_kwargs and extra say what is sent"
        raise GraphError(where, f"{server.url} refuses a small chat with {spec.model!r} (status {reply.status}): {said}; {remedy}")


def small_body(spec: ChatSpec, model: str) -> dict[str, object]:
    """A small request to `model` with all fields that the requests of a run have."""
    sampling = {"temperature": 0.6, "top_p": 1.0, "seed": 0} if spec.send_sampling else {}
    messages = [{"role": "user", "content": "0 or 1?"}]
    return {"model": model, "messages": messages, spec.max_tokens_key: _TOKENS, **sampling, **spec.fields}
