"""The steps of a run folder, each with all that a reward model must know: `run.json`, the steps table and the input file
enter, one `StepToScore` for each leaves, in the order of the table. Texts are held only of chains with steps to come. Nothing
is written.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from pipeline.data.problems import Problems, open_problems
from pipeline.errors import BadRow, InputError
from pipeline.rewards.prompts import Thought
from pipeline.store.kept_problems import kept_problems
from pipeline.store.read import read_batches
from pipeline.store.run_file import RunFile

COLUMNS = [
    "problem_id",
    "chain_id",
    "sample_index",
    "step_index",
    "decision",
    "source_engine",
    "chosen_candidate",
    "step_text",
    "candidate_texts",
]


class StepText(Struct, frozen=True):
    """One text of a step: a candidate, or the committed text where it is no candidate."""

    text: str
    candidate_index: int | None
    """Index among the step's candidates; None where the text is none of them."""
    selected: bool
    """Whether it was committed."""
    source_engine: str
    """The role that wrote it."""


class StepToScore(Struct, frozen=True, kw_only=True):
    """One committed step and what was drafted for it."""

    problem_id: str
    chain_id: str
    sample_index: int
    step_index: int
    decision: str
    problem: str
    before: tuple[str, ...]
    """The steps of the thought that precede this one."""
    texts: tuple[StepText, ...]
    """Its candidates, and the committed text where it is none of them."""
    steps: dict[str, list[str]]
    """By text: the steps that it is made of, the first one with the beginning that the thought holds already."""


def open_input(folder: Path, run: RunFile, now: Path | None) -> Problems:
    """The problems of a run: those that it has kept, or of its input file, which is at `now` or else where it was.

    Raises `InputError` unless the file's bytes are the same.
    """
    if now is None and (kept := kept_problems(folder, run.input)) is not None:
        return kept
    path = now or Path(run.input.file)
    if now is None and not path.is_file():
        raise InputError(str(path), "the input of this run is not here; give its path with --input")
    problems = open_problems(path, run.input.columns, run.input.part)
    found = problems.check().sha256
    if found != run.input.sha256:
        what = f"is not the input of this run: its SHA-256 is {found[:12]}..., run.json has {run.input.sha256[:12]}..."
        raise InputError(str(path), f"{what}; give that file's path with --input")
    return problems


class StepsToScore:
    """All steps of a run folder; iterate once. Raises `InputError` where there are none or they cannot be read."""

    def __init__(self, run: Path, file: RunFile, problems: Problems, thought_end: str = "") -> None:
        self._run, self._roles, self._thought_end, self._said = run, file.plan.drafters, thought_end, file.plan.prompts
        self._left: Counter[str] = Counter()
        self._chains_left: Counter[str] = Counter()
        for batch in read_batches(run, "steps", ["problem_id", "chain_id"]):
            self._left.update(batch.column("problem_id").to_pylist())
            self._chains_left.update(batch.column("chain_id").to_pylist())
        self.total = self._left.total()
        """How many steps there are."""
        if not self.total:
            raise InputError(str(run), "holds no steps to score; expected rows in steps/part-*.parquet")
        self._problems, self._path = iter(problems), problems.path
        self._texts: dict[str, str] = {}
        self._thoughts: dict[str, Thought] = {}
        self._last: dict[str, int] = {}

    def __iter__(self) -> Iterator[StepToScore]:
        for batch in read_batches(self._run, "steps", COLUMNS):
            for row in batch.to_pylist():
                yield self._step(row)

    def _step(self, row: Mapping[str, Any]) -> StepToScore:
        """The step of `row`; its committed text is then added to its chain's thought."""
        self._check_order(row)
        texts, problem = _texts_of(row, self._roles), self._problem(row["problem_id"])
        thought = self._thoughts.setdefault(row["chain_id"], Thought(self._thought_end, self._said))
        found = StepToScore(
            **{name: row[name] for name in COLUMNS[:5]},
            problem=problem,
            before=tuple(thought.steps),
            texts=texts,
            steps={text: thought.steps_of(text) for text in dict.fromkeys(each.text for each in texts)},
        )
        thought.commit(row["step_text"])
        self._forget(row)
        return found

    def _check_order(self, row: Mapping[str, Any]) -> None:
        chain, index = row["chain_id"], row["step_index"]
        if (last := self._last.get(chain, -1)) >= index:
            what = f"chain {chain!r} has its step {index} after step {last}: the text before a step cannot be determined"
            raise InputError(str(self._run / "steps"), what)
        self._last[chain] = index

    def _problem(self, problem_id: str) -> str:
        """The text of a problem. Chains begin in the order of the input, so that few problems are read ahead."""
        while problem_id not in self._texts:
            item = next(self._problems, None)
            if item is None:
                raise InputError(str(self._path), f"holds no problem {problem_id!r}, of which this run has steps")
            if not isinstance(item, BadRow) and item.problem_id in self._left:
                self._texts[item.problem_id] = item.told(self._said)
        return self._texts[problem_id]

    def _forget(self, row: Mapping[str, Any]) -> None:
        """Drop the texts that no later step needs."""
        problem, chain = row["problem_id"], row["chain_id"]
        self._left[problem] -= 1
        self._chains_left[chain] -= 1
        if not self._left[problem]:
            del self._texts[problem]
        if not self._chains_left[chain]:
            del self._thoughts[chain], self._last[chain]


def _texts_of(row: Mapping[str, Any], roles: Sequence[str]) -> tuple[StepText, ...]:
    """The candidates of a step, and its committed text where it is none of them; `roles` drafted the candidates."""
    texts, chosen, writer = row["candidate_texts"], row["chosen_candidate"], row["source_engine"]
    each = roles if len(roles) == len(texts) else [roles[0] if roles else writer] * len(texts)
    said = [StepText(text, i, i == chosen, writer if i == chosen else each[i]) for i, text in enumerate(texts)]
    return (*said, *([StepText(row["step_text"], None, True, writer)] if chosen is None else []))
