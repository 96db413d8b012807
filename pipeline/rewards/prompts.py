"""The prompts of a process reward model: the text of a thought enters, its steps and prompts as token ids leave. Pure.

A step ends at a blank line, whoever wrote its parts: guidance and the candidate that continues it are one step. A prompt is
encoded whole, so that it has the tokens that the model was trained with; it begins with the prompt of the step before.
"""

import re
from collections.abc import Sequence

from pipeline.engine import Tokenizer
from pipeline.errors import GraphError
from pipeline.reasoning.prompts import DELIMITER, THINK_CLOSE
from pipeline.rewards.spec import ChatPrompt, TextPrompt

_PLACE = re.compile(r"\{(problem|step|number)\}")


class Thought:
    """The committed text of one chain, cut into steps. `thought_end` is put in place of its `</think>`."""

    def __init__(self, thought_end: str = "") -> None:
        self.steps: list[str] = []
        """The steps that a blank line has ended, without it."""
        self._begun = ""
        self._thought_end = thought_end

    def commit(self, text: str) -> None:
        """Add `text` to the end of the thought."""
        whole, self._begun = _cut(self._begun + self._said(text))
        self.steps += whole

    def steps_of(self, text: str) -> list[str]:
        """The steps that `text` would end or begin if it were committed; empty for a blank text."""
        said = self._said(text)
        whole, begun = _cut(self._begun + said) if said else ([], "")
        return [*whole, *([begun.strip()] if begun.strip() else [])]

    def _said(self, text: str) -> str:
        """The part of `text` that belongs to the thought, without the answer that may follow it."""
        thought, mark, _ = text.partition(THINK_CLOSE)
        return thought + self._thought_end if mark else thought


class RewardPromptBuilder:
    """Builds the prompts that ask one reward model about steps."""

    def __init__(self, tokenizer: Tokenizer, prompt: TextPrompt | ChatPrompt, where: str) -> None:
        """Raises `GraphError` where `good` or `bad` is not one token; `where` is the file of the reward model, for the message."""
        self._tokenizer, self._prompt = tokenizer, prompt
        self.option_ids = _one_token(tokenizer, prompt, "good", where), _one_token(tokenizer, prompt, "bad", where)
        """Token ids of the answers good and bad."""
        if self.option_ids[0] == self.option_ids[1]:
            raise GraphError(f"{where}: $.prompt", f"`good` and `bad` are one token, {prompt.good!r}; name two")

    def ids(self, problem: str, steps: Sequence[str]) -> list[int]:
        """The prompt, as token ids, that asks about the last of `steps`, which are all of the thought so far."""
        prompt = self._prompt
        text = text_of(prompt, problem, steps) if isinstance(prompt, TextPrompt) else self._tokenizer.render(turns(prompt, problem, steps))
        return self._tokenizer.encode(text)


def text_of(prompt: TextPrompt, problem: str, steps: Sequence[str]) -> str:
    """The prompt in plain text, up to and including the tag of the last step."""
    filled = (_filled(prompt.step, problem, step, number) for number, step in enumerate(steps, 1))
    return _filled(prompt.begin, problem) + prompt.between.join(filled)


def turns(prompt: ChatPrompt, problem: str, steps: Sequence[str]) -> list[dict[str, str]]:
    """The prompt as a chat, up to and including the user's turn with the last step."""
    said: list[dict[str, str]] = []
    for number, step in enumerate(steps, 1):
        filled = _filled(prompt.first if number == 1 else prompt.step, problem, step, number)
        said += [{"role": "user", "content": filled}, {"role": "assistant", "content": prompt.good}]
    return said[:-1]


def _filled(template: str, problem: str, step: str = "", number: int = 0) -> str:
    """`template` with its places filled, in one pass, so that braces in a problem or step are left alone."""
    texts = {"problem": problem, "step": step, "number": str(number)}
    return _PLACE.sub(lambda place: texts[place[1]], template)


def _cut(text: str) -> tuple[list[str], str]:
    """The steps of `text` that a blank line ends, and the text behind the last of them."""
    *whole, begun = text.split(DELIMITER)
    return [step.strip() for step in whole if step.strip()], begun


def _one_token(tokenizer: Tokenizer, prompt: TextPrompt | ChatPrompt, name: str, where: str) -> int:
    text: str = getattr(prompt, name)
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        raise GraphError(f"{where}: $.prompt.{name}", f"{text!r} is {len(ids)} tokens of this model; an answer must be one")
    return ids[0]
