"""What a file for `pipeline grade --prm` may say: a process reward model's engine, and how it is asked about a step.

Such a model is a causal language model that answers with one of two tokens, good or bad. It is asked in plain text with a
tag after every step (Math-Shepherd, Wang et al. 2023), or in a chat of one turn a step (RLHFlow's). Models that put a
number on each step with a head of their own, such as Qwen2.5-Math-PRM, answer with no token and are not covered.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from pipeline.bundled import find_file
from pipeline.errors import GraphError
from pipeline.graph.loader import Backends, apply_setting, mapping, tagged, unknown_key
from pipeline.graph.spec import EngineSpec
from pipeline.graph.yaml_file import read_yaml

Text = Annotated[str, Meta(min_length=1)]


class PromptSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="form"):
    """What every form may say. `{problem}`, `{step}` and `{number}` (from 1) stand for a text of the run."""

    good: Text = "+"
    """The answer after a right step, one token of the model."""
    bad: Text = "-"
    """The answer after a wrong one, one token too."""
    thought_end: str = ""
    """What stands in a step for the `</think>` that ends a thought; by default nothing: reward models have not seen it."""


class TextPrompt(PromptSpec, frozen=True, kw_only=True, tag="text"):
    """The problem, then all steps, each with a tag behind it; the answer is the next token."""

    begin: Text
    """Everything before the first step, special tokens included, as text."""
    step: Text
    """One step up to and including the tag."""
    between: str = ""
    """What separates a tag from the next step."""

    def __post_init__(self) -> None:
        _check_holds("begin", self.begin, "{problem}")
        _check_holds("step", self.step, "{step}")


class ChatPrompt(PromptSpec, frozen=True, kw_only=True, tag="chat"):
    """A turn of the user for each step; the assistant's reply is the answer, and after earlier steps `good`."""

    first: Text = "{problem} {step}"
    """The first turn."""
    step: Text = "{step}"
    """Every later one."""

    def __post_init__(self) -> None:
        _check_holds("first", self.first, "{problem}", "{step}")
        _check_holds("step", self.step, "{step}")


class RewardSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    reward: EngineSpec
    prompt: TextPrompt | ChatPrompt


def load_reward_model(path: Path, backends: Backends, settings: Sequence[str] = ()) -> RewardSpec:
    """A file for `--prm`, by path or bundled name: an engine of the role `reward`, and how it is asked."""
    path = find_file(path, "reward model")
    raw = read_yaml(path)
    for key in ("reward", "prompt"):
        if key not in raw:
            raise GraphError(str(path), f"has no `{key}`; a file for --prm holds the engine `reward` and the `prompt` it is asked with")
    if unknown := raw.keys() - {"reward", "prompt"}:
        raise unknown_key(str(path), sorted(unknown)[0], RewardSpec)
    engine = dict(mapping(raw["reward"], f"{path}: $.reward"))
    for setting in settings:
        apply_setting(setting, {}, {"reward": engine}, path)
    forms: dict[str, type[TextPrompt | ChatPrompt]] = {"text": TextPrompt, "chat": ChatPrompt}
    return RewardSpec(
        reward=tagged(engine, "backend", backends, path, "$.reward"),
        prompt=tagged(raw["prompt"], "form", forms, path, "$.prompt"),
    )


def _check_holds(name: str, text: str, *needed: str) -> None:
    """Decoding turns the `ValueError` into a `GraphError` that names the file."""
    if missing := [each for each in needed if each not in text]:
        raise ValueError(f"`{name}` is {text!r}, which has no {missing[0]} where that text belongs")
