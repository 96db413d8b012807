"""The throughput of SpecReason over that of its target alone, with models of real shapes and random weights.

Verdicts are asked for and then drawn, so that a share of the steps is accepted that is known before. Times are real, texts are noise:
what n-gram speculation finds in them says nothing about text.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Annotated, Any

import yaml
from msgspec import Meta, structs

from bench.figures import grid
from bench.gpu.decoder import SHAPES, TINY, config
from bench.runs import say, whole
from pipeline.engine import Completion
from pipeline.graph.plugins import register
from pipeline.options import RunOptions
from pipeline.reasoning.chain import Chain, Outcome
from pipeline.run.run import Observer
from pipeline.stages.base import StageKind
from pipeline.stages.score import ScoreSpec, ScoreStage
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile
from pipeline.study.points import Point
from pipeline.study.run import carry_out
from pipeline.study.study_file import read_study

GRAPH, TOKENS = "bench/gpu/drawn.yaml", {"token_budget": 150 if TINY else 300, "answer_tokens": 8}
BATCH_SIZES = (2, 4) if TINY else (16, 64, 1)
"""In the order of what is wanted first."""
ACCEPTANCE = (1.0, 0.8, 0.6)
COLUMNS = ("batch size", "system", "sharing", "problems/s", "of the target alone", "accepted")
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
STEPS = "SELECT count(*) FILTER (decision = 'accepted') / nullif(count(*), 0) FROM steps WHERE verify_kind IS NOT NULL"


class DrawnSpec(ScoreSpec, frozen=True, kw_only=True, tag="drawn"):
    """Rate the candidate, and accept it by chance."""

    acceptance: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0


class DrawnStage(ScoreStage):
    """Asks as `score` does, and draws the verdict with the chain's seed."""

    spec: DrawnSpec

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        outcome = super().apply(chain, completions)
        if outcome.verdict is None:
            return outcome
        accepted = random.Random(chain.seed(self.name)).random() < self.spec.acceptance
        return structs.replace(outcome, verdict=structs.replace(outcome.verdict, chosen=chain.pending_from if accepted else None))


def measure(home: Path, name: str, backend: str, alone: bool, write: Callable[[Sequence[Mapping[str, Any]]], None]) -> None:
    """Run SpecReason at each acceptance and batch size, and with `alone` the target as well; `write` gets all rows after each run."""
    register(StageKind(spec=DrawnSpec, build=DrawnStage))
    rows: list[Mapping[str, Any]] = []
    study = read_study(_study(home, name, backend, alone), RunOptions(graph=Path(name), input=(), output=home / name))

    def done(number: int, planned: int, point: Point, run: RunFile) -> None:
        say(f"{number}/{planned} {point.folder}: {run.wall_time_s:.1f} s")
        rows.append(_row(point, home / name / "runs" / point.folder, run))
        write(rows)

    groups = {
        heading: tuple(point for point in points if point.label.engines or not point.label.baseline)
        for heading, points in study.groups.items()
    }
    whole(carry_out(structs.replace(study, groups=groups), Observer(tell=say), done))


def _row(point: Point, folder: Path, run: RunFile) -> Mapping[str, Any]:
    with Query(folder) as db:
        [(accepted,)] = db.stream(STEPS)
    return {
        "batch_size": point.label.batch_size,
        "system": point.label.curve,
        "baseline": point.label.baseline,
        "problems_per_s": round(run.totals.chains_done / run.wall_time_s, 4),
        "accepted": accepted,
    }


def table(shared: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A Markdown table of the rows by how the engines share the device."""
    rows = [(sharing, row) for sharing, found in shared.items() for row in found]
    alone = {row["batch_size"]: row["problems_per_s"] for _, row in rows if row["system"] == "target on alone"}
    rows.sort(key=lambda each: BATCH_SIZES.index(each[1]["batch_size"]))
    return grid(COLUMNS, (_cells(sharing, row, alone) for sharing, row in rows))


def _cells(sharing: str, row: Mapping[str, Any], alone: Mapping[int, float]) -> Iterator[str]:
    yield from (str(row["batch_size"]), row["system"], "-" if row["baseline"] else sharing.replace("_", " "))
    base = alone.get(row["batch_size"])
    yield from (f"{row['problems_per_s']:.3g}", f"{row['problems_per_s'] / base:.2f}" if base else "-")
    yield "-" if row["accepted"] is None else f"{row['accepted']:.0%}"


def _study(home: Path, name: str, backend: str, alone: bool) -> Path:
    """Write the study with its engines files."""
    models = {role: _shape(home, role) for role in SHAPES}
    places = {
        each: _engines(home, each, backend, models, roles)
        for each, roles in {"pair": tuple(SHAPES), "alone": ("target",), "ngram": ("target",)}.items()
    }
    parts = {str(size): {"batch_sizes": [size], "data": [{"data": "arith", "limit": (1 if TINY else 2) * size}]} for size in BATCH_SIZES}
    opponents = [places[each] for each in ("alone", "ngram") if each == "alone" or backend == "vllm"] if alone else []
    study = {
        "title": "SpecReason with drawn verdicts",
        "engines": [places["pair"]],
        "baseline_engines": opponents,
        "preset": None,
        "set": TOKENS,
        "systems": [{"graph": GRAPH, "set": {"acceptance": each}} for each in ACCEPTANCE],
        "parts": parts,
    }
    (path := home / f"{name}.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    return path


def _engines(home: Path, name: str, backend: str, models: Mapping[str, Path], roles: Sequence[str]) -> str:
    """An engines file of shapes without weights."""
    limits = {"load_format": "dummy", "max_num_seqs": max(BATCH_SIZES), "max_model_len": 2048}
    found: dict[str, dict[str, Any]] = {}
    for role in roles:
        found[role] = {"backend": backend, "model": str(models[role]), "max_in_flight": max(BATCH_SIZES)}
        if backend == "torch":
            found[role] |= limits
            continue
        share = 0.9 if len(roles) == 1 else {"target": 0.7, "draft": 0.15}[role]
        more = {"max_num_batched_tokens": 2048, "dtype": "bfloat16", "gpu_memory_utilization": share}
        found[role] |= {"args": limits | more} | ({"speculative_config": NGRAM} if name == "ngram" else {})
    (path := home / f"{name}.yaml").write_text(yaml.safe_dump(found))
    return str(path)


def _shape(home: Path, role: str) -> Path:
    """A folder with the configuration of a role's shape and the bundled tokenizer; there are no weights."""
    folder = home / f"shape-{role}"
    copytree(Path("pipeline/models") / f"tiny-{role}", folder, ignore=ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    shape = config(role)
    shape.architectures, shape.dtype = ["Qwen2ForCausalLM"], "bfloat16"
    shape.save_pretrained(folder)
    return folder
