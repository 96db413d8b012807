"""What faults do to a run, and what it costs that they do nothing.

    python -m bench.reliability             every kind, about 20 minutes on two quiet cores; root, for the small file systems

Strikes runs on engines that answer the same twice and on engines that never do, resumes each until it is done, and looks at what
is left (`tools/drills`); compares batch sizes; and writes bench/reliability.md and results/reliability.json.
"""

import random
import shutil
import signal
import statistics
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.figures import ROOT, TRIAL, Results, begin, grid, origin
from bench.runs import say, whole
from pipeline.analysis.figures import wilson
from pipeline.options import RunOptions
from pipeline.run.run import run
from pipeline.store.query import Query

sys.path.insert(0, str(ROOT / "tools"))

from drills import faults as struck
from drills.toll import Toll

LONGEST_S = 0.8
"""A process is struck at most so long after it began, its chains could start, or rows were written."""
DISK_SIZES = [16 << 10, 32 << 10, 64 << 10, *range(128 << 10, (3 << 20) + 1, 128 << 10)]
NOT_COVERED = {
    "loss of power": "a process that dies leaves what the kernel has; that blocks were flushed is tested by what is called, not by a plug",
    "disks that lie or fail": "EIO, silent corruption while writing, network file systems and their locks",
    "GPUs": "engines on a GPU; that a killed vLLM leaves nothing behind is a test (`make test`), and no part of this table",
    "another machine or user": "a folder shared by hosts, clocks that differ, another user's files",
    "memory that runs out": "the kernel's OOM killer looks like SIGKILL here; limits of memory are tests, and no part of this table",
    "a network between": "servers are on the same machine: no packet is lost, delayed or reordered",
    "answers that are wrong but valid": "a server that swaps the answers of two requests cannot be told from one that is right",
}
"""Kinds of faults that no drill injects, and what is known of them."""

ALIKE = """
WITH texts AS (SELECT run, chain_id, hash(list(step_token_ids ORDER BY step_index)) AS text FROM steps GROUP BY run, chain_id),
common AS (SELECT chain_id, count(DISTINCT text) = 1 AS same_text, count(DISTINCT coalesce(answer, '')) = 1 AS same_answer,
                bool_or(counted) FILTER (run = $one) AS "right", bool_or(counted) FILTER (run <> $one) AS right_too
         FROM chains JOIN texts USING (run, chain_id) WHERE finished GROUP BY chain_id HAVING count(DISTINCT run) = 2)
SELECT count(*) AS chains, count(*) FILTER (same_text AND same_answer) AS equal, count(*) FILTER (same_answer) AS equal_answers,
       avg("right"::INT) AS accuracy, avg(right_too::INT) AS other_accuracy
FROM common
"""
"""Of the chains that finished in both of two runs, those that are the same."""


class Alike(Struct, frozen=True):
    """Two runs compared chain by chain."""

    chains: int
    """Chains that finished in both."""
    equal: int
    """Those with the same token ids in every step, and the same answer."""
    equal_answers: int
    accuracy: float
    other_accuracy: float


def strikes(count: int) -> int:
    """The number of strikes of `count` in the whole bench: all, or in a trial a few."""
    return max(1, count // 20) if TRIAL else count


def tolls(folder: Path) -> Iterator[Toll]:
    """The toll of each kind of fault, one row for each kind and kind of engines."""
    luck = random.Random(0)
    for ground_of, kills in ((struck.simulated, 120), (struck.varying, 180)):
        ground, place = ground_of(folder, 150), folder / ground_of.__name__
        for number, count in ((signal.SIGKILL, kills), (signal.SIGTERM, 15)):
            yield struck.killed(ground, place, strikes(count), luck, LONGEST_S, number)
        try:
            yield struck.full(ground_of(folder, 300), place, DISK_SIZES[:: len(DISK_SIZES) // strikes(len(DISK_SIZES))])
        except struck.CannotMount as error:
            say(f"full disk: skipped, a small file system cannot be mounted here: {error}")
    for way in struck.FOR_A_MOMENT:
        yield struck.moody(way, folder / f"moody-{way}", strikes(12), luck)
    yield struck.killed(struck.torch(folder, 120), folder / "torch", strikes(10), luck, 6.0)


def batches(folder: Path, own: Path | None) -> Alike:
    """The same problems at batch size 1 and 32."""
    options = RunOptions(graph=ROOT / "graphs/speccot.yaml", input=(str(struck.ARITH),), limit=4 if TRIAL else 100, engines=own)
    pair = []
    for size in (1, 32):
        output = folder / f"{own.stem if own else 'tiny'}-batch-{size}"
        pair.append(whole(run(msgspec.structs.replace(options, batch_size=size, output=output))).folder)
    with Query(*pair) as db:
        return db.rows(ALIKE, Alike, one=db.names[0])[0]


COLUMNS: tuple[tuple[str, Callable[[Toll], object]], ...] = (
    ("fault", lambda toll: toll.fault),
    ("engines", lambda toll: toll.engines),
    ("faults", lambda toll: f"{toll.faults:,}"),
    ("runs", lambda toll: toll.runs),
    ("chains", lambda toll: f"{toll.chains:,}"),
    ("lost", lambda toll: toll.lost),
    ("doubled", lambda toll: toll.doubled),
    ("torn", lambda toll: toll.torn),
    ("changed", lambda toll: "-" if toll.changed is None else toll.changed),
    ("failed", lambda toll: toll.failed),
    ("tracebacks", lambda toll: toll.tracebacks),
    ("wrong ends", lambda toll: toll.wrong_ends),
    ("resume s", lambda toll: f"{statistics.median(toll.resume_s):.2f}" if toll.resume_s else ""),
)
"""Columns of the table of faults."""


def page_of(results: Results) -> str:
    """The page, from the results."""
    found = msgspec.convert(results["tolls"], list[Toll])
    parts = ["# Faults, and what does not change", f"{origin(results['measured'])[:-1]}."]
    return "\n\n".join([*parts, *faults_part(found), *batches_part(results["batches"])]) + "\n"


def faults_part(tolls: list[Toll]) -> Iterator[str]:
    yield "## Faults"
    varying = sum(toll.faults for toll in tolls if "varying" in toll.engines)
    total = sum(toll.faults for toll in tolls)
    yield f"{total:,} faults, {varying:,} of them on engines that never answer the same twice; {sum(t.runs for t in tolls):,} runs."
    yield (
        "An interrupted run is resumed until it is done. *Lost*: chains that are missing. *Doubled*: rows of a chain, a step or an "
        "answered call that are there twice. *Torn*: chains without some of the steps or calls that they rest on. *Changed*: chains that "
        "say something else than an undisturbed run or, where engines vary, than they had said before; `-`: cannot be told. *Failed*: "
        "chains that ended in an error. *Wrong ends*: commands with another exit code than they should have, or without an error message. "
        "*Resume*: median seconds from the start "
        "of the process until chains could start. Real models may round differently in other batches, which may change a chain."
    )
    yield grid([name for name, _ in COLUMNS], ([str(show(toll)) for _, show in COLUMNS] for toll in tolls))
    yield "## What is not covered"
    yield grid(("fault", "what is known"), NOT_COVERED.items())


def batches_part(found: Results) -> Iterator[str]:
    yield "## Do answers depend on the batch?"
    yield "SpecCoT at temperature 0.6, batch size 1 against 32. Simulated: never, by a property test."
    columns = ("engines", "chains", "equal to the last token", "95 % interval", "same answer", "accuracy")
    yield grid(columns, (_batches_row(name, msgspec.convert(each, Alike)) for name, each in found.items()))


def _batches_row(name: str, found: Alike) -> tuple[str, ...]:
    low, high = wilson(found.equal / found.chains, found.chains)
    counts = (str(found.chains), str(found.equal), f"{low:.1%} to {high:.1%}", str(found.equal_answers))
    return name, *counts, f"{found.accuracy:.1%} and {found.other_accuracy:.1%}"


def main() -> None:
    """Inject the faults, and write the page and the figures."""
    folder = ROOT / "build/reliability"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    recording, done = begin(__file__), list[Toll]()
    for toll in tolls(folder):
        say(f"{toll.fault}, {toll.engines}: {toll.faults}{'' if toll.harmless else ' HARM'}")
        done.append(toll)
    found = {"torch": batches(folder, None)}
    if find_spec("vllm"):
        found["vllm"] = batches(folder, ROOT / "graphs/engines/tiny-vllm.yaml")
    recording.write("reliability", {"bench": "reliability", "tolls": done, "batches": found})


if __name__ == "__main__":
    main()
