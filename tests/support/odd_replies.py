"""Replies over HTTP as no server should send them: strategies of hypothesis that change a valid reply in its JSON, its bytes, its headers
and its length.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.support.fuzzing import mutated
from tests.support.small_server import Fault, Handler, Reply

DEEP = 20_000
"""Deeper than any decoder goes."""


class Token(str):
    """A piece of JSON, or of what is none, that is written as it is."""


class Members(list[tuple[str, Any]]):
    """A JSON object as pairs: a name may be there twice."""


class OddReply(NamedTuple):
    """What a server writes, byte for byte."""

    head: bytes
    body: bytes
    close: bool
    """Whether the server closes the connection after it."""

    def fault(self) -> Fault:
        """What makes a `SmallServer` write it."""

        def send(handler: Handler, reply: Reply) -> None:
            handler.wfile.write(self.head + self.body)
            handler.close_connection = self.close

        return send


def members_of(content: bytes) -> Any:
    """The value in JSON text, its objects as `Members`."""
    return json.loads(content, object_pairs_hook=Members)


def encoded(value: Any) -> bytes:
    """A value that may hold `Members` and `Token`s as JSON text."""
    return _encoded(value).encode(errors="surrogateescape")


def _encoded(value: Any) -> str:
    if isinstance(value, Members):
        return "{" + ",".join(f"{json.dumps(name)}:{_encoded(each)}" for name, each in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_encoded, value)) + "]"
    return str(value) if isinstance(value, Token) else json.dumps(value)


NUMBERS = st.one_of(
    st.sampled_from(["0", "-1", "1", "1.0", "1.5", "-0", "1e400", "-1e400", "1e-400", "1e308", "-1e308", "NaN", "Infinity", "-Infinity"]),
    st.sampled_from([str(number) for number in (10**30, -(10**30), 1 << 62, 1 << 63, -(1 << 63), 1 << 64, (1 << 31) - 1, 1 << 31)]),
    st.sampled_from(["9" * 400, "9" * 5000, "-" + "9" * 5000, "1e99999999", "0." + "0" * 5000 + "1", "0x10", "01"]),
    st.integers(0, 1 << 70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(str),
)


def texts(key: str) -> st.SearchStrategy[str]:
    """Texts in quotes: some that are no JSON, some with the key of the request."""
    return st.one_of(
        st.sampled_from(['""', '"\\ud800"', '"\\ude00\\ud800"', '"\udcff"', '"\udced\udca0\udc80"', '"\0"', '"\\u0000"', '"', "'a'"]),
        st.sampled_from(['"<|end|>"', '"</think>"', '"\\n\\n"', '"stop"', '"length"', '"abort"', '"content_filter"', '"token_id:5"']),
        st.sampled_from([f'"token_id:{"9" * 5000}"', '"token_id:\\u0665"', f'"{"pens " * 40_000}"', '"' + "\\u20ac" * 5000 + '"']),
        st.sampled_from([json.dumps(f"pens {key}\n\nmore {key}"), '"' + "".join(f"\\u{ord(each):04x}" for each in key) + '"']),
        st.text(max_size=8).map(json.dumps),
    )


STRUCTURES = st.sampled_from(
    [
        *("null", "true", "[]", "{}", "[null]", "[[]]", '{"a": 1, "a": 2}', "[1, ]", "", "[" + "0," * 20_000 + "0]"),
        *("[" * DEEP + "]" * DEEP, "[" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, '{"1": {"logprob": 1e400}}'),
    ]
)


@st.composite
def odd_json(draw: st.DrawFn, originals: Sequence[bytes], key: str) -> bytes:
    """One of `originals` with one to three of its fields replaced, dropped, renamed, doubled or swapped."""
    value = [members_of(draw(st.sampled_from(originals)))]
    tokens = st.one_of(NUMBERS, texts(key), STRUCTURES)
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        found = list(places(value))
        holder, index = draw(st.sampled_from(found))
        name, child = holder[index] if isinstance(holder, Members) else (None, holder[index])
        match draw(st.sampled_from(["replace", "replace", "replace", "drop", "rename", "double", "swap"])):
            case "replace":
                child = Token(draw(tokens))
            case "drop" if holder is not value:
                del holder[index]
                continue
            case "rename":
                name = draw(st.sampled_from(["index", "text", "token_ids", "logprobs", "usage", "error", "x"]))
            case "double":
                holder.append(holder[index])
            case _:
                other, place = draw(st.sampled_from(found))
                if place < len(other):
                    child = Token(_encoded(other[place][1] if isinstance(other, Members) else other[place]))
        holder[index] = (name or "x", child) if isinstance(holder, Members) else child
    return encoded(value[0]) if value else b""


def places(value: Any) -> Iterator[tuple[Any, int]]:
    """Every list or object within `value`, with each index of it."""
    for index, child in enumerate(value):
        yield value, index
        inner = child[1] if isinstance(value, Members) else child
        if isinstance(inner, list):
            yield from places(inner)


ENCODINGS: list[Callable[[bytes], bytes]] = [
    lambda body: body.decode(errors="replace").encode("utf-16"),
    lambda body: b"\xef\xbb\xbf" + body,
    lambda body: body.decode(errors="replace").encode("latin-1", errors="replace") + b"\xe9",
    lambda body: b" \n" * 1000 + body + b"\n" * 1000,
    lambda body: body + body,
    lambda body: gzip.compress(body),
    lambda body: b"data: " + body + b"\n\n",
    lambda body: body[: len(body) // 2],
    lambda body: b"<html><h1>502 Bad Gateway</h1></html>",
    lambda body: b"",
    lambda body: b"\xff" * 50,
]
HEADERS = [
    *("Content-Type: text/plain; charset=hex", "Content-Type: application/json; charset=utf-7", "Content-Type: ;;=", "Content-Type: \xff"),
    *("Content-Type: text/html; charset=" + "x" * 3000, "Content-Encoding: gzip", "Content-Encoding: br, deflate", "Content-Encoding: x"),
    *("Content-Encoding: Identity", "Retry-After: 0", "Retry-After: 1.5", "Retry-After: -1", "Retry-After: " + "9" * 5000),
    *("Retry-After: 1e400", "Retry-After: nan", "Retry-After: Fri, 31 Dec 9999 23:59:59 -9999", "Retry-After: Mon, 1 Jan 1 0:0:0 +9999"),
    *("Retry-After: Sun, 06 Nov 2044 08:49:37 +99999999999999999999", "Retry-After: 0, 1 00:00:00", "Retry-After: \xb2"),
    *("Location: http://127.0.0.2:9/v1/completions", "Location: //[", "Location: /v1/completions", "Location: x://y", "Location: \xff"),
    *("Location: https://user:pass@elsewhere.invalid/", "Set-Cookie: a=b; Domain=.com; Expires=x; Max-Age=-9e9", "Set-Cookie: =;;;\x01"),
    *("X: " + "y" * 60_000, "X-Odd", ": x", " folded", "Connection: close", "Upgrade: h2c", "Trailer: X", "Date: " + "9" * 500),
]
FRAMES = ["length", "chunked", "close", "short", "long", "both", "odd", "huge"]
STATUSES = [200, 100, 101, 199, 201, 204, 206, 301, 302, 304, 307, 308, 400, 401, 404, 408, 413, 418, 422, 429, 499, 500, 503, 999]


@st.composite
def odd_replies(draw: st.DrawFn, answers: Sequence[bytes], refusals: Sequence[bytes], key: str) -> OddReply:
    """A valid reply, one of `answers` or `refusals`, of which one part is odd, or all are: its JSON, its bytes, its status, its headers,
    the way in which its length is given."""
    part = draw(st.sampled_from(["json"] * 6 + ["bytes", "encoding", "status", "refusal", "headers", "frame", "all", "all"]))
    originals = refusals if part in ("status", "refusal") else answers
    body = draw(odd_json(originals, key) if part in ("json", "refusal", "all") else st.sampled_from(originals))
    if part == "bytes":
        body = draw(mutated([body]))
    if part == "encoding":
        body = draw(st.sampled_from(ENCODINGS))(body)
    status = draw(st.sampled_from(STATUSES)) if part in ("status", "refusal", "all") else 200
    headers = draw(st.lists(st.sampled_from(HEADERS), min_size=1, max_size=2)) if part in ("headers", "status", "all") else []
    frame, content, whole = framed(draw(st.sampled_from(FRAMES)) if part in ("frame", "all") else "length", body)
    reason = draw(st.sampled_from(["OK", "OK", "", "\xff", "x" * 500])) if part == "all" else "OK"
    whole = whole and status == 200 and not headers
    lines = [f"HTTP/1.1 {status} {reason}", *headers, *frame, *([] if whole else ["Connection: close"])]
    return OddReply("\r\n".join([*lines, "", ""]).encode("latin-1"), content, not whole)


def framed(way: str, body: bytes) -> tuple[list[str], bytes, bool]:
    """The headers that say how long `body` is, the body as it is sent, and whether they are right about it."""
    chunks = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
    match way:
        case "length":
            return [f"Content-Length: {len(body)}"], body, True
        case "chunked":
            return ["Transfer-Encoding: chunked"], chunks + b"0\r\n\r\n", True
        case "close":
            return [], body, False
        case "short":
            return [f"Content-Length: {len(body) // 2}"], body, False
        case "long":
            return [f"Content-Length: {len(body) + 7}"], body, False
        case "both":
            return ["Transfer-Encoding: chunked", "Content-Length: 3"], chunks + b"0\r\n\r\n", False
        case "odd":
            return ["Transfer-Encoding: chunked"], b"zz\r\n" + body, False
        case _:
            return ["Content-Length: " + "9" * 30], body, False
