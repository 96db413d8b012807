"""Prompts as the messages of a chat, and replies as candidates. Pure.

A prompt of token ids enters that `ChatTokenizer` has rendered, a list of messages leaves; the text of a reply enters, a `Candidate`
leaves. What a chat cannot carry, the beginning of a message that the model is to write on, is put into words or refused.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.engine import Candidate, FinishReason, Request
from pipeline.engines.sim.tokenizer import ASSISTANT, END, USER, SimTokenizer
from pipeline.errors import RequestRefused
from pipeline.graph.prompts import THINK_CLOSE, THINK_OPEN, Message

ONLY = "\n\nAnswer with nothing but one of: {options}."
"""This is added to a question whose options the model is to choose from."""
FINAL = "Now give the final answer, and nothing else, within \\boxed{}."
"""This asks for the answer to a finished thought."""


class ChatRequest(NamedTuple):
    """A request as a chat."""

    messages: tuple[Message, ...]
    thinks: bool
    """True if the reply begins with a thought; else it is the answer, or an option."""
    options: tuple[str, ...] = ()
    """The labels that the reply is to name one of, in the order of `Request.option_ids`."""


class ChatTokenizer(SimTokenizer):
    """The `Tokenizer` contract for servers that do not report token ids: three bytes count as one token, and turns have their own markers.
    A system message becomes a user turn before the user's."""

    vocabulary = "chat-bytes-3"


def asked_of(request: Request, tokenizer: ChatTokenizer) -> ChatRequest:
    """The chat that `request` asks for; raises `RequestRefused` for one that no chat can carry."""
    *said, last = _turns(request.prompt_ids, tokenizer)
    if request.scored_ids:
        raise RequestRefused("a server with only chat completions returns no log probabilities of a prompt")
    if request.option_ids:
        options = tuple(tokenizer.decode([id_]) for id_ in request.option_ids)
        question = _message(said[-1], len(said) - 1, said)
        asked = Message("user", question.content + ONLY.format(options=", ".join(options)))
        return ChatRequest((*_messages(said[:-1]), asked), thinks=False, options=options)
    if last.closed:
        thought = f"{last.thought.strip()}\n\n{last.answer.strip()}".strip()
        return ChatRequest((*_messages(said), Message("assistant", thought), Message("user", FINAL)), thinks=False)
    if last.thought.strip():
        raise RequestRefused("a server with only chat completions cannot continue a partial reply")
    return ChatRequest(_messages(said), thinks=True)


def candidate_of(
    reasoning: str, content: str, finish: FinishReason, request: Request, asked: ChatRequest, tokenizer: ChatTokenizer
) -> Candidate:
    """The candidate that a reply is: its thought, closed by the mark of a thought, and what follows it.

    Of a model that shows no thought the whole reply is the thought, and its conclusion the answer. A reply that is cut before its answer
    began is a thought that is not closed. Tokens are counted otherwise than the
    server's, so that a whole reply may be too long: then the end of its thought is left out, and the beginning of an answer.
    """
    whole = bool(reasoning and content.strip())
    if not reasoning:
        begun, closed, after = content.lstrip().removeprefix(THINK_OPEN).partition(THINK_CLOSE)
        if closed or content.lstrip().startswith(THINK_OPEN):
            reasoning, content, whole = begun, after, bool(closed)
    close = tokenizer.special_ids[THINK_CLOSE]
    stop = close if asked.thinks and close in request.stop_ids else None
    if not asked.thinks:
        thought, answer = [], tokenizer.encode_parts(["", content.strip()])
    else:
        thought = tokenizer.encode_parts(["", (reasoning or content).strip("\n") + "\n"])
        concluded = content if reasoning else conclusion(content)
        answer = [close, *([] if stop else tokenizer.encode_parts(["", f"\n\n{concluded.strip()}"]))]
    if finish == "stop":
        thought = thought[: max(0, request.max_tokens - len(answer))]
        cut = len(thought) + len(answer) - request.max_tokens
        kept = (*thought, *(answer[cut:] if cut > 0 and not asked.thinks else answer))[: request.max_tokens]
        finish = "length" if cut > 0 and asked.thinks else "stop"
    else:
        kept = (*thought, *(answer if whole or not asked.thinks else ()))[: request.max_tokens]
    return Candidate(
        ids=kept,
        text=tokenizer.decode(kept),
        cumulative_logprob=None,
        finish_reason=finish,
        stop_reason=stop if finish == "stop" else None,
    )


def conclusion(content: str) -> str:
    """The end of a reply that is no more than its answer: from the last line with a box on, or the last line."""
    lines = content.strip().splitlines() or [""]
    boxed = [place for place, line in enumerate(lines) if "\\boxed" in line]
    return "\n".join(lines[boxed[-1] if boxed else -1 :])


def option_in(content: str, options: Sequence[str]) -> int | None:
    """Which of the options a reply names: the last one that appears by itself in its text; None where there is none."""
    plain = content.rpartition(THINK_CLOSE)[2]
    found = re.findall("|".join(rf"(?<![\w.]){re.escape(option.strip())}(?!\w|\.\d)" for option in options), plain)
    return [option.strip() for option in options].index(found[-1]) if found else None


class Turn(NamedTuple):
    """One turn of a prompt, by the user or by the assistant (`mark`)."""

    mark: str
    thought: str
    """All of its text, up to the closing reasoning tag."""
    closed: bool
    """True if there is such a tag; text that merely spells it out does not count."""
    answer: str
    """The text after it."""


def _turns(ids: Sequence[int], tokenizer: ChatTokenizer) -> list[Turn]:
    """The turns of a prompt; the last one is what the assistant has begun."""
    marks = {tokenizer.special_ids[mark]: mark for mark in (USER, ASSISTANT)}
    end = tokenizer.special_ids[END]
    turns: list[tuple[str, list[int]]] = []
    for id_ in ids:
        if id_ in marks:
            turns.append((marks[id_], []))
        elif turns and id_ != end:
            turns[-1][1].append(id_)
    return [_turn(mark, text, tokenizer) for mark, text in turns]


def _turn(mark: str, ids: list[int], tokenizer: ChatTokenizer) -> Turn:
    close = tokenizer.special_ids[THINK_CLOSE]
    closed = mark == ASSISTANT and close in ids
    cut = ids.index(close) if closed else len(ids)
    thought = tokenizer.decode(ids[:cut])
    return Turn(mark, thought.removeprefix(THINK_OPEN) if mark == ASSISTANT else thought, closed, tokenizer.decode(ids[cut + 1 :]))


def _messages(turns: Sequence[Turn]) -> tuple[Message, ...]:
    return tuple(_message(turn, place, turns) for place, turn in enumerate(turns))


def _message(turn: Turn, place: int, turns: Sequence[Turn]) -> Message:
    if turn.mark == ASSISTANT:
        return Message("assistant", f"{turn.thought.strip()}\n\n{turn.answer.strip()}".strip())
    system = place == 0 and len(turns) > 1 and turns[1].mark == USER
    return Message("system" if system else "user", turn.thought)
