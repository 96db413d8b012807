"""The tables of the three papers with both bundled pairs of models, and what holds of their claims.

    python -m bench.quality.papers

Runs all graphs into build/papers/NAME, those that are finished are not run again, and writes bench/papers.md with the functions of
`pipeline compare`. Each run is made once, so a latency is that of one run, whatever else the machine was doing: three of the
systems run again in the middle and at the end of a pair's runs, and what they differ from themselves widens the intervals of other
ratios of times. Runs of a pair are compared with those of the same pair alone, vLLM's with vLLM's, simulated ones with simulated ones.
"""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from bench.figures import RESULTS, ROOT, go_on, origin
from bench.quality.claims import CLAIMS
from bench.quality.judging import PREFIX, Found, PairName, Verdict, judge, noise_of
from bench.runs import ARITH, PROGRAM, make
from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.compare import Comparison, compare
from pipeline.analysis.compare.runs import RunTable, read_runs
from pipeline.analysis.compare.tables import INTERVALS, SIMULATED, by_batch_size, by_param, by_resources, samples, tables
from pipeline.analysis.compare.written import markdown_table
from pipeline.engines.sim.text import sim_answer
from pipeline.session.options import RunOptions

PAGE = ROOT / "bench/papers.md"
ENGINES = ROOT / "graphs/engines"
WHOLE = "top_p=1.0"
"""Setting of the graphs that sample from a nucleus by default, so that all systems sample from the whole distribution."""
DECODE = ("speculative-decoding", "speccot-decode", "specreason-decode")


class Pair(Struct, frozen=True, kw_only=True):
    """A bundled pair of models, what it is run on and how."""

    name: PairName
    about: str
    prefix: str = ""
    """The prefix of the names of its runs."""
    problems: Path
    engines: str | None = None
    """By default those that a graph names."""
    tight: int
    """A token budget below the mean length of the target's thoughts."""
    batch_sizes: tuple[int, ...]

    @property
    def reward_model(self) -> Path:
        """The reward model that scores its steps."""
        return ROOT / f"graphs/rewards/prm-{self.name}.yaml"

    def job(self, name: str, graph: str = "", *settings: str, **fields: Any) -> "Job":
        """One of its runs; by default of the graph of that name."""
        return Job(name=self.prefix + name, graph=graph or name, pair=self, settings=settings, **fields)

    def tuned(self, name: str, graph: str = "", *settings: str, **fields: Any) -> "Job":
        """The same with SCoT's training: the target chooses with the adapter of its pair."""
        return self.job(name, graph, "adapter=selection", WHOLE, *settings, engines=f"{self.name}-scot", **fields)

    def jobs(self, graph: str, param: str, values: Iterable[float], name: str, **fields: Any) -> tuple["Job", ...]:
        """One run for each value of a param."""
        return tuple(self.job(f"{name}-{value}", graph, f"{param}={value}", **fields) for value in values)


TINY = Pair(
    name="tiny",
    about=(
        "Both models reason in the same terse way. The draft is often wrong; the target solves next to every problem and knows right steps "
        "from wrong ones."
    ),
    problems=ARITH,
    tight=32,
    batch_sizes=(1, 8, 32, 128),
)
WORDY = Pair(
    name="wordy",
    about=(
        "A step is said in several ways, all of them right. The target thinks at length and has second thoughts, some of which talk it out "
        "of a right total; the draft is terse, or leaves a product out, and is often wrong. Scores go from 0 to 9 by how much of a step is "
        "right, the target chooses among up to 10 candidates, an answer says the last step again, and the reward model has no weights of "
        "the target."
    ),
    prefix=PREFIX,
    problems=ROOT / "datasets/wordy/test.parquet",
    engines="wordy",
    tight=96,
    batch_sizes=(1, 128),
)
PAIRS = (TINY, WORDY)


class Job(Struct, frozen=True, kw_only=True):
    """One run."""

    name: str
    graph: str
    pair: Pair
    engines: str | None = None
    """By default those of the pair."""
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
        return bool(self.engines and "vllm" in self.engines)

    def options(self, folder: Path, problems: int) -> RunOptions:
        """This run over the first `problems` ones, into `folder`/NAME."""
        engines = self.engines or self.pair.engines
        return RunOptions(
            graph=ROOT / f"graphs/{self.graph}.yaml",
            input=folder / "simulated.parquet" if self.simulated else self.pair.problems,
            engines=ENGINES / f"{engines}.yaml" if engines else None,
            settings=self.settings,
            batch_size=self.batch_size,
            samples=self.samples,
            limit=min(problems, self.most or problems),
            output=folder / self.name,
        )


class Section(Struct, frozen=True):
    """Runs that are compared with each other, and which tables are shown."""

    title: str
    about: str
    jobs: tuple[Job, ...]
    """The first one is the baseline."""
    shows: Callable[[Comparison], Iterable[Table]] = tables


def of_systems(pair: Pair) -> Section:
    """All systems; SCoT also without its training and with a single draft."""
    steps = ("target", "target-steps", "draft", "guided-draft", "speccot", "specreason", "likelihood")
    tuned, single, best = pair.tuned("scot"), pair.tuned("scot-single", "scot", "candidates=1"), pair.tuned("best-of-n")
    about = "Torch engines, a process and a core each. `scot` and `best-of-n` choose with the adapter of SCoT's training."
    return Section("All systems", about, (*map(pair.job, steps), tuned, pair.job("scot-untuned", "scot", WHOLE), single, best))


def of_params(pair: Pair) -> Iterator[Section]:
    """A section for each param that the papers vary."""
    target, speccot, specreason = map(pair.job, ("target", "speccot", "specreason"))
    yield Section("Thresholds of SpecReason", "", (*pair.jobs("specreason", "threshold", (0, 3, 5, 9), "threshold"), specreason), by_param)
    tight = [pair.job(f"{graph}-tight", graph, f"token_budget={pair.tight}") for graph in ("target", "specreason")]
    yield Section("Token budgets", "Tokens of a thought at most.", (*tight, target, specreason), by_param)
    yield Section("First steps by the target", "", (specreason, *pair.jobs("specreason", "first_steps", (1, 2), "first")), by_param)
    unguided = pair.jobs("speccot", "guidance_tokens", (0,), "guidance")
    yield Section("Guidance", "Tokens that the target writes before the first draft.", (*unguided, speccot), by_param)
    yield Section("Candidates", "", pair.jobs("speccot", "candidates", (1, 2, 5, 10), "candidates", most=100), by_param)
    sizes = product(("target", "speccot"), pair.batch_sizes)
    batches = tuple(pair.job(f"{graph}-b{n}", graph, most=64, batch_size=n) for graph, n in sizes)
    yield Section("Batch sizes", "", batches, by_batch_size)


def inside_the_engine(pair: Pair) -> Section:
    """Token by token, as vLLM speculates, with the graphs that pair this with their own steps, and without."""
    settings = tuple(f"engines.{role}.model=bundled:{pair.name}-{role}" for role in ("draft", "target"))
    drafting = f"engines.target.speculative_config.model=bundled:{pair.name}-draft"
    steps = ("target", "speccot", "specreason")
    jobs = (
        *(pair.job(f"vllm-{graph}", graph, *settings, engines="tiny-vllm") for graph in steps),
        *(pair.job(graph, graph, *settings, drafting, engines="tiny-vllm-decode") for graph in DECODE),
    )
    return Section("Speculation inside the engine", "vLLM's CPU build. Its latencies are not to be compared with those above.", jobs)


SAMPLES = TINY.job("draft-x5", "draft", samples=5), TINY.tuned("best-of-n-x5", "best-of-n", samples=5)
LIKELIHOODS = *TINY.jobs("likelihood", "min_logprob", (-2, -1, -0.1), "likelihood"), TINY.job("likelihood")
WITH_TINY = (
    Section("Several samples", "Five attempts at every problem.", SAMPLES, lambda c: [samples(c)]),
    Section("Thresholds of the likelihood", "Nats per token, the mean over a step.", LIKELIHOODS, by_param),
)
"""Sections that the claims do not need."""
SIMULATION = Section(
    "Two and four GPUs, simulated",
    "QwQ-32B and R1-Distill-Qwen-1.5B on two and on four H100, one problem at a time.",
    tuple(
        TINY.job(f"sim-{graph}-{cards}", graph, engines=f"sim-{cards}xh100", most=64, batch_size=1)
        for graph, cards in product(("target", "speccot"), (2, 4))
    ),
    by_resources,
)
SECTIONS = {
    TINY: (of_systems(TINY), inside_the_engine(TINY), *WITH_TINY, *of_params(TINY)),
    WORDY: (of_systems(WORDY), inside_the_engine(WORDY), *of_params(WORDY)),
}


def repeated(pair: Pair) -> dict[str, list[Job]]:
    """The same work at other times, by the name of the first run."""
    whens = ("again", "at-the-end")
    return {pair.prefix + graph: [pair.job(f"{graph}-{when}", graph) for when in whens] for graph in ("target", "speccot", "specreason")}


def series(pair: Pair, vllm: bool = True) -> list[Job]:
    """All runs of a pair in their order, the repeated ones in the middle and at the end; without `vllm` those that do not need it."""
    jobs = list({job.name: job for section in SECTIONS[pair] for job in section.jobs if vllm or not job.needs_vllm}.values())
    again, at_the_end = zip(*repeated(pair).values(), strict=True)
    return [*jobs[: len(jobs) // 2], *again, *jobs[len(jobs) // 2 :], *at_the_end]


def simulated_problems(folder: Path) -> None:
    """The same problems with the answers that simulated models take for right."""
    problems = pq.read_table(TINY.problems, columns=["problem_id", "problem"])
    answers = pa.array([sim_answer(problem) for problem in problems.column("problem").to_pylist()])
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(problems.append_column("answer", answers), folder / "simulated.parquet")


def score_steps(run_folder: Path, reward_model: Path) -> str:
    """Let a bundled reward model score the steps, if they are not scored; returns why they could not be, else nothing."""
    if any((run_folder / "rewards").glob("part-*.parquet")):
        return ""
    command = [*PROGRAM, "score", str(run_folder), "--prm", str(reward_model)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return "" if done.returncode == 0 else f"{run_folder.name}: {done.stderr.strip().splitlines()[-1]}"


def page(about: str, runs: Mapping[str, RunTable], cards: Mapping[str, Any], unscored: Sequence[str] = ()) -> str:
    """The text of papers.md: `about` how it was made, the verdicts on the claims, then the tables of each pair."""
    parts = [about, "# The papers' tables with the bundled models", _about(cards), INTERVALS]
    repeats = {pair: [[runs[job] for job in same if job in runs] for same in _same(pair)] for pair in PAIRS}
    noise = {pair: noise_of(each) for pair, each in repeats.items()}
    claims = [claim for claim in CLAIMS if not claim.simulated]
    parts += claims_part(
        {pair.name: [judge(claim, runs, noise[pair], pair.name) for claim in claims] for pair in PAIRS},
        [judge(claim, runs) for claim in CLAIMS if claim.simulated],
    )
    parts += repeats_part(repeats, noise) if any(noise.values()) else []
    if unscored:
        parts.append("Steps were not scored by a reward model: " + "; ".join(unscored))
    for pair, sections in SECTIONS.items():
        bodies = [part for section in sections for part in section_part(section, runs)]
        parts += [f"## With the pair `{pair.name}`", pair.about, *bodies] if bodies else []
    parts += ["## Without either pair", *section_part(SIMULATION, runs)]
    return "\n\n".join(parts) + "\n"


def _same(pair: Pair) -> list[list[str]]:
    """Names of the runs that did the same work."""
    return [[name, *(job.name for job in again)] for name, again in repeated(pair).items()]


def _about(cards: Mapping[str, Any]) -> str:
    card = next(iter(cards.values()))
    host, versions = card["host"], {name: version for each in cards.values() for name, version in each["versions"].items()}
    machine = f"{host['cores']} cores of {host['processor']}, {host['memory_bytes'] / 2**30:.0f} GiB, {host['system']}"
    return (
        f"{machine}; {', '.join(f'{name} {version}' for name, version in versions.items())}. Problems: the test set of each "
        f"pair, seed {card['seed']}. Every run was made once: a latency is that of one run on a machine that may have had other work, and "
        "its interval is over problems, not over runs. Batch size 32 where nothing else is said: there a latency holds the waiting for "
        "others."
    )


def section_part(section: Section, runs: Mapping[str, RunTable]) -> Iterator[str]:
    """Title, tables, and what is not the same in all runs; nothing where a run is missing."""
    present = [runs[job.name] for job in section.jobs if job.name in runs]
    if len(present) < len(section.jobs):
        return
    comparison = compare(present, section.jobs[0].name)
    yield f"### {section.title}"
    about = [section.about] if section.about else []
    about += [SIMULATED] if any(run.simulated for run in present) else []
    about.append(f"{len(present[0].problem_ids)} problems. Baseline: {comparison.baseline}.")
    yield " ".join(about)
    yield from map(markdown_table, section.shows(comparison))
    known = {"batch_size", "resources"} & {group.by for group in comparison.groups}
    flags = [flag for flag in comparison.flags if not any(flag.what.startswith(name) for name in known)]
    if flags and section.shows is tables:
        yield "\n".join(["Not the same in all runs:", "", *(f"- {flag.run}: {flag.what}" for flag in flags)])


VERDICTS = (
    "A claim *holds* where the whole 95 % interval is on its side, *does not hold* where the whole interval is on the other, and *cannot "
    "be said* where it includes the bound or there is no interval. *Not testable here* is a claim that relies on a property that the pair "
    "`tiny` lacks, as its note says; its number with `tiny` is shown for completeness, and the pair `wordy`, trained to have these "
    "properties, tests it. A claim that holds for `wordy` shows that this implementation reproduces the effect when the models have the "
    "property the claim relies on. It says nothing about other models: both pairs are toy models for one kind of problem each. The "
    "interval of a ratio of measured times is wider than in the tables below, by how much runs of the same work with the same pair "
    "differ. What SCoT's two trainings bring, table 2 included, is in [training.md](training.md)."
)


def claims_part(found: Mapping[str, Sequence[Found]], simulated: Sequence[Found]) -> Iterator[str]:
    """The verdicts: by the name of the pair, all in the same order, and those on what is simulated."""
    yield "## What holds of the papers' claims, and what does not"
    yield VERDICTS
    every = {**found, "simulated": simulated}
    remarks = [each.remark for row in (*zip(*found.values(), strict=True), simulated) for each in row]
    notes = list(dict.fromkeys(filter(None, remarks)))
    yield markdown_table(_counts(every))
    yield markdown_table(_verdicts("Claims measured with both pairs", found, notes))
    yield markdown_table(_verdicts("Claims about accelerators, with neither pair", {"simulated": simulated}, notes))
    yield "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))


def _counts(found: Mapping[str, Sequence[Found]]) -> Table:
    counts = {name: Counter(each.verdict for each in judged) for name, judged in found.items()}
    rows = [(verdict, *(str(count[verdict]) for count in counts.values())) for verdict in get_args(Verdict)]
    rows = [row for row in rows if set(row[1:]) != {"0"}]
    return Table("Claims by verdict", ("verdict", *counts), (*rows, ("all", *(str(count.total()) for count in counts.values()))))


def _verdicts(title: str, found: Mapping[str, Sequence[Found]], notes: Sequence[str]) -> Table:
    """A row for each claim: our number and the verdict of each column of `found`, with the number of its note."""
    rows = []
    for judged in zip(*found.values(), strict=True):
        claim = judged[0].claim
        cells = [f"{each.said}, **{each.verdict}**" + (f" ({notes.index(each.remark) + 1})" if each.remark else "") for each in judged]
        rows.append((claim.where, claim.says, claim.theirs, *(cell.removeprefix("-, ") for cell in cells)))
    return Table(title, ("where", "claim", "their number", *found), tuple(rows))


def repeats_part(repeats: Mapping[Pair, Sequence[Sequence[RunTable]]], noise: Mapping[Pair, float | None]) -> Iterator[str]:
    """The differences between runs of the same work."""
    measured = {pair: [same for same in repeats[pair] if len(same) == 3] for pair in repeats if noise[pair]}
    rows = [(same[0].name, *(f"{run.latency_s.mean():.3g}" for run in same)) for each in measured.values() for same in each]
    factors = " and ".join(f"{noise[pair]:.2f} (`{pair.name}`)" for pair in measured)
    yield "## The same work again"
    yield (
        "Mean seconds a problem, at the start, in the middle and at the end of a pair's runs. 95 % of the ratios between two runs of the "
        f"same work lie within a factor of {factors}, log-normal with one variance for all systems: by that the intervals of measured "
        "ratios are wider above."
    )
    yield markdown_table(Table("Latency of runs that did the same", ("run", "start", "middle", "end"), tuple(rows)))


@click.command()
@click.option("--problems", default=500, show_default=True, help="Most problems of a run.")
@click.option(
    "--pair", "names", multiple=True, type=click.Choice(get_args(PairName)), help="Make the runs of this pair alone, and write no page."
)
@click.option("--vllm/--no-vllm", default=True, show_default=True, help="With the runs that need vLLM.")
@click.option("--only", multiple=True, metavar="NAME", help="Make these runs alone, and write no page.")
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT / "build/papers", show_default=True, help="Where runs are kept.")
@click.option("--output", type=click.Path(path_type=Path), default=PAGE, show_default=True)
def main(problems: int, names: tuple[str, ...], vllm: bool, only: tuple[str, ...], folder: Path, output: Path) -> None:
    """Make the runs that are missing and write the page."""
    pairs = [pair for pair in PAIRS if not names or pair.name in names]
    jobs = [*SIMULATION.jobs, *(job for pair in pairs for job in series(pair, vllm))]
    if unknown := set(only) - {job.name for job in jobs}:
        raise click.ClickException(f"--only {min(unknown)}: no such run; there are {', '.join(job.name for job in jobs)}")
    recording = go_on(__file__, folder)
    simulated_problems(folder)
    for job in jobs:
        if not only or job.name in only:
            make(job.options(folder, problems), job.name)
    if only or names:
        return
    scored = [(pair, f"{pair.prefix}{graph}") for pair in PAIRS for graph in ("speccot", "specreason")]
    unscored = [flaw for pair, name in scored if (flaw := score_steps(folder / name, pair.reward_model))]
    cards = {job.name: msgspec.json.decode((folder / job.name / "run.json").read_bytes()) for job in jobs}
    runs = {table.name: table for table in read_runs([folder / job.name for job in jobs])}
    text = page(origin(recording.measured)[:-1], runs, cards, unscored)
    if output == PAGE:
        recording.write(ROOT / RESULTS / "papers.json", {"bench": "papers", "runs": sorted(runs)}, text)
    else:
        output.write_text(text)
    click.echo(f"{output}: {len(runs)} runs", err=True)


if __name__ == "__main__":
    main()
