"""What training an adapter brings: a target that learns to choose among whole thoughts (SCoT 3.4), a draft that learns to think as its
target does (SCoT 3.3), and one adapter served by two engines.

    python bench/training.py [--only tiny] [--no-vllm]

Problems are drawn with the tools that made the data sets, solved, exported and learnt from, all into build/training; what is finished there
is not done again. Writes bench/training.md, curves under bench/training/, and bench/results/training.json. The page has every pair that
was measured, in this call or an earlier one. A pair whose files are not there is left out.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice, pairwise
from pathlib import Path

import anyio
import click
import msgspec
import pyarrow.parquet as pq
import training_tables
from grids import origin
from kept_runs import make
from msgspec import Struct
from recording import go_on
from training_tables import UNTUNED, Agreement, PairResults, Selecting, System, Thinking, Trained

from pipeline.analysis.compare.runs import RunTable, read_run
from pipeline.engine import Completion, Engine, Request
from pipeline.engines.adapters import read_adapter
from pipeline.engines.registry import open_engines
from pipeline.graph.spec import EngineSpec
from pipeline.session.options import RunOptions
from pipeline.session.prepare import load_plan
from pipeline.training.lora.config import Task
from pipeline.training.retrace import Retracer

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import make_arith  # noqa: E402

PAGE = ROOT / "bench/training.md"
RESULTS = ROOT / "bench/results/training.json"
LOG = "trainer_state.json"
"""The log of a training, the last file that it writes."""
BATCH_SIZE = 16
"""Examples of a step of a training that chooses."""
VALIDATIONS = 10
"""Of a training that chooses, next to the one before it."""
AGREEMENT = 100
"""Most choices that are asked of two engines."""
PAPERS_LORA = ("lora.rank=8", "lora.targets=[q_proj,v_proj]")
"""The adapter of SCoT's published code; those of the training files are larger."""
DRAWN = ("temperature=0.6", "top_p=0.95")
"""How `scot` samples, for graphs whose defaults are others."""


class Pair(Struct, frozen=True, kw_only=True):
    """A draft and a target, and what they are trained for."""

    name: str
    tool: str
    """The module of `tools` that draws its problems."""
    test_set: Path
    lessons: tuple[int, ...]
    """Of how many problems it learns to choose; the adapter of most problems is the one that systems are run with."""
    alignment: int = 0
    """How many thoughts of the target its draft learns; 0: it does not."""
    vllm: Path | None = None
    """An engines file with the pair on vLLM, to ask both engines for the same choices; None: they are not."""

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
    Pair(
        name="tiny",
        tool="make_arith",
        test_set=ROOT / "datasets/arith/test.parquet",
        lessons=(250, 1000, 4000),
        vllm=ROOT / "graphs/engines/tiny-vllm.yaml",
    ),
    Pair(
        name="wordy",
        tool="make_wordy",
        test_set=ROOT / "datasets/wordy/test.parquet",
        lessons=(1000, 4000),
        alignment=1500,
    ),
)


class Kept(Struct, frozen=True):
    """What was measured of a pair, and with which options."""

    options: dict[str, int | bool | None]
    results: PairResults


class Study:
    """The measurement of one pair, whose runs, data and adapters are kept in a folder of its own."""

    def __init__(self, pair: Pair, folder: Path, steps: int, most: int | None) -> None:
        """`steps` of each training that chooses; `most`: most problems of a run or a training, None: as many as the pair says."""
        self.pair, self.folder, self.steps, self.most = pair, folder / pair.name, steps, most
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lessons = sorted({self.at_most(each) for each in pair.lessons})

    def at_most(self, count: int) -> int:
        """So many problems, or the most that there may be."""
        return count if self.most is None else min(count, self.most)

    def measured(self, *, vllm: bool) -> PairResults:
        """What choosing, the systems side by side, alignment and two engines came to; what is kept is not done again."""
        untuned = self.solve(UNTUNED, "scot")
        most = self.lessons[-1]
        selecting = [
            training_tables.chance(untuned),
            training_tables.selecting(UNTUNED, untuned),
            *map(self.learnt, self.lessons),
            self.learnt(most, "-papers", PAPERS_LORA),
        ]
        thinking, aligned = self.aligned() if self.pair.alignment else ((), None)
        assert untuned.choices is not None
        first = untuned.choices.right_drafts > 0
        return PairResults(
            pair=self.pair.name,
            problems=len(untuned.problem_ids),
            class_1=int(first.sum()),
            class_2=int((~first).sum()),
            selecting=tuple(selecting),
            systems=(*self.systems(untuned), *training_tables.by_reference(untuned.choices)),
            thinking=thinking,
            alignment=aligned,
            agreement=self.agreement(self.pair.vllm) if vllm and self.pair.vllm is not None else None,
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
            _command("export", *map(str, runs), *options, "--test-set", str(self.pair.test_set), "-o", str(path))
        return path

    def trained(self, task: Task, name: str, data: Path, *settings: str) -> tuple[Path, Trained]:
        """The folder of an adapter, and how it was trained."""
        folder = self.folder / name
        if not (folder / LOG).exists():
            _say(f"{self.pair.name}: train {name}")
            files = (f"data={json.dumps([str(data)])}", f"test_sets={json.dumps([str(self.pair.test_set)])}")
            words = [word for setting in (*files, *settings) for word in ("--set", setting)]
            _command("train", task, str(self.pair.config(task)), *words, "--output", str(folder), "--resume")
        state, adapter = json.loads((folder / LOG).read_text()), read_adapter(str(folder))
        modules = {name.split(".")[-3] for name in adapter.tensors}
        layers = "all linear layers" if len(modules) == 7 else ", ".join(sorted(modules))
        splits = pq.read_table(data, columns=["split"]).column("split").to_pylist()
        trained = Trained(
            name=f"{len(splits):,} {'choices' if task == 'select' else 'thoughts'}, rank {adapter.rank} on {layers}",
            folder=f"{self.pair.name}/{name}",
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
            _command("train", "merge", str(adapter), "-o", str(path))
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

    def learnt(self, count: int, name: str = "", settings: Sequence[str] = ()) -> Selecting:
        """How well the target chooses after it learnt from `count` problems; `name` and `settings` as of `adapter`."""
        folder, trained = self.adapter(count, name, settings)
        return training_tables.selecting(trained.name, self.solve(folder.name, "scot", *with_adapter(folder)), trained)

    def systems(self, untuned: RunTable) -> Iterator[System]:
        """Systems side by side; `untuned` is scot without an adapter."""
        folder, _ = self.adapter(self.lessons[-1])
        tuned = with_adapter(folder)
        yield training_tables.system("scot with the adapter", self.solve(folder.name, "scot", *tuned))
        if self.pair.alignment:
            model = self.merged(self.alignment()[0])
            run_table = self.solve(f"{folder.name}-aligned", "scot", *tuned, f"engines.draft.model={model}")
            yield training_tables.system("the same, with the aligned draft, of which it saw no thought", run_table)
        yield training_tables.system("scot untuned", untuned)
        yield training_tables.system("best of n, untuned", self.solve("best-of-n", "best-of-n"))
        yield training_tables.system("majority vote", self.solve("vote", "self-consistency", *DRAWN, "least_votes=1"))
        yield training_tables.system("target alone", self.solve("target", "target", *DRAWN))
        yield training_tables.system("draft alone", self.solve("draft", "draft", *DRAWN))

    def alignment(self) -> tuple[Path, Trained]:
        """The adapter of the draft that learnt thoughts of its target."""
        count, model = self.at_most(self.pair.alignment), f"bundled:{self.pair.name}-draft"
        thought = self.run(f"thoughts-{count}", "target", self.problems(0, count))
        data = self.exported(f"thoughts-{count}", [thought], "--as", "sft", "--tokens", "--model", model)
        return self.trained("draft", f"draft-{count}", data)

    def aligned(self) -> tuple[tuple[Thinking, ...], Trained]:
        """The thoughts of the draft before and after, and of the target."""
        adapter, trained = self.alignment()
        after = self.solve("draft-aligned", "draft", *DRAWN, f"engines.draft.model={self.merged(adapter)}")
        before, target = (self.solve(role, role, *DRAWN) for role in ("draft", "target"))
        runs = {"draft": before, "draft, aligned": after, "target": target}
        return tuple(training_tables.thinking(name, each) for name, each in runs.items()), trained

    def agreement(self, vllm: Path) -> Agreement:
        """The choices of the test set asked of the target's engine here and in the engines file `vllm`, with the adapter."""
        folder, _ = self.adapter(self.lessons[-1])
        kept = self.folder / f"agreement-{folder.name}.json"
        if not kept.exists():
            retraced = islice(Retracer(self.folder / f"run-test-{folder.name}").chains(), AGREEMENT)
            requests = [asked.request for chain in retraced for step in chain.steps for asked in step.asked if asked.label.name == "verify"]
            said = []
            for engines in (self.pair.engines, vllm):
                _say(f"{self.pair.name}: {len(requests)} choices asked of {engines.stem}")
                spec = load_plan(ROOT / "graphs/scot.yaml", engines, with_adapter(folder)).engines["target"]
                said.append(anyio.run(partial(answers, spec, requests)))
            found = training_tables.agreement((self.pair.engines.stem, vllm.stem), *said)
            kept.write_bytes(msgspec.json.encode(found))
        return msgspec.json.decode(kept.read_bytes(), type=Agreement)


def with_adapter(folder: Path) -> tuple[str, ...]:
    """Settings of a run whose target chooses with the adapter in `folder`."""
    return ("adapter=selection", f"engines.target.adapters.selection={folder}")


async def answers(spec: EngineSpec, requests: Sequence[Request]) -> list[tuple[float, ...]]:
    """The log probabilities of the options of each of `requests`, by an engine that is opened for them."""
    found: dict[int, Completion] = {}

    async def ask(engine: Engine, number: int) -> None:
        found[number] = await engine.generate(requests[number])

    async with open_engines({"target": spec}) as engines, anyio.create_task_group() as tasks:
        for number in range(len(requests)):
            tasks.start_soon(ask, engines["target"], number)
    return [found[number].option_logprobs for number in range(len(requests))]


def pictures(found: PairResults, folder: Path, output: Path) -> Iterator[str]:
    """Draw the curves of a pair next to the page `output`, from the logs in `folder`; the lines that show them."""
    lessons = [each.trained for each in found.selecting if each.trained is not None]
    aligned = [found.alignment] if found.alignment is not None else []
    kinds = (("selection", lessons, training_tables.draw_selecting), ("alignment", aligned, training_tables.draw_losses))
    for name, trained, draw in kinds:
        if trained:
            path = output.with_suffix("") / f"{found.pair}-{name}.png"
            logs = {each.name: json.loads((folder / each.folder / LOG).read_text())["log_history"] for each in trained}
            draw(logs, path)
            yield f"![{found.pair}: curves of the {name}]({path.parent.name}/{path.name})"


def _say(line: str) -> None:
    click.echo(f"  {line}", err=True)


def _command(*words: str) -> None:
    """Run a command of the package."""
    done = subprocess.run([sys.executable, "-m", "pipeline.cli.main", *words], cwd=ROOT)
    if done.returncode:
        raise click.ClickException(f"pipeline {' '.join(words[:2])} ended with {done.returncode}; why stands above")


@click.command()
@click.option("--only", multiple=True, type=click.Choice([pair.name for pair in PAIRS]), help="Measure this pair alone. Repeatable.")
@click.option("--steps", default=600, show_default=True, help="Of each training that chooses.")
@click.option("--problems", type=int, help="Most problems of a run or a training.  [default: all]")
@click.option("--vllm/--no-vllm", default=True, show_default=True, help="Ask vLLM for the same choices, too.")
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT / "build/training", show_default=True, help="Where all is kept.")
@click.option("--output", type=click.Path(path_type=Path), default=PAGE, show_default=True)
def main(only: tuple[str, ...], steps: int, problems: int | None, vllm: bool, folder: Path, output: Path) -> None:
    """Measure what is missing and write the page, with all pairs that were ever measured into the folder."""
    recording = go_on(__file__, folder)
    if vllm and find_spec("vllm") is None:
        vllm = False
        _say("vLLM is not installed: it is not asked")
    absent, found, options = {}, [], {"steps": steps, "problems": problems, "vllm": vllm}
    for pair in PAIRS:
        kept = folder / f"{pair.name}.json"
        if not only or pair.name in only:
            if missing := [path for path in pair.needed if not path.exists()]:
                absent[pair.name] = f"{missing[0].relative_to(ROOT)} is not there"
                _say(f"{pair.name}: left out, {absent[pair.name]}")
                continue
            measured = Study(pair, folder.absolute(), steps, problems).measured(vllm=vllm)
            kept.write_bytes(msgspec.json.encode(Kept(options, measured)))
        if kept.exists():
            before = msgspec.json.decode(kept.read_bytes(), type=Kept)
            if before.options != options:
                raise click.ClickException(f"{kept} was measured with {before.options}, not with {options}: measure both alike")
            found.append(before.results)
    shown = {each.pair: list(pictures(each, folder, output)) for each in found}
    text = training_tables.page(origin(recording.measured)[:-1], found, shown, absent)
    if output == PAGE:
        recording.write(RESULTS, {"bench": "training", "pairs": msgspec.to_builtins(found)}, text)
    else:
        output.write_text(text)
    click.echo(f"{output}: {', '.join(each.pair for each in found) or 'no pair'}", err=True)


if __name__ == "__main__":
    main()
