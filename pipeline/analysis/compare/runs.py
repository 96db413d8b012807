"""A run folder as something to compare: what was decided about it, and a few numbers of every problem.

Trace files and `run.json` enter, one frozen `RunTable` leaves; texts are read in batches and only counted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from pipeline.analysis.compare.run_chains import Chains, Tokens, read_chains, read_tokens
from pipeline.analysis.quality.samples import Attempts, attempts
from pipeline.analysis.quality.selection import Choices, read_choices
from pipeline.analysis.quality.step_quality import Quality, read_quality
from pipeline.analysis.quality.step_texts import Texts, read_texts
from pipeline.analysis.resources import Resources, resources
from pipeline.analysis.time.timeline import Array
from pipeline.errors import InputError, UsageError
from pipeline.trace.read import read_card


class _Card(Struct):
    """What of a `run.json` is needed here, and of which type."""

    graph: dict[str, Any]
    graph_file: str
    engines: dict[str, dict[str, Any]]
    params: dict[str, bool | int | float | str]
    schedule: str
    batch_size: int
    samples: int
    seed: int
    virtual_time: bool
    status: str
    input: dict[str, Any]
    wall_time_s: float | None = None
    host: dict[str, Any] = {}
    engine_facts: dict[str, dict[str, Any]] = {}
    engine_statistics: dict[str, dict[str, Any]] = {}


class Speculation(Struct, frozen=True):
    """Tokens that an engine proposed to itself, by its own count."""

    proposed: int
    accepted: int


class RunTable(Struct, frozen=True, kw_only=True):
    """One run. The arrays have one place for each problem, in the order of `problem_ids`."""

    name: str
    graph: str
    engines: dict[str, dict[str, Any]]
    resources: Resources
    host: dict[str, Any]
    params: dict[str, Any]
    schedule: str
    batch_size: int
    samples: int
    seed: int
    simulated: bool
    status: str
    input: dict[str, Any]
    wall_time_s: float
    speculation: dict[str, Speculation]
    """By role; of engines that speculate."""
    problem_ids: tuple[str, ...]
    failed: int
    """Chains that failed or were cancelled; they are in none of the arrays."""
    chains: Array
    """Finished ones."""
    graded: Array
    """Those with a verdict."""
    right: Array
    attempts: Attempts
    latency_s: Array
    """`chain_time_s`: from admission to the end. Like all that follows up to `fallbacks` a mean over the samples."""
    thought_tokens: Array
    answer_tokens: Array
    """Sampled after the thought."""
    output_tokens: dict[str, Array]
    """By role, whatever became of them."""
    steps: Array
    accepted: Array
    fallbacks: Array
    texts: dict[str, Texts]
    """By kind; see `read_texts`."""
    choices: Choices | None
    quality: Quality | None

    @property
    def models(self) -> dict[str, str]:
        """The model of each role, without its folder."""
        names = {role: str(spec.get("model", role)).removeprefix("bundled:") for role, spec in self.engines.items()}
        return {role: name.rstrip("/").rpartition("/")[2] for role, name in names.items()}


def read_runs(folders: Sequence[Path]) -> list[RunTable]:
    """The tables of several run folders; of equal names each gets its parent's before it. Raises `UsageError`."""
    places = [folder.resolve() for folder in folders]
    if repeated := [folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1]:
        raise UsageError(f"{repeated[0]} is given twice; name each run once")
    names = [place.name for place in places]
    full = [name if names.count(name) == 1 else str(Path(*place.parts[-2:])) for name, place in zip(names, places, strict=True)]
    unique = full if len(set(full)) == len(full) else [str(place) for place in places]
    return [structs.replace(read_run(folder), name=name) for folder, name in zip(folders, unique, strict=True)]


def read_run(folder: Path) -> RunTable:
    """The table of the run folder; raises `InputError` when it is none, has no finished chain or its trace cannot be read."""
    read_card(folder, _Card)
    card = read_card(folder, dict[str, Any])
    chains = read_chains(folder)
    if not chains.problem_ids:
        unfinished = f"; {chains.failed} failed or were cancelled" if chains.failed else ""
        raise InputError(str(folder), f"has no finished chain{unfinished}: there is nothing to compare")
    graded = chains.correct >= 0
    return RunTable(
        **_decisions(folder, card),
        problem_ids=chains.problem_ids,
        failed=chains.failed,
        chains=chains.sums(np.ones(len(chains.problem))),
        graded=chains.sums(graded),
        right=chains.sums(chains.correct == 1),
        attempts=attempts(
            folder, chains.problem[graded], chains.numbers["sample_index"][graded], chains.correct[graded], chains.row[graded]
        ),
        latency_s=chains.means("chain_time_s"),
        thought_tokens=chains.means("thought_tokens"),
        **_tokens(read_tokens(folder, card["graph"], chains), chains),
        steps=chains.means("steps"),
        accepted=chains.means("accepted_steps"),
        fallbacks=chains.means("fallback_steps"),
        texts=read_texts(folder, chains.place, len(chains.problem_ids)),
        choices=read_choices(folder, card["graph"], chains.place),
        quality=read_quality(folder, chains.place, len(chains.problem_ids)),
    )


def _decisions(folder: Path, card: dict[str, Any]) -> dict[str, Any]:
    """What `run.json` says of a run."""
    same = ("engines", "params", "schedule", "batch_size", "samples", "seed", "status", "input")
    return {name: card[name] for name in same} | {
        "name": folder.resolve().name,
        "graph": Path(card["graph_file"]).stem,
        "simulated": card["virtual_time"],
        "wall_time_s": float(card.get("wall_time_s") or 0.0),
        "host": card.get("host", {}),
        "resources": resources(card["engines"], card.get("engine_facts", {})),
        "speculation": _speculation(card.get("engine_statistics", {})),
    }


def _speculation(statistics: dict[str, dict[str, Any]]) -> dict[str, Speculation]:
    counts = {role: found["speculation"] for role, found in statistics.items() if found.get("speculation")}
    return {role: Speculation(count["draft_tokens"], count["accepted_tokens"]) for role, count in counts.items()}


def _tokens(tokens: Tokens, chains: Chains) -> dict[str, Any]:
    samples = chains.sums(np.ones(len(chains.problem)))
    return {
        "answer_tokens": tokens.answer / samples,
        "output_tokens": {role: each / samples for role, each in tokens.by_role.items()},
    }
