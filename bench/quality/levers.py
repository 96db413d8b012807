"""What does each lever do to accuracy, and what is it worth in speed? A short question, a gate, an early end, a judge by reward.

    python -m bench.quality.levers [--problems 500] [--samples 3]

Accuracy is measured with both bundled pairs on the torch engine: every problem several times from different seeds, each lever against the
same pair's target alone, intervals over problems. Speed is SIMULATED: MATH lengths, QwQ-32B and R1-Distill-Qwen-1.5B on two H100, with and
without token-level speculation inside the target. Runs and sweeps are kept in build/levers and continued when it is started again. Writes
bench/results/levers.json and bench/levers.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import Struct, structs

from bench import over_target
from bench.figures import RESULTS, ROOT, Results, go_on, grid, percent
from bench.frontier import MPS, PATIENT, ROOMY
from bench.runs import ARITH, make, swept, write_problems
from pipeline.analysis.compare.figures import Compared
from pipeline.analysis.compare.runs import read_runs
from pipeline.analysis.points import Point
from pipeline.rewards.score import score_run
from pipeline.session.options import RunOptions
from pipeline.store.query import Query
from pipeline.sweep.plan import SweepOptions

BUILD, ENGINES = ROOT / "build/levers", ROOT / "graphs/engines"
WRONG = 0.5
"""A step is wrong whose reward by the pair's own reward model is below this."""
MACHINES = ("sim-2xh100-mps", "sim-2xh100")
SIZES = {64: (8,), 384: (64, 128)}
"""Batch sizes by the number of problems."""


class Pair(Struct, frozen=True):
    """A bundled pair of models."""

    name: str
    problems: Path

    @property
    def reward_model(self) -> Path:
        return ROOT / f"graphs/rewards/prm-{self.name}.yaml"


PAIRS = (Pair("tiny", ARITH), Pair("wordy", ROOT / "datasets/wordy/test.parquet"))


class Lever(Struct, frozen=True):
    """A graph with settings."""

    name: str
    graph: str
    settings: tuple[str, ...] = ()


BASELINE = Lever("target alone", "target")
LEVERS = (
    BASELINE,
    Lever("target alone, early end at 0.99", "target", ("answer_confident=0.99", "every_tokens=16")),
    Lever("target alone, early end when stable", "target", ("answer_stable=3", "every_tokens=16")),
    Lever("SpecReason", "specreason"),
    Lever("SpecReason, short question", "specreason", ("prompts=short",)),
    Lever("SpecReason, early end at 0.99", "specreason", ("answer_confident=0.99",)),
    Lever("SpecCoT", "speccot"),
    Lever("SpecCoT, short question", "speccot", ("prompts=short",)),
    *(Lever(f"gate at {sure}", "gated", (f"sure={sure}",)) for sure in (-0.16, -0.08, -0.02)),
    Lever("gate at -0.02, short question", "gated", ("sure=-0.02", "prompts=short")),
    Lever("routed by first entropy", "routed"),
    Lever("triggered", "triggered"),
    Lever("judged by reward", "rsd"),
    Lever("judged by reward, 3 candidates", "rsd", ("candidates=3",)),
)
"""Those whose accuracy is measured."""
SURE = "sure=-0.158"
"""Of the simulated gates: a tenth of the wrong steps is surer, whatever the gate's AUC (`simulated_confidence`), and of the right ones 37 %
at an AUC of 0.75, the engines files' assumption, and 70 % at 0.9."""
GOOD = "engines.draft.text.gate_auc=0.9"
SYSTEMS = (
    Lever("SpecReason", "specreason"),
    Lever("short question", "specreason", ("prompts=short",)),
    Lever("gate", "gated", (SURE,)),
    Lever("gate, short question", "gated", (SURE, "prompts=short")),
    Lever("gate of AUC 0.9", "gated", (SURE, GOOD)),
    Lever("gate of AUC 0.9, short question", "gated", (SURE, GOOD, "prompts=short")),
)
"""Those whose speed is simulated, each alone and with EAGLE-3 inside the target."""
AIMS = {"without a gate": ({8: 2.4, 64: 2.4, 128: 2.2}, 1.1), "with a gate": ({8: 2.7, 64: 2.7, 128: 2.6}, 1.3)}
"""Under MPS: times the target alone by batch size, and times the best baseline."""


def accuracy(problems: int, samples: int) -> Iterator[dict[str, Any]]:
    """What each lever does to each pair's answers, against the same pair's target alone."""
    for pair in PAIRS:
        folders = []
        for lever in LEVERS:
            name = f"{pair.name}-{lever.name}".replace(" ", "_").replace(",", "").replace("/", "")
            folders.append(BUILD / name)
            make(_options(pair, lever, folders[-1], problems, samples), name)
        tables = read_runs(folders)
        for lever, folder, table in zip(LEVERS, folders, tables, strict=True):
            figures = Compared(table, tables[0])
            kept = {
                name: structs.asdict(getattr(figures, name)) for name in ("accuracy", "thought_tokens", "draft_share", "unverified_share")
            }
            gain = structs.asdict(figures.over_baseline.accuracy_gain)
            yield {"pair": pair.name, "lever": lever.name, **kept, "gain": gain, "wrong_unverified": wrong_unverified(folder, pair)}


def _options(pair: Pair, lever: Lever, folder: Path, problems: int, samples: int) -> RunOptions:
    return RunOptions(
        graph=ROOT / f"graphs/{lever.graph}.yaml",
        input=pair.problems,
        engines=ENGINES / f"{pair.name}.yaml",
        settings=lever.settings,
        limit=problems,
        samples=samples,
        batch_size=64,
        output=folder,
    )


def wrong_unverified(folder: Path, pair: Pair) -> float | None:
    """Share of all steps that no judge read and that are wrong by the pair's reward model; None where no gate let any pass."""
    with Query(folder) as query:
        if not query.scalar("SELECT count(*) FROM steps WHERE decision = 'unverified'"):
            return None
    if not any((folder / "rewards").glob("*.parquet")):
        score_run(folder, pair.reward_model)
    with Query(folder) as query:
        return float(
            query.scalar(
                """
                SELECT (SELECT count(*) FROM rewards WHERE selected AND decision = 'unverified' AND reward < $wrong) / count(*)
                FROM steps""",
                wrong=WRONG,
            )
        )


def speed() -> Iterator[dict[str, Any]]:
    """Problems a second of each system and of all baselines on each machine, by batch size."""
    for machine in MACHINES:
        for problems, sizes in SIZES.items():
            for variant in ("", "eagle3"):
                for lever in SYSTEMS:
                    name = f"{machine}-{problems}-{variant or 'plain'}-{lever.name}".replace(" ", "_").replace(",", "")
                    points = swept(_sweep(name, machine, lever, variant, problems, sizes), name)
                    unverified = _unverified(BUILD / name / "runs") if lever.graph == "gated" else {}
                    for point in points:
                        yield _row(machine, lever, variant, point) | ({} if point.baseline else unverified)


def _sweep(name: str, machine: str, lever: Lever, variant: str, problems: int, sizes: tuple[int, ...]) -> SweepOptions:
    lengths = tuple(f"engines.{role}.text.preset=math" for role in ("draft", "target"))
    return SweepOptions(
        graphs=(ROOT / f"graphs/{lever.graph}.yaml",),
        input=write_problems(BUILD / f"problems-{problems}.parquet", problems),
        batch_sizes=sizes,
        repeats=1,
        engines=(ENGINES / f"{machine}.yaml",),
        variants=None if lever is SYSTEMS[0] and not variant else (),
        settings=(*ROOMY, *PATIENT, *lengths, *lever.settings, *([f"variant={variant}"] if variant else [])),
        limit=problems,
        output=BUILD / name,
        resume=True,
    )


def _unverified(runs: Path) -> dict[str, float]:
    """The shares of all steps of simulated runs that nothing verified, and of those that are wrong besides: they hold the word `no`."""
    with Query(*runs.glob("gated*")) as query:
        passed = "SELECT count(*) FILTER (decision = 'unverified'"
        share, wrong = (f"{passed}{more}) / count(*) FROM steps" for more in ("", r" AND regexp_matches(step_text, '\bno\b')"))
        return {"unverified": float(query.scalar(share)), "wrong_unverified": float(query.scalar(wrong))}


def _row(machine: str, lever: Lever, variant: str, point: Point) -> dict[str, Any]:
    system = point.variant or BASELINE.name if point.baseline else lever.name
    return {
        "machine": machine,
        "system": system,
        "inside": variant,
        "baseline": point.baseline,
        "batch_size": point.batch_size,
        "problems_per_s": point.problems_per_s,
        "accuracy": point.accuracy,
    }


# The page.


INTRODUCTION = """\
Accuracy is measured: each problem {samples} times by the bundled pairs, toy models on the torch engine. *Against the target* is the gain
over the same pair's target alone in points, with its 95 % interval over problems; what costs or gains accuracy has an interval without 0.
*Unverified* are steps that no judge read, over all steps, *unverified and wrong* those of them whose reward by the pair's reward model is
below {wrong}. Speed is **simulated**: MATH lengths on two H100, as times the target alone. How well a gate tells right steps of a real
draft from wrong ones was measured nowhere: an AUC of 0.75 and one of 0.9 are assumed, with a threshold that lets a tenth of the wrong steps
pass."""


def page_of(results: Results) -> str:
    """The whole page."""
    sections = [
        f"## Accuracy: the pair {pair}\n\n{_accuracies(results, pair)}" for pair in dict.fromkeys(r["pair"] for r in results["accuracy"])
    ]
    sections += [f"## Speed: {_named(name)}, simulated\n\n{_speeds(results, name)}" for name in MACHINES]
    introduction = "\n\n".join([INTRODUCTION.format(samples=results["samples"], wrong=WRONG), *results.get("remarks", ())])
    return over_target.page("What each lever does", results, introduction, verdict(results), sections)


def verdict(results: Results) -> list[str]:
    """What costs accuracy, and what is no faster than the best baseline: what does not pay."""
    said = []
    for pair in dict.fromkeys(row["pair"] for row in results["accuracy"]):
        gains = {row["lever"]: row["gain"] for row in results["accuracy"] if row["pair"] == pair and row["lever"] != BASELINE.name}
        for less, what in ((True, "Costs accuracy"), (False, "Gains accuracy")):
            certain = [
                f"{lever} {_points(gain['value'])}" for lever, gain in gains.items() if (gain["high"] < 0 if less else gain["low"] > 0)
            ]
            said.append(f"{what} of `{pair}`: {'; '.join(certain) or 'nothing'}.")
    for machine in dict.fromkeys(row["machine"] for row in results["speed"]):
        baselines, ours = (
            [row for row in results["speed"] if row["machine"] == machine and row["baseline"] is which] for which in (True, False)
        )
        best = {row["batch_size"]: row["problems_per_s"] for row in sorted(baselines, key=lambda row: row["problems_per_s"])}
        faster = {_label(row): False for row in ours}
        for row in ours:
            faster[_label(row)] |= row["problems_per_s"] > best[row["batch_size"]]
        slow = "; ".join(label for label, once in faster.items() if not once) or "nothing"
        said.append(f"On {_named(machine)}, simulated, these are at no batch size faster than the best baseline: {slow}.")
        if machine == MACHINES[0]:
            alone = {row["batch_size"]: row["problems_per_s"] for row in baselines if row["system"] == BASELINE.name and not row["inside"]}
            said += (
                _of_aims(which, [row for row in ours if row["system"].startswith("gate") is gated], alone, best)
                for gated, which in zip((False, True), AIMS, strict=True)
            )
    return [f"- {each}" for each in said]


def _of_aims(which: str, rows: Sequence[Results], alone: Mapping[int, float], best: Mapping[int, float]) -> str:
    """How near the fastest of these systems at each batch size comes to the aims."""
    aims, over_best = AIMS[which]
    most = {size: max(row["problems_per_s"] for row in rows if row["batch_size"] == size) for size in aims}
    times = ", ".join(f"{most[size] / alone[size]:.2f} at {size} (aim: {aim})" for size, aim in aims.items())
    more = ", ".join(f"{most[size] / best[size]:.2f}" for size in aims)
    name = f"On {_named(MACHINES[0])}, simulated, the fastest system {which}"
    return f"{name} is {times} times as fast as the target alone, and {more} (aim: {over_best}) times as fast as the best baseline."


def _named(machine: str) -> str:
    name = machine.removesuffix(MPS)
    return f"{over_target.MACHINES[name]} {'under CUDA MPS' if machine.endswith(MPS) else 'in time slices'}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _label(row: dict[str, Any]) -> str:
    system = f"{row['system']}, EAGLE-3 inside the target" if row["inside"] else row["system"]
    return f"*{system}*" if row["baseline"] else str(system)


def _accuracies(results: Results, pair: str) -> str:
    columns = ("lever", "accuracy", "against the target", "tokens of thought", "by the draft", "unverified", "unverified and wrong")
    rows = []
    for row in (row for row in results["accuracy"] if row["pair"] == pair):
        gain = row["gain"]
        against = "-" if row["lever"] == BASELINE.name else f"{_points(gain['value'])} ({_points(gain['low'])} to {_points(gain['high'])})"
        shares = (percent(row[name]["value"]) for name in ("draft_share", "unverified_share"))
        tokens = f"{row['thought_tokens']['value']:.0f}"
        rows.append((row["lever"], percent(row["accuracy"]["value"]), against, tokens, *shares, percent(row["wrong_unverified"])))
    return grid(columns, rows)


def _speeds(results: Results, machine: str) -> str:
    here = [row for row in results["speed"] if row["machine"] == machine]
    sizes = sorted({row["batch_size"] for row in here})
    alone = {row["batch_size"]: row["problems_per_s"] for row in here if row["system"] == BASELINE.name and not row["inside"]}
    rows = []
    for label in dict.fromkeys(_label(row) for row in here if not (row["baseline"] and row["inside"])):  # these are in the sweep without
        own = {row["batch_size"]: row for row in here if _label(row) == label}
        shares = (percent(own[sizes[-1]].get(name)) for name in ("unverified", "wrong_unverified"))
        rows.append((label, *(f"{own[size]['problems_per_s'] / alone[size]:.2f}" for size in sizes), *shares))
    columns = (
        "times the target alone; baselines in italics",
        *(f"batch size {size}" for size in sizes),
        "unverified",
        "unverified and wrong",
    )
    return grid(columns, rows)


@click.command()
@click.option("--problems", default=500, show_default=True)
@click.option("--samples", default=3, show_default=True, help="Of each problem.")
def main(problems: int, samples: int) -> None:
    """Run what is missing, and write the page."""
    recording = go_on(__file__, BUILD)
    results = {"bench": "levers", "problems": problems, "samples": samples}
    results |= {"accuracy": list(accuracy(problems, samples)), "speed": list(speed())}
    recording.write(ROOT / RESULTS / "levers.json", results, page_of(results | {"measured": recording.measured}))


if __name__ == "__main__":
    main()
