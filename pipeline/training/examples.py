"""The columns of training data. `pipeline export --as sft` and `selection` write them, `pipeline train` reads them.

Every row says where it comes from, so that rows of several runs may be put into one file. A problem is known by a hash of its text,
whatever its id and however its white space and capitals are.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from pipeline.data.problems import Problem
from pipeline.data.reading import read_files
from pipeline.engine import Tokenizer
from pipeline.graph.prompts import Message

Split: TypeAlias = Literal["train", "validation"]
Found: TypeAlias = tuple[Problem, str, bool | None, dict[str, Any]]
"""An example of a run: the problem, the chain's id, whether its answer is correct, and the columns that `Origin` does not have."""


class Origin(Struct, frozen=True, kw_only=True):
    """Where an example comes from; the first columns of both forms."""

    split: Annotated[str, Meta(pattern="^(train|validation)$")]
    """`train` or `validation`, decided by the problem's text: all examples of a problem are in one split, in every run."""
    problem_id: str
    """The problem, as the input names it."""
    chain_id: str
    """The attempt at the problem: `problem_id#sample_index`."""
    correct: bool | None
    """True if the chain's answer is correct; null: not graded."""
    run_id: str
    """The run's id in `run.json`."""
    graph: str
    """The graph of the run."""
    problem_hash: str
    """64-bit hash of the problem's text, ignoring white space and case: the same in every run and file."""


class SftRow(Origin, frozen=True, kw_only=True):
    """A prompt and its completion as messages: TRL's conversational prompt-completion form.

    TRL renders them with the model's chat template. The templates of DeepSeek-R1 and QwQ drop everything before `</think>`, which leaves no
    reasoning to train on, and every template appends an end-of-turn token; `pipeline train` does neither.
    """

    prompt: tuple[Message, ...]
    """The question, as the user asks it, after the messages before it."""
    completion: tuple[Message]
    """The reply: the reasoning between `<think>` and `</think>`, whatever tags the model has, and perhaps the answer."""


class SelectionRow(Origin, frozen=True, kw_only=True):
    """A verification that is answered with one token, and all right answers."""

    step_index: int
    """The step that was verified, from 0."""
    model: str
    """The model whose tokenizer and chat template made the prompt."""
    tokenizer: str
    """Hash of that tokenizer: models with the same one can share token ids."""
    prompt: str
    """The prompt as text, for readers."""
    input_ids: tuple[int, ...]
    """The prompt's token ids, exactly those of serving; the next token is one of `option_ids`."""
    option_ids: tuple[int, ...]
    """Token of each option."""
    options: tuple[str, ...]
    """Each option: the label of a candidate, or a score."""
    right: tuple[int, ...]
    """Indices of all right options, at least one (SCoT 3.4: the label set)."""


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """A hash that is the same for tokenizers whose token ids all mean the same."""
    return sha256(repr((tokenizer.vocabulary, sorted(tokenizer.special_ids.items()))).encode()).hexdigest()[:16]


def problem_hash(problem: str) -> str:
    """64 bits of a problem's text as 16 hexadecimal digits."""
    said = " ".join(problem.split()).casefold()
    return blake2b(said.encode(errors="replace"), digest_size=8).hexdigest()


def split_of(problem: str, validation: float) -> Split:
    """The split of a problem where about the share `validation` (0 to 1) of all problems is for validation."""
    return "validation" if int(problem_hash(problem), 16) < validation * 2**64 else "train"


def read_held_out(test_sets: Mapping[str, Sequence[Path]]) -> dict[str, str]:
    """The name of a test set by the hash of each problem that it has; `test_sets` has the files of each. Raises `InputError`."""
    return {
        problem_hash(item.problem): name
        for name, paths in test_sets.items()
        for item, _ in read_files(paths, names=(name,))
        if isinstance(item, Problem)
    }
