"""A small real HTTP server with OpenAI's completions endpoint, which answers as vLLM, llama.cpp or a hosted one does.

It writes a text that follows from prompt, seed and index alone, keeps every request it got, and can be told to fail the
next ones in all the ways in which servers fail.
"""

import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pipeline.engine import Tokenizer

OPENAI_FIELDS = frozenset(
    "model prompt max_tokens temperature top_p n seed stop stream logprobs presence_penalty frequency_penalty".split()
)
WAIT_S = 10.0
"""No test waits longer for anything."""
Reply = tuple[int, Mapping[str, str], bytes]
Fault = Callable[["Handler", Reply], None]
"""What is done with a reply instead of sending it."""


@dataclass(frozen=True)
class Kind:
    """How a kind of server differs from the others."""

    owned_by: str
    ids: bool = False
    """Takes and returns token ids, stop ids, named options; else texts and OpenAI's own fields alone, and gives log probabilities of few
    tokens."""
    newer_logprobs: bool = False
    logprobs: bool = True
    """Gives log probabilities; else they are null."""
    bos: bool = False
    """Counts a token of its own before a text prompt."""
    wraps: int = 0
    """The number of tokens of a chat template that are put around a text prompt."""
    keeps: int = 1 << 30
    """The number of tokens that are read of a longer prompt."""
    card: Mapping[str, Any] = field(default_factory=dict)


VLLM = Kind("vllm", ids=True, card={"max_model_len": 512})
LLAMA = Kind("llamacpp", newer_logprobs=True)
HOSTED = Kind("someone")


def status(number: int, message: object = "not now", headers: Mapping[str, str] | None = None) -> Fault:
    """Answer with an error."""
    return lambda handler, reply: handler.send(refusal(number, message, headers))


def hang(handler: "Handler", reply: Reply) -> None:
    """Never answer; the connection ends when either side closes it."""
    handler.rfile.read(1)
    handler.close_connection = True


def cut(handler: "Handler", reply: Reply) -> None:
    """Close in the middle of the body."""
    handler.send((reply[0], {"Content-Length": str(len(reply[2]))}, reply[2][: len(reply[2]) // 2]))
    handler.close_connection = True


def raw(content: bytes) -> Fault:
    """Answer with these bytes."""
    return lambda handler, reply: handler.send((200, {}, content))


def edited(edit: Callable[[dict[str, Any]], object]) -> Fault:
    """Answer, but with this change."""

    def fault(handler: "Handler", reply: Reply) -> None:
        answer = json.loads(reply[2])
        edit(answer)
        handler.send((reply[0], {}, json.dumps(answer).encode()))

    return fault


def late(seconds: float) -> Fault:
    """Answer after a while."""

    def fault(handler: "Handler", reply: Reply) -> None:
        threading.Event().wait(seconds)
        handler.send(reply)

    return fault


@dataclass(frozen=True)
class Seen:
    """A request that came in."""

    method: str
    path: str
    headers: Message
    body: dict[str, Any]


class SmallServer:
    """One server; `stop` ends it with all its connections, `start` brings it back on the same port."""

    def __init__(self, kind: Kind, tokenizer: Tokenizer, model: str = "tiny", key: str | None = None) -> None:
        self.kind, self.tokenizer, self.model, self.key = kind, tokenizer, model, key
        self.faults: deque[Fault] = deque()
        self.always: Fault | None = None
        self.adapters: dict[str, str] = {}
        """Further models that it lists, as vLLM lists adapters: by name, with the model that each belongs to."""
        self.metrics = ""
        """What `/metrics` says; empty: there is no such page."""
        self.seen: list[Seen] = []
        self.changed = threading.Condition()
        self._port = 0
        self._sockets: set[socket.socket] = set()
        self.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Of the completions asked for."""
        return [seen.body for seen in self.seen if seen.method == "POST"]

    def start(self) -> None:
        """Listen."""
        self._http = Listener(("127.0.0.1", self._port), Handler)
        self._http.small = self
        self._port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close the port and every connection, as a process that is killed does."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        with self.changed:
            for open_socket in self._sockets:
                with suppress(OSError):
                    open_socket.shutdown(socket.SHUT_RDWR)

    def wait_for(self, condition: Callable[[list[Seen]], bool]) -> None:
        """Wait until the requests so far fulfil `condition`."""
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self.seen), WAIT_S)

    def connected(self, connection: socket.socket, present: bool) -> None:
        """A connection opens or ends."""
        with self.changed:
            (self._sockets.add if present else self._sockets.discard)(connection)
            self.changed.notify_all()

    def wait_until_alone(self) -> None:
        """Wait until nobody is connected."""
        with self.changed:
            assert self.changed.wait_for(lambda: not self._sockets, WAIT_S)

    def answer(self, seen: Seen) -> Reply:
        """The reply of a server that is well."""
        with self.changed:
            self.seen.append(seen)
            self.changed.notify_all()
        if self.key is not None and seen.headers.get("Authorization") != f"Bearer {self.key}":
            return refusal(401, f"Incorrect API key provided: {seen.headers.get('Authorization')}")
        if seen.path == "/v1/models":
            model = {"id": self.model, "owned_by": self.kind.owned_by, **self.kind.card}
            adapters = [{"id": name, "owned_by": self.kind.owned_by, "parent": parent} for name, parent in self.adapters.items()]
            return page({"object": "list", "data": [model, *adapters]})
        if seen.path == "/metrics" and self.metrics:
            return 200, {"Content-Type": "text/plain"}, self.metrics.encode()
        if seen.path == "/v1/chat/completions":
            return chat_reply(seen.body)
        if seen.path != "/v1/completions":
            return refusal(404, "Not Found")
        return Writer(self, seen.body).reply()


def story(prompt: Sequence[int], draw: int) -> str:
    """Two steps of a thought, its end and an answer, other ones for another prompt or draw."""
    number = int.from_bytes(blake2b(repr((list(prompt), draw)).encode(), digest_size=2).digest())
    return f"So {number % 97} pens.\n\nThen {number % 89} pens.\n\n</think>\n\nThe answer is {number % 10}.<|end|>"


def chat_reply(body: Mapping[str, Any]) -> Reply:
    """A thought and an answer in each choice, or the name of one of the options that are asked for."""
    asks = "nothing but one of" in body["messages"][-1]["content"]
    message = {"content": "Not 0, I take 1."} if asks else {"content": "It is \\boxed{391}.", "reasoning_content": "So it is \\boxed{391}."}
    choices = [{"index": index, "message": {"role": "assistant", **message}, "finish_reason": "stop"} for index in range(body["n"])]
    return page({"id": "chat", "object": "chat.completion", "model": body["model"], "choices": choices})


def page(content: Mapping[str, Any]) -> Reply:
    return 200, {}, json.dumps(content).encode()


def refusal(code: int, message: object, headers: Mapping[str, str] | None = None) -> Reply:
    return code, headers or {}, json.dumps({"error": {"message": message, "type": "BadRequestError", "code": code}}).encode()


class Writer:
    """Writes what one body asks for."""

    def __init__(self, server: SmallServer, body: dict[str, Any]) -> None:
        self.server, self.kind, self.body, self.tokenizer = server, server.kind, body, server.tokenizer
        self.prompt = body["prompt"] if isinstance(body["prompt"], list) else self.tokenizer.encode(body["prompt"])

    def reply(self) -> Reply:
        body, kind = self.body, self.kind
        if body["model"] not in (self.server.model, *self.server.adapters):
            return refusal(404, f"The model `{body['model']}` does not exist.")
        unknown = sorted(body.keys() - OPENAI_FIELDS)
        if unknown and not kind.ids:
            return refusal(400, f"Unrecognized request argument supplied: {unknown[0]}")
        if isinstance(body["prompt"], list) and not kind.ids:
            return refusal(400, "prompt must be a string")
        if (body.get("logprobs") or 0) > (max_logprobs := 20 if kind.ids else 5):
            return refusal(400, f"logprobs must be at most {max_logprobs}")
        if len(self.prompt) + body["max_tokens"] > 512:
            return refusal(400, "This model's maximum context length is 512 tokens. Please reduce the length of the prompt.")
        choices = [self.choice(index) for index in range(body.get("n", 1))]
        sampled = sum(len(choice.pop("sampled")) for choice in choices)
        added = kind.bos + kind.wraps if isinstance(body["prompt"], str) else 0
        counted = min(len(self.prompt) + added, kind.keeps)
        usage = {"prompt_tokens": counted, "completion_tokens": sampled}
        about = {"id": "cmpl", "object": "text_completion", "model": body["model"], "system_fingerprint": "small-1"}
        return page({**about, "choices": choices, "usage": usage})

    def choice(self, index: int) -> dict[str, Any]:
        greedy = not self.body.get("temperature") or self.body.get("top_k") == 1 or self.body.get("min_p") == 1.0
        draw = 0 if greedy else self.body.get("seed", 0) + index
        ids, finish, stop = self.sample(self.tokenizer.encode(story(self.prompt, draw)))
        choice: dict[str, Any] = {"index": index, "text": self.text(ids, finish, stop), "finish_reason": finish, "sampled": ids}
        if self.kind.ids:
            choice["stop_reason"] = None if stop in self.tokenizer.eos_ids else stop
            choice["token_ids"] = ids if self.body.get("return_token_ids") else None
            choice["prompt_token_ids"] = self.prompt if self.body.get("return_token_ids") else None
        if self.body.get("logprobs") is not None:
            choice["logprobs"] = self.logprobs(ids) if self.kind.logprobs else None
        return choice

    def sample(self, script: list[int]) -> tuple[list[int], str, str | int | None]:
        """Token by token until something ends it."""
        stop_ids = self.body.get("stop_token_ids", []) if self.kind.ids else []
        ids: list[int] = []
        for token in self.body.get("allowed_token_ids") or script:
            ids.append(token)
            if token in self.tokenizer.eos_ids or token in stop_ids:
                return ids, "stop", token
            for stop in self.body.get("stop", []):
                if stop in self.tokenizer.decode(ids):
                    return ids, "stop", stop
            if len(ids) == self.body["max_tokens"]:
                break
        return ids, "length", None

    def text(self, ids: Sequence[int], finish: str, stop: str | int | None) -> str:
        """What is shown of it; servers trim the stop unless told otherwise."""
        text = self.tokenizer.decode(ids[:-1] if isinstance(stop, int) else ids)
        if isinstance(stop, str):
            before, found, _ = text.partition(stop)
            return before + (found if self.body.get("include_stop_str_in_output") else "")
        return text

    def logprobs(self, ids: Sequence[int]) -> dict[str, Any]:
        """-0.5 for a sampled token; the named options, or the digits 1 to 9 and as many others as asked for, below it."""
        others = self.body.get("logprob_token_ids") or [self.tokenizer.encode(digit)[-1] for digit in "123456789"][: self.body["logprobs"]]
        tops = [{token: -0.5} | {other: -1.0 - place for place, other in enumerate(others)} for token in ids]
        if self.kind.newer_logprobs:
            named = [[{"id": id_, "token": self.tokenizer.decode([id_]), "logprob": value} for id_, value in top.items()] for top in tops]
            return {"content": [{**top[0], "top_logprobs": top} for top in named]}
        as_ids = self.body.get("return_tokens_as_token_ids")
        label = (lambda token: f"token_id:{token}") if as_ids else (lambda token: self.tokenizer.decode([token]))
        return {
            "tokens": [label(token) for token in ids],
            "token_logprobs": [-0.5] * len(ids),
            "top_logprobs": [{label(token): value for token, value in top.items()} for top in tops],
        }


class Listener(ThreadingHTTPServer):
    """Knows whose it is, and says nothing of connections that break."""

    small: SmallServer
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Listener

    @property
    def small(self) -> SmallServer:
        return self.server.small

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.small.connected(self.connection, True)

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
        self.small.connected(self.connection, False)

    def do_GET(self) -> None:
        self.respond({})

    def do_POST(self) -> None:
        self.respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def respond(self, body: dict[str, Any]) -> None:
        self.body = body
        reply = self.small.answer(Seen(self.command, self.path, self.headers, body))
        fault = self.small.always
        if self.command == "POST" and self.small.faults:
            fault = self.small.faults.popleft()
        if fault is None:
            self.send(reply)
        else:
            fault(self, reply)

    def send(self, reply: Reply) -> None:
        code, headers, content = reply
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def small_server(kind: Kind, tokenizer: Tokenizer, model: str = "tiny", key: str | None = None) -> Iterator[SmallServer]:
    """A server that is stopped when the block is left."""
    server = SmallServer(kind, tokenizer, model, key)
    try:
        yield server
    finally:
        server.stop()
