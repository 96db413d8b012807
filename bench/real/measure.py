"""What the papers' systems do with a real pair on vLLM: accuracy, tokens, seconds, and whether the judge tells right steps from wrong ones.

    pipeline prepare gsm8k; pipeline prepare math500
    python -m bench.real.measure --model target=NAME --model draft=NAME [PART...]

Makes the runs of bench/real/study.yaml, which take hours on two cores. Each run is in bench/results/real.json as soon as it has ended, with
commit, date and machine, and is not made again; name parts of the study to make only these. Writes bench/real.md.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from msgspec import structs

from bench.figures import RESULTS, ROOT, TRIAL, Recording, Results, begin, grid, origin, percent, results_of
from bench.runs import say, whole
from pipeline.analysis.compare import read_runs
from pipeline.analysis.curves import TAIL
from pipeline.analysis.figures import Estimate, changes, outcomes
from pipeline.analysis.ledger import read_ledger
from pipeline.analysis.tables import plain
from pipeline.engines.placement import pairs
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.options import RunOptions
from pipeline.run.run import Observer
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile
from pipeline.study.points import Point
from pipeline.study.run import carry_out
from pipeline.study.study_file import read_study

STUDY = Path("bench/real/study.yaml")
COLUMNS = ("system", "right", "over the draft", "over the target", "tokens by the draft", "by the target", "accepted", "unverified")
BASES = {"over the draft": "draft", "over the target": "target on alone"}
"""Whose problems a system's are compared with, one by one."""
SPEED_COLUMNS = ("system", "problems/s", "speed-up", "of the fastest token-level", "steady", "tail")
TIMED_FROM = 4
"""Problems per place of the batch size: with fewer the tail decides, and no speed is shown."""
CALL_COLUMNS = ("system", "stage", "calls", "prompt tokens not cached", "tokens written", "seconds")
JUDGED_COLUMNS = (
    "system",
    "scored",
    "right",
    "wrong",
    "accepted if right",
    "if wrong",
    "AUC, greedy",
    "AUC, expected",
    "AUC, answers",
    "digits",
)
INTRODUCTION = """\
Brackets are 95 % intervals over problems. *Over* the draft and the target: difference in accuracy, paired by problem. Tokens are sampled
ones a problem, discarded ones included. Speed is of one turn, and shown where there are enough problems for the batch size. A speed-up is
of the mean time of a problem, paired by problem: over the target alone, and over the faster of n-gram speculation and the draft inside the
target's engine; these have the cores of both models. Steady: problems/s before the tail. Tail: share of the time in which fewer problems
are left than the batch size. Runs that were not made yet are missing."""
JUDGES = """\
Of the scored steps, those whose written arithmetic is right or wrong (`arithmetic` in bench/real/measure.py); a step without an equation
between numbers is neither. AUC: the probability that a right step has the higher score than a wrong one, by the likeliest digit and by the
mean of all ten; of answers, that a right one has the higher mean over its steps than a wrong one."""
JUDGED = """
SELECT candidate_texts[1] AS text, score_probs AS probs, decision = 'accepted' AS accepted, chain_id, correct
FROM steps JOIN chains USING (chain_id) WHERE verify_kind = 'score'
"""
STAGES = """
SELECT stage, count(*) AS calls, avg(input_tokens - cached_input_tokens) AS new, avg(output_tokens) AS written,
       avg(e2e_latency_s) AS seconds
FROM calls GROUP BY stage ORDER BY min(submit_unix_ns)
"""
SIDES = ("right", "wrong")
_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_EQUATION = re.compile(rf"({_NUMBER}(?: ?[-+*/] ?{_NUMBER})+) ?= ?(-?{_NUMBER})(?! ?[-+*/\d])")
_WRITTEN = ((r"\times", "*"), (r"\cdot", "*"), (r"\div", "/"), ("\u00d7", "*"), ("\u00f7", "/"), ("\u2212", "-"), ("\\$", ""), ("$", ""))
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_UNIT = re.compile(r"\\text\{[^{}]*\}|\\[,;:! ]|\\[()\[\]]")
_PERCENT = re.compile(r"(?<=\d)\\?%")


def arithmetic(text: str) -> bool | None:
    """Whether all equations between numbers that a step writes out are right, to the digits that it gives; None without any."""
    for mark, sign in _WRITTEN:
        text = text.replace(mark, sign)
    text = re.sub(r" +", " ", _PERCENT.sub("/100", _FRACTION.sub(r"\1/\2", _UNIT.sub("", text))))
    found = [_holds(*each.groups()) for each in _EQUATION.finditer(text)]
    return all(found) if found else None


def _holds(left: str, right: str) -> bool:
    """Products and quotients before sums; `right` may be rounded."""
    total, stated = Fraction(0), Fraction(right.replace(",", ""))
    for sign, term in re.findall(r"([-+]?)([^-+]+)", left.replace(",", "").replace(" ", "")):
        first, *rest = re.split(r"([*/])", term)
        value = Fraction(first)
        for mark, other in zip(rest[::2], rest[1::2], strict=True):
            if mark == "/" and not Fraction(other):
                return False
            value = value * Fraction(other) if mark == "*" else value / Fraction(other)
        total += -value if sign == "-" else value
    return abs(total - stated) <= Fraction(1, 2 * 10 ** len(right.partition(".")[2]))


def auc(right: Sequence[float], wrong: Sequence[float]) -> float | None:
    """The probability that a right step has the higher score than a wrong one; ties count half."""
    if not right or not wrong:
        return None
    ours, theirs = np.array(right)[:, None], np.array(wrong)[None]
    return round(float(np.mean((ours > theirs) + (ours == theirs) / 2)), 3)


def auc_interval(value: float, right: int, wrong: int) -> tuple[float, float]:
    """The 95 % interval of an `auc` (Hanley and McNeil, 1982)."""
    both, twice = value / (2 - value), 2 * value**2 / (1 + value)
    spread = value * (1 - value) + (right - 1) * (both - value**2) + (wrong - 1) * (twice - value**2)
    half = 1.96 * (spread / (right * wrong)) ** 0.5
    return max(0.0, value - half), min(1.0, value + half)


def _greedy(step: Mapping[str, Any]) -> int:
    """The digit that the judge found likeliest."""
    return int(np.argmax(step["probs"]))


def _expected(step: Mapping[str, Any]) -> float:
    """The mean digit by probability."""
    return float(np.arange(10) @ step["probs"])


def judged(db: Query) -> dict[str, Any] | None:
    """What the judge's scores say of the steps whose arithmetic can be checked; None of a run without scores."""
    steps = [(arithmetic(each["text"]), each) for each in db.arrow(JUDGED).to_pylist()]
    if not steps:
        return None
    sides = [[each for held, each in steps if held is side] for side in (True, False)]
    chains: dict[bool, dict[str, list[float]]] = {True: {}, False: {}}
    for each in (each for _, each in steps if each["correct"] is not None):
        chains[each["correct"]].setdefault(each["chain_id"], []).append(_expected(each))
    answers = [[float(np.mean(scores)) for scores in of.values()] for of in chains.values()]
    greedy, expected = (auc(*([value(each) for each in side] for side in sides)) for value in (_greedy, _expected))
    accepted = [sum(each["accepted"] for each in side) for side in sides]
    counts = np.bincount([_greedy(each) for _, each in steps], minlength=10)
    return {
        "steps": len(steps), "right": len(sides[0]), "wrong": len(sides[1]), "accepted_right": accepted[0], "accepted_wrong": accepted[1],
        "auc_greedy": greedy, "auc_expected": expected, "auc_answers": auc(*answers),
        "answers": list(map(len, answers)), "digits": counts.tolist(),
    }  # fmt: skip


def measured(point: Point, folder: Path, recording: Recording) -> dict[str, Any]:
    """A run, as the results file has it; lists have an element for each problem."""
    [run] = read_runs([folder])
    with Query(folder) as db:
        ledger, judge, stages = read_ledger(db), judged(db), db.arrow(STAGES).to_pylist()
        [(tail_s, before)] = db.stream(TAIL, batch_size=point.label.batch_size)
    sums, label = run.sums, point.label
    return {
        "system": label.curve,
        "batch_size": label.batch_size,
        "data": label.data,
        "baseline": label.baseline,
        "models": {role: _name(each["model"]) for role, each in run.file.engines.items()},
        "token_level": any(each.get("speculative_config") for each in run.file.engines.values()),
        "wall_s": round(run.mean_wall_time_s, 1),
        "tail_s": round(tail_s, 1),
        "before_tail": before,
        "output": {role: {kind: count for kind, count in each.output.items() if count} for role, each in ledger.engines.items()},
        "stages": {each.pop("stage"): {name: each[name] and round(each[name], 2) for name in each} for each in stages},
        "steps": {name: int(sums[name].sum()) for name in ("steps", "verified", "fallbacks", "unverified")},
        "judge": judge,
        "right": "".join(str(int(each)) for each in sums["right"]),
        "tokens": [int(each) for each in sums["tokens"]],
        "latency_s": [round(float(each), 2) for each in sums["latency_s"]],
        "measured": recording.measured | {"date": time.strftime("%Y-%m-%d", time.gmtime())},
    }


def _name(model: str) -> str:
    """What a model calls itself, where it is a folder that says so."""
    config = Path(model) / "config.json"
    return json.loads(config.read_bytes()).get("_model_name_or_path", model) if config.exists() else model


@click.command(help=__doc__)
@click.argument("parts", nargs=-1)
@click.option("--model", "models", multiple=True, metavar="ROLE=MODEL")
def main(parts: tuple[str, ...], models: tuple[str, ...]) -> None:
    recording = begin(__file__)
    with TemporaryDirectory() as made:
        _measure(recording, Path(made) / "trial" if TRIAL else ROOT / "build/real-runs", parts, pairs(models))


def _measure(recording: Recording, folder: Path, parts: Sequence[str], models: Mapping[str, str]) -> None:
    """Make the runs that the results file lacks."""
    runs: dict[str, Any] = results_of("real")["runs"] if (ROOT / RESULTS / "real.json").exists() else {}
    options = RunOptions(graph=STUDY, input=(), output=folder, resume=folder.exists())
    study = read_study(STUDY, options, models, small=TRIAL)
    missing = {
        heading: tuple(_with_draft(point, models) for point in points if point.folder not in runs and not _on_part_of_the_machine(point))
        for heading, points in study.groups.items()
        if not parts or heading.partition(",")[0] in parts
    }

    def done(number: int, planned: int, point: Point, run: RunFile) -> None:
        say(f"{number}/{planned} {point.folder}: {run.wall_time_s:.0f} s")
        runs[point.folder] = measured(point, folder / "runs" / point.folder, recording)
        recording.write("real", {"bench": "real", "runs": runs})

    whole(carry_out(structs.replace(study, groups={name: points for name, points in missing.items() if points}), Observer(tell=say), done))


def _on_part_of_the_machine(point: Point) -> bool:
    """Whether the target alone would leave the draft's core idle."""
    return point.label.baseline and not point.label.engines and not TRIAL


def _with_draft(point: Point, models: Mapping[str, str]) -> Point:
    """A point where the draft inside the target is the one of `models`."""
    target = point.plan.engines.get("target")
    inner = target.speculative_config if isinstance(target, VllmSpec) else None
    if target is None or not inner or "model" not in inner or "draft" not in models:
        return point
    engines = {"target": structs.replace(target, speculative_config={**inner, "model": models["draft"]})}
    return structs.replace(point, plan=structs.replace(point.plan, engines={**point.plan.engines, **engines}))


def page_of(results: Results) -> str:
    """The page, from the results."""
    runs = list(results["runs"].values())
    origins = dict.fromkeys(origin(run["measured"])[:-1] for run in runs)
    models = dict.fromkeys(f"{role} {name}" for run in runs for role, name in run["models"].items())
    parts = ["# Real models", "\n\n".join(f"{each}." for each in origins), f"Models: {'; '.join(models)}.", INTRODUCTION]
    for data, size in dict.fromkeys((run["data"], run["batch_size"]) for run in runs):
        rows = [run for run in runs if (run["data"], run["batch_size"]) == (data, size)]
        bases = {run["system"]: run for run in [*runs[::-1], *rows] if run["data"] == data and run["system"] in BASES.values()}
        parts += [f"## {data}, batch size {size}", grid(COLUMNS, (_row(run, bases) for run in rows)), *_findings(rows, bases)]
        if all(len(run["right"]) >= TIMED_FROM * size for run in rows):
            alone, token_level = ([run for run in rows if run["baseline"] and run["token_level"] is each] for each in (False, True))
            parts.append(grid(SPEED_COLUMNS, (_speed(run, alone, token_level) for run in rows)))
    judges = [run for run in runs if run["judge"]]
    calls = [(run, name, stage) for run in runs for name, stage in run["stages"].items()]
    parts += ["## Calls, on average", grid(CALL_COLUMNS, (_calls(*each) for each in calls))]
    parts += ["## What the judge's scores are worth", JUDGES, grid(JUDGED_COLUMNS, map(_judge, judges)), _telling(judges)]
    return "\n\n".join(parts) + "\n"


def _row(run: Mapping[str, Any], bases: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What a system did."""
    ours, steps, written = sums_of(run), run["steps"], {role: sum(kinds.values()) for role, kinds in run["output"].items()}
    yield from (run["system"], outcomes(ours["right"], ours["graded"]).shown("percent"))
    for system in BASES.values():
        yield "-" if system not in bases or bases[system] is run else _gain(run, bases[system]).shown("percent")
    yield from (plain(written.get(role, 0) / len(run["right"])) for role in ("draft", "target"))
    yield percent((steps["verified"] - steps["fallbacks"]) / steps["verified"]) if steps["verified"] else "-"
    yield percent(steps["unverified"] / steps["steps"]) if steps["unverified"] else "-"


def _gain(run: Mapping[str, Any], base: Mapping[str, Any]) -> Estimate:
    return changes(sums_of(run), sums_of(base))["accuracy_gain"]


def _findings(rows: Sequence[Mapping[str, Any]], bases: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Which systems are surely better or worse than the draft and the target."""
    for name, system in BASES.items():
        if system not in bases:
            continue
        gains = {run["system"]: _gain(run, bases[system]) for run in rows if run["system"] not in BASES.values()}
        more = [each for each, found in gains.items() if found.low is not None and found.low > 0]
        less = [each for each, found in gains.items() if found.high is not None and found.high < 0]
        base = name.removeprefix("over ")
        yield f"Surely more right than {base} alone: {'; '.join(more) or 'none'}. Surely less right: {'; '.join(less) or 'none'}."


def _speed(run: Mapping[str, Any], *opponents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How fast a system was, with its speed-up over the fastest of each kind of opponents."""
    yield from (run["system"], plain(len(run["right"]) / run["wall_s"]))
    for each in opponents:
        base = min(each, key=lambda other: other["wall_s"], default=run)
        yield "-" if run is base else changes(sums_of(run), sums_of(base))["speed_up"].shown()
    steady_s = run["wall_s"] - run["tail_s"]
    yield plain(run["before_tail"] / steady_s if run["before_tail"] >= run["batch_size"] else None)
    yield percent(run["tail_s"] / run["wall_s"])


def _calls(run: Mapping[str, Any], name: str, stage: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{run['system']}, {run['data']}, batch size {run['batch_size']}", name, f"{stage['calls']:,}")
    yield from (plain(stage[each]) for each in ("new", "written", "seconds"))


def _judge(run: Mapping[str, Any]) -> Iterator[str]:
    judge = run["judge"]
    yield from (f"{run['system']}, {run['data']}, batch size {run['batch_size']}", *(f"{judge[each]:,}" for each in ("steps", *SIDES)))
    yield from (percent(judge[f"accepted_{side}"] / judge[side] if judge[side] else None) for side in SIDES)
    yield from (_auc(run, method) for method in ("greedy", "expected", "answers"))
    yield ", ".join(f"{digit}: {count}" for digit, count in enumerate(judge["digits"]) if count)


def _auc(run: Mapping[str, Any], method: str) -> str:
    value = run["judge"][f"auc_{method}"]
    return "-" if value is None else "{:.2f} [{:.2f}, {:.2f}]".format(value, *auc_interval(value, *_sides(run, method)))


def _sides(run: Mapping[str, Any], method: str) -> tuple[int, int]:
    """How many right and wrong ones an AUC is of."""
    right, wrong = run["judge"]["answers"] if method == "answers" else [run["judge"][side] for side in SIDES]
    return right, wrong


def _telling(judges: Sequence[Mapping[str, Any]]) -> str:
    """How many judges surely tell right from wrong."""
    said, methods = [], {"greedy": "right steps from wrong ones by the likeliest digit", "expected": "by the mean", "answers": "answers"}
    for method, what in methods.items():
        found = [(run["judge"][f"auc_{method}"], _sides(run, method)) for run in judges if run["judge"][f"auc_{method}"] is not None]
        sure = [auc_interval(value, *sides) for value, sides in found]
        right, wrong = sum(low > 0.5 for low, _ in sure), sum(high < 0.5 for _, high in sure)
        said.append(f"{what}: {right} of {len(sure)}, the wrong way round {wrong}")
    return f"Judges that surely tell {'; '.join(said)}."


def sums_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """The sums by problem that intervals are made of."""
    found = {name: np.array(run[name], float) for name in ("tokens", "latency_s")}
    ones = np.ones(len(run["right"]))
    right = np.array([*run["right"]], float)
    return found | {"right": right, "graded": ones, "chains": ones, "thinking_s": found["latency_s"], "problem": np.arange(len(right))}


if __name__ == "__main__":
    main()
