"""A file of `graphs/rewards/`: a process reward model's engine, and how it is asked about a step.

Such a model is a causal language model that answers with one of two tokens, good or bad. It is asked in plain text with a
tag after every step (Math-Shepherd, Wang et al. 2023), or in a chat of one turn a step (RLHFlow's). Models that put a
number on each step with a head of their own, such as Qwen2.5-Math-PRM, answer with no token and are not covered.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from pipeline.bundled import model_name
from pipeline.errors import GraphError, UsageError
from pipeline.graph.document import Document
from pipeline.graph.spec import EngineSpec, StageSpec
from pipeline.graph.yaml_file import Keys

Text = Annotated[str, Meta(min_length=1)]


class PromptSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="form"):
    """The fields of every form of prompt. In its texts `{problem}`, `{step}` and `{number}` (of the step, from 1) are filled in."""

    good: Text = "+"
    """The answer after a right step, one token of the model."""
    bad: Text = "-"
    """The answer after a wrong one, one token too."""
    thought_end: str = ""
    """Text put in place of the `</think>` that ends a thought; by default none, as reward models have not seen that token."""


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


class RewardSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reward model, as a file for `--prm` describes it."""

    reward: EngineSpec
    """The engine that serves it."""
    prompt: TextPrompt | ChatPrompt
    """How it is asked about a step."""


FORMS: dict[str, type[TextPrompt | ChatPrompt]] = {"text": TextPrompt, "chat": ChatPrompt}
"""The forms of prompts, by their tags."""


def read_reward_file(path: Path) -> Document:
    """The document in the file of a reward model, which has an engine and a prompt; raises `GraphError` where it does not."""
    document = Document.read(path)
    for key in ("reward", "prompt"):
        if key not in document.values:
            what = f"has no `{key}`; the file of a reward model holds the engine `reward` and the `prompt` it is asked with"
            raise GraphError(document.file, what)
    if odd := document.values.keys() - {"reward", "prompt"}:
        raise document.flaw((), f"unknown key `{min(odd)}`; known are `prompt`, `reward`", key=min(odd))
    return document


def fill_rewards(document: Document, stages: Sequence[Keys], kinds: Mapping[str, type[StageSpec]], find: Callable[[str], Path]) -> None:
    """Write into each of the `stages` of a graph that asks a reward model, by their paths, what the file of that says, which `find` finds
    by its name: how it is asked and, where the graph's engines have no such role, what serves it."""
    asks = {keys: getattr(kinds.get(str(document.at((*keys, "kind")))), "rewards", False) for keys in stages}
    writers = {document.at((*keys, "engine")) for keys, rewards in asks.items() if not rewards}
    for keys in (keys for keys, rewards in asks.items() if rewards):
        stage, prm = document.mapping(keys), document.at((*keys, "prm"))
        if not isinstance(prm, str):
            continue
        try:
            file = read_reward_file(find(prm))
        except GraphError:
            raise
        except UsageError as error:
            raise document.flaw((*keys, "prm"), str(error)) from error
        if stage.get("prompt") is None:
            document.put((*keys, "prompt"), file.at(("prompt",)), file.place(("prompt",)))
        role = ("engines", str(stage.get("engine")))
        if document.at(role) is None:
            document.put(role, file.at(("reward",)), file.place(("reward",)))
        elif stage.get("engine") not in writers:
            _check_model(document, role, file, prm)


def _check_model(document: Document, role: Keys, file: Document, prm: str) -> None:
    """Raise `GraphError` where the engine of a `role` serves another model than the file of the reward model."""
    models = [model_name(str(of.at((*keys, "model")) or "")) for of, keys in ((file, ("reward",)), (document, role))]
    if all(models) and models[0] != models[1]:
        what = f"serves `{models[1]}`, not the reward model `{models[0]}` of `prm: {prm}`"
        raise document.flaw(role, f"{what}; leave this role out, or set `prm` to the file of its model")


def _check_holds(name: str, text: str, *needed: str) -> None:
    """Raise a `ValueError` where a place is missing in `text`; decoding turns it into a `GraphError` that names the file."""
    if missing := [each for each in needed if each not in text]:
        raise ValueError(f"`{name}` is {text!r}, which lacks the placeholder {missing[0]}")
