"""The tables of the three papers with the bundled models, and what holds of their claims.

    python bench/papers.py

Runs all graphs into build/papers/NAME, those that are finished are not run again, and writes bench/papers.md with the functions of
`pipeline compare`. Each run is made once, so a latency is that of one run, whatever else the machine was doing: three of the
systems run again in the middle and at the end, and what they differ from themselves widens the intervals of other ratios of
times. vLLM's runs are compared with vLLM's alone, simulated ones with simulated ones.
"""

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from claims import CLAIMS, Found, judge, noise_of
from msgspec import Struct
from recording import go_on
from tables import origin

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.compare import Comparison, compare
from pipeline.analysis.compare.runs import RunTable, read_runs
from pipeline.analysis.compare.tables import INTERVALS, SIMULATED, by_batch_size, by_param, by_resources, markdown_table, samples, tables
from pipeline.engines.sim.text import sim_answer
from pipeline.session.options import RunOptions
from pipeline.session.preflight import load_plan
from pipeline.session.run import run

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "bench/papers.md"
ARITH = ROOT / "datasets/arith/test.parquet"
ENGINES = ROOT / "graphs/engines"
REWARD_MODEL = ROOT / "graphs/rewards/prm-tiny.yaml"
DECODE = ("speculative-decoding", "speccot-decode", "specreason-decode")


class Job(Struct, frozen=True, kw_only=True):
    """One run."""

    name: str
    graph: str
    engines: str | None = None
    """By default those that the graph names."""
    most: int | None = None
    """Most problems, where fewer than all are enough."""
    batch_size: int = 32
    samples: int = 1
    settings: tuple[str, ...] = ()

    @property
    def simulated(self) -> bool:
        return bool(self.engines and self.engines.startswith("sim"))

    @property
    def needs_vllm(self) -> bool:
        return self.graph in DECODE or bool(self.engines and "vllm" in self.engines)

    def options(self, folder: Path, problems: int) -> RunOptions:
        """This run over the first `problems` ones, into `folder`/NAME."""
        return RunOptions(
            graph=ROOT / f"graphs/{self.graph}.yaml",
            input=folder / "simulated.parquet" if self.simulated else ARITH,
            engines=ENGINES / f"{self.engines}.yaml" if self.engines else None,
            settings=self.settings,
            batch_size=self.batch_size,
            samples=self.samples,
            limit=min(problems, self.most or problems),
            output=folder / self.name,
        )


class Section(Struct, frozen=True, kw_only=True):
    """Runs that are compared with each other, and which tables are shown."""

    title: str
    about: str
    jobs: tuple[Job, ...]
    baseline: str
    shows: Callable[[Comparison], Iterable[Table]] = tables


def jobs_of(graph: str, param: str, values: Iterable[float], prefix: str, **fields: Any) -> tuple[Job, ...]:
    """One run for each value of a param."""
    return tuple(Job(name=f"{prefix}-{value}", graph=graph, settings=(f"{param}={value}",), **fields) for value in values)


ALONE = tuple(
    Job(name=graph, graph=graph)
    for graph in ("target", "target-steps", "draft", "guided-draft", "speccot", "specreason", "likelihood", "scot", "best-of-n")
)
SPECCOT, SPECREASON, LIKELIHOOD = ALONE[4:7]
REPEATED = {
    graph: [Job(name=f"{graph}-{when}", graph=graph) for when in ("again", "at-the-end")] for graph in ("target", "speccot", "specreason")
}
"""The same work at other times."""
SECTIONS = (
    Section(
        title="All systems",
        about="Torch engines, a process and a core each.",
        jobs=ALONE,
        baseline="target",
    ),
    Section(
        title="Speculation inside the engine",
        about="vLLM's CPU build. Its latencies are not to be compared with those above.",
        jobs=(
            *(Job(name=f"vllm-{graph}", graph=graph, engines="tiny-vllm") for graph in ("target", "speccot", "specreason")),
            *(Job(name=graph, graph=graph) for graph in DECODE),
        ),
        baseline="vllm-target",
    ),
    Section(
        title="Several samples",
        about="Five attempts at every problem.",
        jobs=tuple(Job(name=f"{graph}-x5", graph=graph, samples=5) for graph in ("draft", "best-of-n")),
        baseline="draft-x5",
        shows=lambda c: [samples(c)],
    ),
    Section(
        title="Thresholds of SpecReason",
        about="",
        jobs=(*jobs_of("specreason", "threshold", (0, 3, 5, 9), "threshold"), SPECREASON),
        baseline="threshold-0",
        shows=by_param,
    ),
    Section(
        title="First steps by the target",
        about="",
        jobs=(SPECREASON, *jobs_of("specreason", "first_steps", (1, 2), "first")),
        baseline="specreason",
        shows=by_param,
    ),
    Section(
        title="Thresholds of the likelihood",
        about="Nats per token, the mean over a step.",
        jobs=(*jobs_of("likelihood", "min_logprob", (-2, -1, -0.1), "likelihood"), LIKELIHOOD),
        baseline="likelihood--2",
        shows=by_param,
    ),
    Section(
        title="Guidance",
        about="Tokens that the target writes before the first draft.",
        jobs=(*jobs_of("speccot", "guidance_tokens", (0,), "guidance"), SPECCOT),
        baseline="guidance-0",
        shows=by_param,
    ),
    Section(
        title="Candidates",
        about="",
        jobs=jobs_of("speccot", "candidates", (1, 2, 5, 10), "candidates", most=100),
        baseline="candidates-1",
        shows=by_param,
    ),
    Section(
        title="Batch sizes",
        about="",
        jobs=tuple(
            Job(name=f"{graph}-b{n}", graph=graph, most=64, batch_size=n) for graph in ("target", "speccot") for n in (1, 8, 32, 128)
        ),
        baseline="target-b1",
        shows=by_batch_size,
    ),
    Section(
        title="Two and four GPUs, simulated",
        about="QwQ-32B and R1-Distill-Qwen-1.5B on two and on four H100, one problem at a time.",
        jobs=tuple(
            Job(name=f"sim-{graph}-{cards}", graph=graph, engines=f"sim-{cards}xh100", most=64, batch_size=1)
            for graph in ("target", "speccot")
            for cards in (2, 4)
        ),
        baseline="sim-target-2",
        shows=by_resources,
    ),
)


def in_order(jobs: list[Job]) -> list[Job]:
    """All `jobs`, and the repeated ones in the middle and at the end."""
    again, at_the_end = zip(*REPEATED.values(), strict=True)
    return [*jobs[: len(jobs) // 2], *again, *jobs[len(jobs) // 2 :], *at_the_end]


def run_all(jobs: Iterable[Job], folder: Path, problems: int) -> None:
    """Make the runs that are not there yet."""
    for job in jobs:
        options = job.options(folder, problems)
        if not is_finished(options):
            shutil.rmtree(folder / job.name, ignore_errors=True)
            click.echo(f"  {job.name}", err=True)
            result = run(options)
            if result.exit_code not in (0, 3):  # 3: chains that failed are flagged in the tables
                raise click.ClickException(f"{job.name}: {result.error}")


def is_finished(options: RunOptions) -> bool:
    """Whether this very run is in its folder, whole."""
    assert options.output is not None
    try:
        card = msgspec.json.decode((options.output / "run.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return False
    decided = {"batch_size": options.batch_size, "samples": options.samples, "seed": options.seed, "status": "finished"}
    same_graph = card["graph_digest"] == load_plan(options.graph, options.engines, options.settings).digest
    return same_graph and card["input"]["limit"] == options.limit and all(card[name] == value for name, value in decided.items())


def simulated_problems(folder: Path) -> None:
    """The same problems with the answers that simulated models take for right."""
    problems = pq.read_table(ARITH, columns=["problem_id", "problem"])
    answers = pa.array([sim_answer(problem) for problem in problems.column("problem").to_pylist()])
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(problems.append_column("answer", answers), folder / "simulated.parquet")


def score_steps(run_folder: Path) -> str:
    """Let the bundled reward model score the steps, if they are not scored; returns why they could not be, else nothing."""
    if any((run_folder / "rewards").glob("part-*.parquet")):
        return ""
    command = [sys.executable, "-c", "from pipeline.cli.main import main; main()", "grade", str(run_folder), "--prm", str(REWARD_MODEL)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def page(about: str, runs: Mapping[str, RunTable], cards: Mapping[str, Any], unscored: str) -> str:
    """All of papers.md."""
    parts = [about, "# The papers' tables with the bundled models", _about(cards), INTERVALS]
    repeats = [[runs[name] for name in (graph, *(job.name for job in again)) if name in runs] for graph, again in REPEATED.items()]
    noise = noise_of(repeats)
    parts += claims_part([judge(claim, runs, noise) for claim in CLAIMS])
    parts += repeats_part(repeats, noise) if noise else []
    if unscored:
        parts.append(f"Steps were not scored by a reward model: {unscored}")
    for section in SECTIONS:
        present = [runs[job.name] for job in section.jobs if job.name in runs]
        if len(present) == len(section.jobs):
            parts += section_part(section, present)
    return "\n\n".join(parts) + "\n"


def _about(cards: Mapping[str, Any]) -> str:
    card = next(iter(cards.values()))
    host, versions = card["host"], {name: version for each in cards.values() for name, version in each["versions"].items()}
    machine = f"{host['cores']} cores of {host['processor']}, {host['memory_bytes'] / 2**30:.0f} GiB, {host['system']}"
    return (
        f"{machine}; {', '.join(f'{name} {version}' for name, version in versions.items())}. Problems: the bundled test set, seed "
        f"{card['seed']}. Every run was made once: a latency is that of one run on a machine that may have had other work, and its "
        "interval is over problems, not over runs. Batch size 32 where nothing else is said: there a latency holds the waiting for others."
    )


def section_part(section: Section, runs: list[RunTable]) -> Iterator[str]:
    """Title, tables, and what is not the same in all runs."""
    comparison = compare(runs, section.baseline)
    yield f"## {section.title}"
    about = [section.about] if section.about else []
    about += [SIMULATED] if any(run.simulated for run in runs) else []
    about.append(f"{len(runs[0].problem_ids)} problems. Baseline: {comparison.baseline}.")
    yield " ".join(about)
    yield from map(markdown_table, section.shows(comparison))
    known = {"batch_size", "resources"} & {group.by for group in comparison.groups}
    flags = [flag for flag in comparison.flags if not any(flag.what.startswith(name) for name in known)]
    if flags and section.shows is tables:
        yield "\n".join(["Not the same in all runs:", "", *(f"- {flag.run}: {flag.what}" for flag in flags)])


def claims_part(found: list[Found]) -> Iterator[str]:
    """What holds and what does not."""
    yield "## What holds of the papers' claims, and what does not"
    yield (
        "A claim holds where the whole 95 % interval is on its side, does not where it is on the other, and cannot be said where it "
        "lies across or where there is none; it is not testable here where it rests on what the bundled models do not have, which its note "
        "says: the number is then shown for completeness. The interval of a ratio of measured times is wider than in the tables below: by "
        "how much runs of the same work differ among themselves. The bundled models are miniatures for one kind of problem: what does not "
        "hold here says nothing of the papers' own models."
    )
    notes = list(dict.fromkeys(each.claim.remark for each in found if each.claim.remark))
    rows = [
        (
            each.claim.where,
            each.claim.says,
            each.claim.theirs,
            each.said,
            f"**{each.verdict}**" + (f" ({notes.index(each.claim.remark) + 1})" if each.claim.remark else ""),
        )
        for each in found
    ]
    count = Counter(each.verdict for each in found)
    title = f"{len(found)} claims. " + ", ".join(f"{verdict}: {n}" for verdict, n in count.most_common())
    yield markdown_table(Table(title, ("where", "claim", "their number", "here", "verdict"), tuple(rows)))
    yield "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))


def repeats_part(repeats: list[list[RunTable]], noise: float) -> Iterator[str]:
    """How far the clock can be trusted."""
    rows = [(same[0].graph, *(f"{run.latency_s.mean():.3g}" for run in same)) for same in repeats]
    yield "## The same work again"
    yield (
        "Mean seconds a problem, at the start, in the middle and at the end of the series. 95 % of the ratios between two runs of the "
        f"same work lie within a factor of {noise:.2f} (log-normal, one variance for all): by that the intervals of measured "
        "ratios are wider above."
    )
    yield markdown_table(Table("Latency of runs that did the same", ("system", "start", "middle", "end"), tuple(rows)))


@click.command()
@click.option("--problems", default=500, show_default=True, help="Most problems of a run.")
@click.option("--vllm/--no-vllm", default=True, show_default=True, help="With the runs that need vLLM.")
@click.option("--only", multiple=True, metavar="NAME", help="Make these runs alone, and write no page.")
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT / "build/papers", show_default=True, help="Where runs are kept.")
@click.option("--output", type=click.Path(path_type=Path), default=PAGE, show_default=True)
def main(problems: int, vllm: bool, only: tuple[str, ...], folder: Path, output: Path) -> None:
    """Make the runs that are missing and write the page."""
    jobs = in_order(list({job.name: job for section in SECTIONS for job in section.jobs if vllm or not job.needs_vllm}.values()))
    if unknown := set(only) - {job.name for job in jobs}:
        raise click.ClickException(f"--only {min(unknown)}: no such run; there are {', '.join(job.name for job in jobs)}")
    recording = go_on(__file__, folder)
    simulated_problems(folder)
    run_all([job for job in jobs if not only or job.name in only], folder, problems)
    if only:
        return
    unscored = score_steps(folder / "speccot")
    cards = {job.name: msgspec.json.decode((folder / job.name / "run.json").read_bytes()) for job in jobs}
    runs = {table.name: table for table in read_runs([folder / job.name for job in jobs])}
    text = page(origin(recording.measured)[:-1], runs, cards, unscored)
    if output == PAGE:
        recording.write(ROOT / "bench/results/papers.json", {"bench": "papers", "runs": sorted(runs)}, text)
    else:
        output.write_text(text)
    click.echo(f"{output}: {len(runs)} runs", err=True)


if __name__ == "__main__":
    main()
