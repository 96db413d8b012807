"""Prompts as the messages of a chat, and replies as candidates. Pure.

A prompt of token ids enters that `ChatTokenizer` has rendered, a list of messages leaves; the text of a reply enters, a `Candidate`
leaves. What a chat cannot carry, the beginning of a message that the model is to write on, is put into words or refused.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from pipeline.engine import Candidate, FinishReason, Request
from pipeline.engines.sim.tokenizer import ASSISTANT, END, USER, SimTokenizer
from pipeline.errors import RequestRefused
from pipeline.graph.prompts import THINK_CLOSE, THINK_OPEN

ONLY = "\n\nAnswer with nothing but one of: {options}."
"""What is added to a question whose options the model is to choose from."""
FINAL = "Now give the final answer, and nothing else, within \\boxed{}."
"""What is said where the answer to a finished thought is asked for."""


class Message(Struct, frozen=True):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class Asked(NamedTuple):
    """A request as a chat."""

    messages: tuple[Message, ...]
    thinks: bool
    """Whether the reply begins with a thought; else it is the answer, or an option."""
    options: tuple[str, ...] = ()
    """The labels that the reply is to name one of, in the order of `Request.option_ids`."""


class ChatTokenizer(SimTokenizer):
    """The `Tokenizer` contract for servers that tell nothing of their tokens: three bytes are one, and turns have marks of their own. A
    message of the system is a user's turn before that of the user."""

    vocabulary = "chat-bytes-3"


def asked_of(request: Request, tokenizer: ChatTokenizer) -> Asked:
    """The chat that `request` asks for; raises `RequestRefused` for one that no chat can carry."""
    turns = _turns(request.prompt_ids, tokenizer)
    *said, (_, last) = turns
    thinking = last.removeprefix(THINK_OPEN)
    if request.scored_ids:
        raise RequestRefused("a server with chat completions alone gives no log probabilities of a prompt")
    if request.option_ids:
        options = tuple(tokenizer.decode([id_]) for id_ in request.option_ids)
        question = _message(said[-1], len(said) - 1, said)
        asked = Message("user", question.content + ONLY.format(options=", ".join(options)))
        return Asked((*_messages(said[:-1]), asked), thinks=False, options=options)
    if THINK_CLOSE in thinking:
        thought, _, begun = thinking.partition(THINK_CLOSE)
        if begun.strip():
            raise RequestRefused("a server with chat completions alone cannot write on in an answer that was begun")
        return Asked((*_messages(said), Message("assistant", thought.strip()), Message("user", FINAL)), thinks=False)
    if thinking.strip():
        raise RequestRefused("a server with chat completions alone cannot write on in a thought that was begun")
    return Asked(_messages(said), thinks=True)


def candidate_of(reasoning: str, content: str, finish: FinishReason, request: Request, asked: Asked, tokenizer: ChatTokenizer) -> Candidate:
    """The candidate that a reply is: its thought, closed by the mark of a thought, and what follows it."""
    if not reasoning and content.lstrip().startswith(THINK_OPEN):
        reasoning, _, content = content.lstrip().removeprefix(THINK_OPEN).partition(THINK_CLOSE)
    close = tokenizer.special_ids[THINK_CLOSE]
    if not asked.thinks:
        ids, stop = tokenizer.encode_parts(["", content.strip()]), None
    elif close in request.stop_ids:  # a thought alone; of a model that shows none the whole reply is one
        ids = [*tokenizer.encode_parts(["", (reasoning or content).strip("\n") + "\n"]), close]
        stop = close
    else:
        ids = [*tokenizer.encode_parts(["", reasoning.strip("\n") + "\n"]), close, *tokenizer.encode_parts(["", f"\n\n{content.strip()}"])]
        stop = None
    kept = tuple(ids[: request.max_tokens])
    if len(kept) < len(ids):
        finish = "length"
    return Candidate(
        ids=kept,
        text=tokenizer.decode(kept),
        cumulative_logprob=None,
        finish_reason=finish,
        stop_reason=stop if finish == "stop" else None,
    )


def option_in(content: str, options: Sequence[str]) -> int | None:
    """Which of the options a reply names: the last one that stands by itself in its text; None where there is none."""
    plain = content.rpartition(THINK_CLOSE)[2]
    found = re.findall("|".join(rf"(?<!\w){re.escape(option.strip())}(?!\w)" for option in options), plain)
    return [option.strip() for option in options].index(found[-1]) if found else None


def _turns(ids: Sequence[int], tokenizer: ChatTokenizer) -> list[tuple[str, str]]:
    """The turns of a prompt as mark and text; the last one is what the assistant has begun."""
    marks = {tokenizer.special_ids[mark]: mark for mark in (USER, ASSISTANT)}
    end = tokenizer.special_ids[END]
    turns: list[tuple[str, list[int]]] = []
    for id_ in ids:
        if id_ in marks:
            turns.append((marks[id_], []))
        elif turns and id_ != end:
            turns[-1][1].append(id_)
    return [(mark, tokenizer.decode(text)) for mark, text in turns]


def _messages(turns: Sequence[tuple[str, str]]) -> tuple[Message, ...]:
    return tuple(_message(turn, place, turns) for place, turn in enumerate(turns))


def _message(turn: tuple[str, str], place: int, turns: Sequence[tuple[str, str]]) -> Message:
    mark, text = turn
    if mark == ASSISTANT:
        thought, closed, answer = text.removeprefix(THINK_OPEN).partition(THINK_CLOSE)
        return Message("assistant", f"{thought.strip()}\n\n{answer.strip()}".strip() if closed else thought.strip())
    system = place == 0 and len(turns) > 1 and turns[1][0] == USER
    return Message("system" if system else "user", text)
