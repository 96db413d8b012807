"""The columns of training data, one Struct for each form. `pipeline export --format` writes them, `pipeline train` reads them.

Every row says where it comes from, so that rows of several runs may be put into one file.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

Split: TypeAlias = Literal["train", "validation"]


class Message(Struct, frozen=True):
    """One turn of a chat."""

    role: str
    """`user` or `assistant`."""
    content: str
    """What is said."""


class Origin(Struct, frozen=True, kw_only=True):
    """Where an example comes from; the first columns of every form."""

    split: str
    """`train` or `validation`, by the problem's text alone: all examples of a problem are in one split, whatever run they come from."""
    problem_id: str
    """The problem, as the input names it."""
    chain_id: str
    """The attempt at the problem: `problem_id#sample_index`."""
    step_index: int
    """Which step of the thought the example is about, from 0; 0 where it is about the whole thought."""
    correct: bool | None
    """Whether the chain's answer is right; null: the input has no answer, or it could not be graded."""
    run_id: str
    """The run, as its `run.json` names it."""
    graph: str
    """The graph of the run."""
    model: str
    """The model whose tokenizer and chat template made the prompt."""
    input_sha256: str
    """The hash of the run's input."""


class SftRow(Origin, frozen=True, kw_only=True):
    """A prompt and its completion as messages: TRL's conversational prompt-completion form."""

    prompt: tuple[Message, ...]
    """The question, as the user asks it."""
    completion: tuple[Message, ...]
    """The reply, the marks of the thought included."""


class SftTokensRow(Origin, frozen=True, kw_only=True):
    """The same as token ids, exactly those of serving: what TRL's `SFTTrainer` takes as processed."""

    input_ids: tuple[int, ...]
    """Prompt and completion."""
    completion_mask: tuple[int, ...]
    """1 for each token of the completion, 0 for each of the prompt."""


class SelectionRow(Origin, frozen=True, kw_only=True):
    """A verification that is answered with one token, and all answers that are right."""

    prompt: str
    """The prompt as text, for readers."""
    input_ids: tuple[int, ...]
    """The prompt's token ids, exactly those of serving; the next token is one of `option_ids`."""
    option_ids: tuple[int, ...]
    """The token of each option."""
    options: tuple[str, ...]
    """What each option says: the label of a candidate, or a score."""
    right: tuple[int, ...]
    """Indices of all right options, at least one (SCoT 3.4: the label set)."""
    none: int | None
    """Index of the option that rejects all candidates; null where there is none, as among scores."""


class PreferenceRow(Origin, frozen=True, kw_only=True):
    """A rejected drafted step and the step that was written instead, as text: TRL's explicit-prompt preference form."""

    prompt: str
    """The chat and the thought before the step, as text."""
    chosen: str
    """The step that was written after all candidates were rejected."""
    rejected: str
    """One of the rejected candidates."""


class PreferenceTokensRow(Origin, frozen=True, kw_only=True):
    """The same as token ids."""

    prompt_ids: tuple[int, ...]
    """The chat and the thought before the step."""
    chosen_ids: tuple[int, ...]
    """The step that was written after all candidates were rejected."""
    rejected_ids: tuple[int, ...]
    """One of the rejected candidates."""
