"""A file of `graphs/rewards/`: a process reward model's engine, and how it is asked about a step.

Such a model is a causal language model that answers with one of two tokens, good or bad. It is asked in plain text with a
tag after every step (Math-Shepherd, Wang et al. 2023), or in a chat of one turn a step (RLHFlow's). Models that put a
number on each step with a head of their own, such as Qwen2.5-Math-PRM, answer with no token and are not covered.
"""

from typing import Any

from msgspec import Struct

from pipeline.graph.prompts import Text


class PromptSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="form"):
    """The fields of every form of prompt. In its texts `{problem}`, `{step}` and `{number}` (of the step, from 1) are filled in."""

    good: Text = "+"
    """The answer after a right step, one token of the model."""
    bad: Text = "-"
    """The answer after a wrong one, one token too."""
    thought_end: str = ""
    """Text that replaces the `</think>` at the end of a thought; by default none, as reward models have not seen that token."""


class TextPrompt(PromptSpec, frozen=True, kw_only=True, tag="text"):
    """The problem, then all steps, each followed by a tag; the answer is the next token."""

    begin: Text
    """Everything before the first step, special tokens included, as text."""
    step: Text
    """One step, up to and including its tag."""
    between: str = ""
    """Text between a tag and the next step."""

    def __post_init__(self) -> None:
        _check_holds("begin", self.begin, "{problem}")
        _check_holds("step", self.step, "{step}")


class ChatPrompt(PromptSpec, frozen=True, kw_only=True, tag="chat"):
    """A turn of the user for each step; the assistant's reply is the answer, and after earlier steps `good`."""

    first: Text = "{problem} {step}"
    """The user's first turn: problem and first step."""
    step: Text = "{step}"
    """Every later turn of the user."""

    def __post_init__(self) -> None:
        _check_holds("first", self.first, "{problem}", "{step}")
        _check_holds("step", self.step, "{step}")


class RewardFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The file of a reward model, whose engine is not decoded."""

    reward: dict[str, Any]
    prompt: TextPrompt | ChatPrompt


def _check_holds(name: str, text: str, *needed: str) -> None:
    """Raise a `ValueError` where a place is missing in `text`; decoding turns it into a `GraphError` that names the file."""
    if missing := [each for each in needed if each not in text]:
        raise ValueError(f"`{name}` is {text!r}, which lacks the placeholder {missing[0]}")
