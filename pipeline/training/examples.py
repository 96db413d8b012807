"""The columns of training data, one Struct for each form. `pipeline export --format` writes them, `pipeline train` reads them.

Every row says where it comes from, so that rows of several runs may be put into one file.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from pipeline.graph.prompts import Message

Split: TypeAlias = Literal["train", "validation"]
IGNORED = -100
"""The label of a token that nothing is learnt from, as torch, transformers and TRL have it."""
AS_IT_IS = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""A chat template that says messages as they stand, one behind the other."""


class ChatTemplate(Struct, frozen=True):
    """With what chat template TRL says the messages of a row: its column `chat_template_kwargs`."""

    chat_template: str = AS_IT_IS


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
    problem_hash: str | None = None
    """64 bits of the problem's text as hexadecimal digits, whatever its white space and capitals: the same in every run and file; null in
    files of earlier versions."""
    prompts: str | None = None
    """The bundled prompts file in whose words the run asked; null: the graph had words of its own, or an earlier version wrote the file."""


class SftRow(Origin, frozen=True, kw_only=True):
    """A prompt and its completion as messages: TRL's conversational prompt-completion form.

    TRL says them with the chat template of the model. Templates that cut a reply at `</think>`, as those of DeepSeek-R1 and QwQ do, leave
    nothing of a thought to learn, and every template ends the turn behind it; `pipeline train` does neither. For TRL's own trainers export
    token ids, or, for a template that keeps thoughts, whole responses.
    """

    prompt: tuple[Message, ...]
    """The question, as the user asks it."""
    completion: tuple[Message, ...]
    """The reply, the marks of the thought included."""


class SftTokensRow(Origin, frozen=True, kw_only=True):
    """The same as token ids, exactly those of serving: what TRL's `SFTTrainer` takes as it is."""

    input_ids: tuple[int, ...]
    """Prompt and completion."""
    labels: tuple[int, ...]
    """As many: the ids of the completion, and -100 for each token of the prompt, of which nothing is learnt."""


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
    """A rejected drafted step and the step that was written instead, as text: TRL's conversational preference form.

    Each text is one message that is said as it stands, by the column `chat_template_kwargs`: of plain text TRL's `DPOTrainer` ends every
    step with the end of the sequence, and may begin the prompt with a second beginning.
    """

    prompt: tuple[Message, ...]
    """The chat and the thought before the step, as the text that the model read: one message."""
    chosen: tuple[Message, ...]
    """The step that was written after all candidates were rejected: one message."""
    rejected: tuple[Message, ...]
    """One of the rejected candidates: one message."""
    chat_template_kwargs: ChatTemplate = ChatTemplate()
    """The chat template that says messages as they stand."""


class PreferenceTokensRow(Origin, frozen=True, kw_only=True):
    """The same as token ids, in the columns that the collator of TRL's `DPOTrainer` takes.

    The trainer itself makes these columns from text and cannot be told to leave that out: a subclass whose `_prepare_dataset` returns the
    dataset as it is learns from them.
    """

    prompt_ids: tuple[int, ...]
    """The chat and the thought before the step."""
    chosen_ids: tuple[int, ...]
    """The step that was written after all candidates were rejected."""
    rejected_ids: tuple[int, ...]
    """One of the rejected candidates."""
