"""What training an adapter brings: a target that learns to choose among whole thoughts (SCoT 3.4), and a draft that learns to think as its
target does (SCoT 3.3).

    python -m bench.quality.training [--only tiny]

Problems are drawn with the tools that made the data sets, solved, exported and learnt from, all into build/training; what is finished there
is not done again. Writes bench/training.md and bench/results/training.json. The page has every pair that was measured, in this call or an
earlier one. A pair whose files are not there is left out.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice, pairwise
from pathlib import Path

import click
import msgspec
import numpy as np
import pyarrow.parquet as pq
from msgspec import Struct

from bench.figures import RESULTS, ROOT, go_on, origin
from bench.runs import ARITH, PROGRAM, make, say
from pipeline.analysis.compare.cells import Table, number, percent
from pipeline.analysis.compare.figures import Compared, Selection
from pipeline.analysis.compare.runs import RunTable, read_run
from pipeline.analysis.compare.written import markdown_table
from pipeline.analysis.quality.estimates import NOTHING, Estimate, mean, outcomes, ratio, share
from pipeline.analysis.quality.selection import ThoughtChoices
from pipeline.engines.adapters import read_adapter
from pipeline.session.options import RunOptions
from pipeline.training.lora.config import Task

sys.path.insert(0, str(ROOT / "tools"))
import make_arith

PAGE = ROOT / "bench/training.md"
LOG = "trainer_state.json"
"""The log of a training, the last file that it writes."""
BATCH_SIZE, VALIDATIONS = 16, 10
"""Of a training that chooses: examples of a step, and validations next to the one before it."""
PAPERS_LORA = ("lora.rank=8", "lora.targets=[q_proj,v_proj]")
"""The adapter of SCoT's published code; those of the training files are larger."""
DRAWN = ("temperature=0.6", "top_p=0.95")
"""How `scot` samples, for graphs whose defaults are others."""
UNTUNED = "untuned"
"""The name of the verifier without an adapter."""
DRAFTED = {"drafted", "longest", "rejected"}
"""Kinds of texts that are no committed steps; see `by_problem.read_texts`."""


class Pair(Struct, frozen=True, kw_only=True):
    """A draft and a target, and what they are trained for."""

    name: str
    tool: str
    """The module of `tools` that draws its problems."""
    test_set: Path
    lessons: tuple[int, ...]
    """Of how many problems it learns to choose; the adapter of most problems is the one that systems are run with."""
    alignment: int = 0
    """The number of thoughts of the target that its draft learns; 0: it does not."""

    @property
    def engines(self) -> Path:
        """Its engines file, on torch."""
        return ROOT / f"graphs/engines/{self.name}.yaml"

    def config(self, task: Task) -> Path:
        """Its file of one training."""
        return ROOT / f"graphs/training/{self.name}-{task}.yaml"

    @property
    def needed(self) -> list[Path]:
        """Files without which it is not measured."""
        models = [ROOT / f"pipeline/models/{self.name}-{role}" for role in ("draft", "target")]
        training = [self.config("select"), *([self.config("draft")] if self.alignment else [])]
        return [self.test_set, self.engines, *training, *models]


PAIRS = (
    Pair(name="tiny", tool="make_arith", test_set=ARITH, lessons=(250, 1000, 4000)),
    Pair(name="wordy", tool="make_wordy", test_set=ROOT / "datasets/wordy/test.parquet", lessons=(1000, 4000), alignment=1500),
)


class Section(Struct, frozen=True, kw_only=True):
    """All that was measured of one pair of models."""

    pair: str
    sentences: tuple[str, ...]
    tables: tuple[Table, ...]


class Trained(Struct, frozen=True, kw_only=True):
    """A training as it was carried out."""

    name: str
    examples: int
    """The number of examples that it learnt from."""
    parameters: int
    """Trained ones."""
    steps: int
    seconds: float

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the columns `TRAINED`."""
        return f"{self.examples:,}", f"{self.parameters:,}", f"{self.steps:,}", f"{self.seconds / 60:.1f}"


TRAINED = ("examples", "trained parameters", "steps", "minutes")

# Rows of the tables, from the tables of runs.


def choosing(name: str, run: RunTable, trained: Trained | None = None) -> tuple[str, ...]:
    """The right choices of the verifier of `run`, which chose among whole thoughts, by class and over all (SCoT 4.4)."""
    found, choices = _chosen(run)
    every = outcomes(choices.problem, np.where(choices.right_drafts > 0, choices.picked_right, choices.rejected))
    cells = trained.cells if trained else ("-",) * len(TRAINED)
    return name, *cells, *map(percent, (found.class_1_right, found.class_2_right, every))


def chance(run: RunTable) -> tuple[str, ...]:
    """The same of a draft that is drawn at random, which rejects nothing."""
    found, choices = _chosen(run)
    none = Estimate(0.0) if found.class_2 else NOTHING
    return "a draft at random", *("-",) * len(TRAINED), *map(percent, (found.by_chance, none, random_draft(choices)))


def _chosen(run: RunTable) -> tuple[Selection, ThoughtChoices]:
    found, choices = Compared(run, run).selection, run.details.choices
    assert found is not None
    assert choices is not None
    return found, choices


def random_draft(choices: ThoughtChoices) -> Estimate:
    """The expected accuracy of a draft that is drawn at random from those of each problem."""
    drawn, right = np.bincount(choices.problem), np.bincount(choices.problem, choices.right_drafts)
    return mean(right[drawn > 0] / drawn[drawn > 0])


def best_draft(choices: ThoughtChoices) -> Estimate:
    """The share of the problems of which some draft is right: nobody who only chooses among them does better."""
    return outcomes(choices.problem, (choices.right_drafts > 0).astype(float))


def system(name: str, run: RunTable) -> tuple[str, ...]:
    """The figures of a system that was run."""
    found, verified = Compared(run, run), run.accepted + run.fallbacks
    accepted = share(run.accepted, verified) if verified.any() else NOTHING
    right = NOTHING if run.details.choices is None else random_draft(run.details.choices)
    tokens = (number(found.output_tokens.get(role, NOTHING)) for role in ("target", "draft"))
    return name, percent(found.accuracy), percent(right), percent(accepted), *tokens


def by_reference(choices: ThoughtChoices) -> tuple[tuple[str, ...], ...]:
    """Systems without a verifier, and with one that knows the answers, on the recorded drafts."""
    nothing, always = percent(NOTHING), percent(Estimate(1.0))
    return (
        ("a draft at random, computed", percent(random_draft(choices)), nothing, always, "-", "-"),
        ("a right draft wherever there is one, computed", percent(best_draft(choices)), nothing, nothing, "-", "-"),
    )


def thinking(name: str, run: RunTable) -> tuple[str, ...]:
    """The length, second thoughts and accuracy of a model alone."""
    words = sum((text.reflective for kind, text in run.details.texts.items() if kind not in DRAFTED), np.zeros(len(run.chains)))
    found = Compared(run, run)
    return name, number(found.thought_tokens), number(ratio(words, run.chains)), percent(found.accuracy)


# The runs and trainings.


class Study:
    """The measurement of one pair, whose runs, data and adapters are kept in a folder of its own."""

    def __init__(self, pair: Pair, folder: Path, steps: int, most: int | None) -> None:
        """`steps` of each training that chooses; `most`: most problems of a run or a training, None: as many as the pair says."""
        self.pair, self.folder, self.steps, self.most = pair, folder / pair.name, steps, most
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lessons = sorted({self.at_most(each) for each in pair.lessons})

    def at_most(self, count: int) -> int:
        """`count` problems, or as many as there may be."""
        return count if self.most is None else min(count, self.most)

    def measured(self) -> Section:
        """Its choices before and after training, the systems side by side, and alignment; what is kept is not done again."""
        untuned = self.solve(UNTUNED, "scot")
        _, choices = _chosen(untuned)
        first = int((choices.right_drafts > 0).sum())
        before = choosing(UNTUNED, untuned)
        learnt = [*map(self.learnt, self.lessons), self.learnt(self.lessons[-1], "-papers", PAPERS_LORA)]
        return Section(
            pair=self.pair.name,
            sentences=(
                f"{len(untuned.problem_ids)} test problems; of the choices among their drafts {first} are of class 1, "
                f"{len(choices.problem) - first} of class 2.",
                "\n".join(f"- {row[0]}: class 1 from {before[-3]} to {row[-3]}, class 2 from {before[-2]} to {row[-2]}." for row in learnt),
            ),
            tables=(
                Table("Choosing among whole thoughts (SCoT 3.4)", CHOOSING, (chance(untuned), before, *learnt), CLASSES),
                Table("Systems on the test set", SYSTEMS, (*self.systems(untuned), *by_reference(choices)), TOKENS),
                *([self.aligned()] if self.pair.alignment else []),
            ),
        )

    # Each of the following leaves one file or folder, and does nothing where that is there.

    def problems(self, start: int, end: int) -> Path:
        """A file with the training problems number `start` to `end`."""
        path, name = self.folder / f"problems-{start}-{end}.parquet", f"{self.pair.name}-{start}-{end}"
        if not path.exists():
            drawn = islice(import_module(self.pair.tool).SETS.training(0), start, end)
            make_arith.write(path, name, f"tools/{self.pair.tool}.py", [(each.text, each.answer, list(each.steps)) for each in drawn])
        return path

    def run(self, name: str, graph: str, problems: Path, settings: Sequence[str] = ()) -> Path:
        """The folder of a run."""
        options = RunOptions(
            graph=ROOT / f"graphs/{graph}.yaml",
            input=problems,
            engines=self.pair.engines,
            settings=tuple(settings),
            limit=self.most,
            output=self.folder / f"run-{name}",
        )
        make(options, f"{self.pair.name}: run {name}")
        return options.output

    def exported(self, name: str, runs: Sequence[Path], *options: str) -> Path:
        """A file of training data."""
        path = self.folder / f"{name}.parquet"
        if not path.exists():
            command("export", *map(str, runs), *options, "--test-set", str(self.pair.test_set), "-o", str(path))
        return path

    def trained(self, task: Task, name: str, data: Path, *settings: str) -> tuple[Path, Trained]:
        """The folder of an adapter, and how it was trained."""
        folder = self.folder / name
        if not (folder / LOG).exists():
            say(f"{self.pair.name}: train {name}")
            files = (f"data={json.dumps([str(data)])}", f"test_sets={json.dumps([str(self.pair.test_set)])}")
            words = [word for setting in (*files, *settings) for word in ("--set", setting)]
            command("train", task, str(self.pair.config(task)), *words, "--output", str(folder), "--resume")
        state, adapter = json.loads((folder / LOG).read_text()), read_adapter(str(folder))
        modules = {name.split(".")[-3] for name in adapter.tensors}
        layers = "all linear layers" if len(modules) == 7 else ", ".join(sorted(modules))
        splits = pq.read_table(data, columns=["split"]).column("split").to_pylist()
        trained = Trained(
            name=f"{len(splits):,} {'choices' if task == 'select' else 'thoughts'}, rank {adapter.rank} on {layers}",
            examples=splits.count("train"),
            parameters=adapter.parameters,
            steps=state["global_step"],
            seconds=next(row["train_runtime"] for row in reversed(state["log_history"]) if "train_runtime" in row),
        )
        return folder, trained

    def merged(self, adapter: Path) -> Path:
        """The folder of a model with an adapter in its weights."""
        path = adapter.with_name(f"{adapter.name}-merged")
        if not path.exists():
            command("train", "merge", str(adapter), "-o", str(path))
        return path

    # What is measured.

    def solve(self, name: str, graph: str, *settings: str) -> RunTable:
        """The test set, solved by a system."""
        return read_run(self.run(f"test-{name}", graph, self.pair.test_set, settings))

    def adapter(self, count: int, name: str = "", settings: Sequence[str] = ()) -> tuple[Path, Trained]:
        """The adapter that learnt from `count` problems. Those of fewer ones are the first of more, solved once.

        `name` is what its folder's name has besides problems and steps, `settings` are those of its training that differ.
        """
        sizes = [0, *(each for each in self.lessons if each <= count)]
        runs = [self.run(f"train-{start}-{end}", "scot", self.problems(start, end)) for start, end in pairwise(sizes)]
        data = self.exported(f"choices-{count}", runs, "--as", "selection")
        examples = pq.read_table(data, columns=["split"]).column("split").to_pylist().count("train")
        batches = -(-examples // BATCH_SIZE)
        schedule = (
            f"batch_size={BATCH_SIZE}",
            f"epochs={(self.steps - 0.5) / batches}",  # steps are epochs times batches, rounded up
            f"evaluate_every={max(1, self.steps // VALIDATIONS)}",
        )
        return self.trained("select", f"select-{count}-{self.steps}{name}", data, *schedule, *settings)

    def learnt(self, count: int, name: str = "", settings: Sequence[str] = ()) -> tuple[str, ...]:
        """The choices of the target after it learnt from `count` problems; `name` and `settings` as of `adapter`."""
        folder, trained = self.adapter(count, name, settings)
        return choosing(trained.name, self.solve(folder.name, "scot", *with_adapter(folder)), trained)

    def systems(self, untuned: RunTable) -> Iterator[tuple[str, ...]]:
        """Systems side by side; `untuned` is scot without an adapter."""
        folder, _ = self.adapter(self.lessons[-1])
        tuned = with_adapter(folder)
        yield system("scot with the adapter", self.solve(folder.name, "scot", *tuned))
        if self.pair.alignment:
            model = self.merged(self.alignment()[0])
            run_table = self.solve(f"{folder.name}-aligned", "scot", *tuned, f"engines.draft.model={model}")
            yield system("the same, with the aligned draft, of which it saw no thought", run_table)
        yield system("scot untuned", untuned)
        yield system("best of n, untuned", self.solve("best-of-n", "best-of-n"))
        yield system("majority vote", self.solve("vote", "self-consistency", *DRAWN, "least_votes=1"))
        yield system("target alone", self.solve("target", "target", *DRAWN))
        yield system("draft alone", self.solve("draft", "draft", *DRAWN))

    def alignment(self) -> tuple[Path, Trained]:
        """The adapter of the draft that learnt thoughts of its target."""
        count, model = self.at_most(self.pair.alignment), f"bundled:{self.pair.name}-draft"
        thought = self.run(f"thoughts-{count}", "target", self.problems(0, count))
        data = self.exported(f"thoughts-{count}", [thought], "--as", "sft", "--tokens", "--model", model)
        return self.trained("draft", f"draft-{count}", data)

    def aligned(self) -> Table:
        """The thoughts of the draft before and after, and of the target."""
        adapter, trained = self.alignment()
        after = self.solve("draft-aligned", "draft", *DRAWN, f"engines.draft.model={self.merged(adapter)}")
        before, target = (self.solve(role, role, *DRAWN) for role in ("draft", "target"))
        rows = thinking("draft", before), thinking("draft, aligned", after), thinking("target", target)
        how = f"{trained.name}: {', '.join(map(' '.join, zip(trained.cells, TRAINED, strict=True)))}. "
        return Table("Thinking behaviour alignment (SCoT 3.3, table 2)", THINKING, rows, how + OWN_ANSWERS)


def with_adapter(folder: Path) -> tuple[str, ...]:
    """Settings of a run whose target chooses with the adapter in `folder`."""
    return ("adapter=selection", f"engines.target.adapters.selection={folder}")


# The page.


CHOOSING = ("verifier", *TRAINED, "class 1 right", "class 2 right", "all right")
CLASSES = (
    "Class 1: some draft is right, and a right one is selected. Class 2: none is right, and all are rejected (SCoT 4.4). A draft is "
    "right whose thought states the right answer."
)
SYSTEMS = (
    *("system", "accuracy", "drafts that are right", "problems with an accepted draft"),
    *("target's tokens a problem", "draft's tokens a problem"),
)
TOKENS = "Tokens: all that were sampled, whatever became of them; a choice is one of the target's. Right drafts as above."
THINKING = ("model alone", "tokens of a thought", "words of second thoughts in it", "accuracy")
OWN_ANSWERS = (
    "Accuracy is that of the answer which the model itself writes behind its thought. Alignment trains thoughts and no answers; SCoT "
    "has the target write the answer, so that what counts there is how many drafts are right, in the table above."
)
INTRODUCTION = (
    "Adapters are trained with `pipeline train` on what `pipeline export` makes of runs over training problems, and are measured on the "
    "test set, which neither the bundled models nor the adapters have seen. All trainings of `train select` have the same number of steps, "
    "however many problems they learn from, and the problems of a smaller set are in the larger ones. A choice of which "
    "it is not known what is right is left out. Minutes are of a training on the machine above, whatever else it was doing."
)

INTERVALS = (
    "Brackets: 95% intervals. For an accuracy: Wilson's, or with several samples a problem, clustered by problem; for all "
    "else: bootstrap over problems, paired by problem for differences."
)


def page(about: str, sections: Iterable[Section], absent: Mapping[str, str]) -> str:
    """All of training.md; `absent` says why a pair is not there."""
    parts = [about, "# What training an adapter brings", INTRODUCTION, INTERVALS]
    for each in sections:
        parts += [f"## {each.pair}", *each.sentences, *map(markdown_table, each.tables)]
    parts += [f"## {pair}\n\nNot measured: {why}." for pair, why in absent.items()]
    return "\n\n".join(parts) + "\n"


def command(*words: str) -> None:
    """Run a command of the package."""
    if code := subprocess.run([*PROGRAM, *words], cwd=ROOT).returncode:
        raise click.ClickException(f"pipeline {' '.join(words[:2])} ended with {code}; why stands above")


@click.command()
@click.option("--only", multiple=True, type=click.Choice([pair.name for pair in PAIRS]), help="Measure this pair alone. Repeatable.")
@click.option("--steps", default=600, show_default=True, help="Of each training that chooses.")
@click.option("--problems", type=int, help="Most problems of a run or a training.  [default: all]")
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT / "build/training", show_default=True, help="Where all is kept.")
@click.option("--output", type=click.Path(path_type=Path), default=PAGE, show_default=True)
def main(only: tuple[str, ...], steps: int, problems: int | None, folder: Path, output: Path) -> None:
    """Measure what is missing and write the page, with all pairs that were ever measured into the folder."""
    recording = go_on(__file__, folder)
    absent, found = dict[str, str](), list[Section]()
    for pair in PAIRS:
        kept = folder / f"{pair.name}-{steps}-{problems or 'all'}.json"
        if not only or pair.name in only:
            if missing := [path for path in pair.needed if not path.exists()]:
                absent[pair.name] = f"{missing[0].relative_to(ROOT)} is not there"
                say(f"{pair.name}: left out, {absent[pair.name]}")
                continue
            kept.write_bytes(msgspec.json.encode(Study(pair, folder.absolute(), steps, problems).measured()))
        if kept.exists():
            found.append(msgspec.json.decode(kept.read_bytes(), type=Section))
    text = page(origin(recording.measured)[:-1], found, absent)
    if output == PAGE:
        recording.write(ROOT / RESULTS / "training.json", {"bench": "training", "pairs": msgspec.to_builtins(found)}, text)
    else:
        output.write_text(text)
    click.echo(f"{output}: {', '.join(each.pair for each in found) or 'no pair'}", err=True)


if __name__ == "__main__":
    main()
