"""The prompts of a process reward model: a problem and the text of a thought enter, its steps and token ids leave. Pure.

A prompt has the tokens of its whole text, which the model was trained with. It begins with the prompt of the step before, whose tokens are
kept: only the last two steps are encoded, and the whole where the earlier of them has other tokens by itself.
Problems and steps are text in it: special tokens come from the reward model's file and its chat template alone.
"""

import re
from array import array
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial

from pipeline.engine import Tokenizer
from pipeline.errors import GraphError
from pipeline.graph.prompts import DEFAULT_PROMPTS, Prompts
from pipeline.graph.rewards import ChatPrompt, TextPrompt
from pipeline.reasoning.prompts import Margins, parts_of, stripped_margins

LONG = 1000
"""Characters from which on a prompt is continued: fewer are encoded faster."""
MOST_KNOWN = 1024
"""Prompts whose tokens are kept."""
_PLACE = re.compile(r"\{(problem|step|number)\}")


class Thought:
    """The committed text of one chain, cut into steps. `thought_end` replaces the closing reasoning tag.

    A step ends at a delimiter of the run, mostly a blank line, whoever wrote its parts: guidance and the candidate that continues it are
    one step.
    """

    def __init__(self, thought_end: str = "", said: Prompts = DEFAULT_PROMPTS) -> None:
        """`said`: the prompts of the run, which name what ends a step and a thought."""
        self.steps: list[str] = []
        """The steps that a delimiter has ended, without it."""
        self._begun = ""
        self._thought_end, self._mark = thought_end, said.thought.close
        self._delimiter = re.compile("|".join(map(re.escape, said.delimiters)))

    def commit(self, text: str) -> None:
        """Add `text` to the end of the thought."""
        *ended, self._begun = self._delimiter.split(self._begun + self._said(text))
        self.steps += filter(None, map(str.strip, ended))

    def steps_of(self, text: str) -> list[str]:
        """The steps that `text` would end or begin if it were committed; empty for a blank text."""
        said = self._said(text)
        pieces = self._delimiter.split(self._begun + said) if said else []
        return [*filter(None, map(str.strip, pieces))]

    def _said(self, text: str) -> str:
        """The part of `text` that belongs to the thought, without the answer that may follow it."""
        thought, mark, _ = text.partition(self._mark)
        return thought + self._thought_end if mark else thought


class RewardPromptBuilder:
    """Builds the prompts that ask one reward model about steps."""

    def __init__(self, tokenizer: Tokenizer, prompt: TextPrompt | ChatPrompt, where: str) -> None:
        """Raises `GraphError` if `good` or `bad` is not one token; `where` is the file of the reward model, for the message."""
        self._tokenizer, self._prompt, self._where = tokenizer, prompt, where
        self._around = lru_cache(MOST_KNOWN)(self._rendered)
        self._known: dict[tuple[str, ...], array[int]] = {}
        """The ids of latest prompts, by their parts."""
        self.option_ids = _one_token(tokenizer, prompt, "good", where), _one_token(tokenizer, prompt, "bad", where)
        """Token ids of the answers good and bad."""
        if self.option_ids[0] == self.option_ids[1]:
            raise GraphError(f"{where}: $.prompt", f"`good` and `bad` are the same token, {prompt.good!r}; choose two")

    def ids(self, problem: str, steps: Sequence[str]) -> "array[int]":
        """The prompt, as token ids, that asks about the last of `steps`, which are all of the thought so far."""
        parts = self._parts(problem, steps)
        if len(steps) < 2 or sum(map(len, parts)) < LONG:
            return array("I", self._tokenizer.encode_parts(parts))
        return self._known.get(parts) or self._continued(self._parts(problem, steps[:-1]), parts)

    def _parts(self, problem: str, steps: Sequence[str]) -> tuple[str, ...]:
        prompt = self._prompt
        return tuple(text_of(prompt, problem, steps) if isinstance(prompt, TextPrompt) else self._chat(prompt, problem, steps))

    def _continued(self, before: tuple[str, ...], parts: tuple[str, ...]) -> "array[int]":
        """The ids of `parts` from those of `before`, if its last step has the same ids alone, at its end and with what follows."""
        *same, step, tag = before
        if parts[: len(before) - 1] != (*same, step) or not parts[len(before) - 1].startswith(tag):
            return self._kept(parts)  # a template that treats the last turn in another way
        ids = self._known.get(before) or self._kept(before)
        alone = self._tokenizer.encode_parts(["", step, tag])
        together = self._tokenizer.encode_parts(["", step, *parts[len(before) - 1 :]])
        if ids[-len(alone) :].tolist() != alone or together[: len(alone)] != alone:
            return self._kept(parts)
        return self._kept(parts, ids + array("I", together[len(alone) :]))

    def _kept(self, parts: tuple[str, ...], ids: "array[int] | None" = None) -> "array[int]":
        """The ids of `parts`, which are kept; encoded if not given."""
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        found = self._known[parts] = ids or array("I", self._tokenizer.encode_parts(parts))
        return found

    def _chat(self, prompt: ChatPrompt, problem: str, steps: Sequence[str]) -> list[str]:
        """The parts of the prompt as a chat, up to and including the user's turn with the last step."""
        before, *after = self._around(len(steps))
        parts = [before]
        for turn, behind in zip(turns(prompt, problem, steps), after, strict=True):
            _append(parts, stripped(turn, self._margins))
            parts[-1] += behind
        return parts

    def _rendered(self, count: int, margin: str = "") -> list[str]:
        """What the chat template puts before, between and after `count` turns of the user, to which the assistant says `good`; it leaves
        of the `margin` of each turn what it leaves."""
        names = [f"q1w2turn{number}x" for number in range(count)]
        said = ((("user", f"{margin}{name}{margin}"), ("assistant", self._prompt.good)) for name in names)
        chat = [{"role": role, "content": text} for both in said for role, text in both]
        return parts_of(self._tokenizer.render(chat[:-1]), *names, where=f"{self._where}: the model's chat template")

    @cached_property
    def _margins(self) -> Margins:
        return stripped_margins(partial(self._around, 1))


def text_of(prompt: TextPrompt, problem: str, steps: Sequence[str]) -> list[str]:
    """The parts of the prompt in plain text, up to and including the tag of the last step, as `Tokenizer.encode_parts` takes them."""
    parts = _filled(prompt.begin, problem)
    for number, step in enumerate(steps, 1):
        parts[-1] += prompt.between if number > 1 else ""
        _append(parts, _filled(prompt.step, problem, step, number, prompt.thought_end))
    return parts


def turns(prompt: ChatPrompt, problem: str, steps: Sequence[str]) -> list[list[str]]:
    """The parts of each turn of the user; the last one has the last step."""
    templates = [prompt.first, *[prompt.step] * (len(steps) - 1)]
    filled = enumerate(zip(templates, steps, strict=True), 1)
    return [_filled(template, problem, step, number, prompt.thought_end) for number, (template, step) in filled]


def _append(parts: list[str], more: Sequence[str]) -> None:
    """Add the parts of another text: where both meet, the model's own parts become one."""
    parts[-1] += more[0]
    parts += more[1:]


def stripped(parts: Sequence[str], margins: Margins) -> list[str]:
    """The parts of one text without the white space that a template strips from it."""
    kept = list(parts)
    for place in range(len(kept)):
        kept[place] = kept[place].lstrip(margins.left)
        if kept[place]:
            break
    for place in reversed(range(len(kept))):
        kept[place] = kept[place].rstrip(margins.right)
        if kept[place]:
            break
    return kept


def _filled(template: str, problem: str, step: str = "", number: int = 0, end: str = "") -> list[str]:
    """The parts of `template` and of what its places are filled with, by turns, so that braces in a problem or step are left alone.

    The closing reasoning tag `end` at the end of `step` is a part of the template.
    """
    texts = {"problem": problem, "step": step.removesuffix(end), "number": str(number)}
    mark = end if step.endswith(end) else ""
    parts = _PLACE.split(template)
    for place in range(1, len(parts), 2):
        if parts[place] == "step":
            parts[place + 1] = mark + parts[place + 1]
        parts[place] = texts[parts[place]]
    return parts


def _one_token(tokenizer: Tokenizer, prompt: TextPrompt | ChatPrompt, name: str, where: str) -> int:
    text: str = getattr(prompt, name)
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        raise GraphError(f"{where}: $.prompt.{name}", f"{text!r} is {len(ids)} tokens of this model; an answer must be one")
    return ids[0]
