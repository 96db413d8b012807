"""What a process reward model is asked: text of a thought enters, its steps and prompts as token ids leave. Pure.

A step ends at a blank line, whoever wrote its parts: guidance and the candidate that continues it are one step. A prompt
is encoded whole, so that it has the tokens that the model was trained with; its beginning is the prompt of the step before.
"""

import re
from collections.abc import Sequence

from pipeline.engine import Tokenizer
from pipeline.errors import GraphError
from pipeline.reasoning.prompts import DELIMITER, THINK_CLOSE
from pipeline.rewards.spec import ChatPrompt, TextPrompt

_PLACE = re.compile(r"\{(problem|step|number)\}")


class Thought:
    """The committed text of one chain, cut into steps. `thought_end` stands for its `</think>`."""

    def __init__(self, thought_end: str = "") -> None:
        self.steps: list[str] = []
        """Whole ones, without blank lines."""
        self._begun = ""
        self._thought_end = thought_end

    def commit(self, text: str) -> None:
        """The thought goes on with `text`."""
        whole, self._begun = _cut(self._begun + self._said(text))
        self.steps += whole

    def steps_of(self, text: str) -> list[str]:
        """The steps that `text`, as a candidate, would end or begin; none where it says nothing."""
        said = self._said(text)
        whole, begun = _cut(self._begun + said) if said else ([], "")
        return [*whole, *([begun.strip()] if begun.strip() else [])]

    def _said(self, text: str) -> str:
        """What is thought in `text`: an answer may follow."""
        thought, mark, _ = text.partition(THINK_CLOSE)
        return thought + self._thought_end if mark else thought


class RewardPromptBuilder:
    """How to ask one reward model."""

    def __init__(self, tokenizer: Tokenizer, prompt: TextPrompt | ChatPrompt, where: str) -> None:
        """Raises `GraphError` where an answer is not one token; `where` is the file that names it."""
        self._tokenizer, self._prompt = tokenizer, prompt
        self.option_ids = _one_token(tokenizer, prompt, "good", where), _one_token(tokenizer, prompt, "bad", where)
        """Of the answers good and bad."""
        if self.option_ids[0] == self.option_ids[1]:
            raise GraphError(f"{where}: $.prompt", f"`good` and `bad` are one token, {prompt.good!r}; name two")

    def ids(self, problem: str, steps: Sequence[str]) -> list[int]:
        """The prompt that asks about the last of `steps`; it is never empty."""
        prompt = self._prompt
        text = text_of(prompt, problem, steps) if isinstance(prompt, TextPrompt) else self._tokenizer.render(turns(prompt, problem, steps))
        return self._tokenizer.encode(text)


def text_of(prompt: TextPrompt, problem: str, steps: Sequence[str]) -> str:
    """The prompt in plain text, to the last step's tag."""
    told = (_filled(prompt.step, problem, step, number) for number, step in enumerate(steps, 1))
    return _filled(prompt.begin, problem) + prompt.between.join(told)


def turns(prompt: ChatPrompt, problem: str, steps: Sequence[str]) -> list[dict[str, str]]:
    """The prompt as a chat, to the last step's turn."""
    said: list[dict[str, str]] = []
    for number, step in enumerate(steps, 1):
        told = _filled(prompt.first if number == 1 else prompt.step, problem, step, number)
        said += [{"role": "user", "content": told}, {"role": "assistant", "content": prompt.good}]
    return said[:-1]


def _filled(template: str, problem: str, step: str = "", number: int = 0) -> str:
    """`template` with its places filled, in one go: what a problem or step says is no template."""
    texts = {"problem": problem, "step": step, "number": str(number)}
    return _PLACE.sub(lambda place: texts[place[1]], template)


def _cut(text: str) -> tuple[list[str], str]:
    """The steps of `text` that a blank line ends, and what stands behind the last one."""
    *whole, begun = text.split(DELIMITER)
    return [step.strip() for step in whole if step.strip()], begun


def _one_token(tokenizer: Tokenizer, prompt: TextPrompt | ChatPrompt, name: str, where: str) -> int:
    text: str = getattr(prompt, name)
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        raise GraphError(f"{where}: $.prompt.{name}", f"{text!r} is {len(ids)} tokens of this model; an answer must be one")
    return ids[0]
