"""Runs without any run folder, and rewards for one that has none."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from pipeline.analysis.compare import Ends, Run
from pipeline.store.rows import RewardRow
from pipeline.store.run_file import Host
from pipeline.store.store import RunStore
from tests.support.rows import blank
from tests.support.run_files import RUN, source

STAGES = {
    "draft": {"kind": "draft", "engine": "draft", "unit": "thought", "max_tokens": 9},
    "verify": {"kind": "choose", "engine": "target", "unit": "thought"},
    "fallback": {"kind": "generate", "engine": "target", "unit": "thought", "when": "verify.rejected", "max_tokens": 9},
    "answer": {"kind": "answer", "engine": "target"},
}


def run_of(name: str, latency: Sequence[float], *, sums: dict[str, Any] | None = None, **fields: Any) -> Run:
    """A run of one sample a problem, all right, three of four steps by the draft; `fields` are of its options, `run.json` or `Run`."""
    ones = np.ones(len(latency))
    graph, engines = fields.pop("graph", name), fields.pop("engines", {"draft": {"model": "small"}, "target": {}})
    drafts = "draft" in engines
    own = {each: fields.pop(each) for each in list(fields) if each in Run.__struct_fields__}
    options = {each: fields.pop(each) for each in list(fields) if each in ("batch_size", "admission", "seed", "schedule", "replicas")}
    file = structs.replace(
        RUN,
        options=structs.replace(RUN.options, graph=Path(f"{graph}.yaml"), input=(fields.pop("read", "data.parquet"),), **options),
        source=source(STAGES if drafts else None, engines, **fields.pop("more", {})),
        input=structs.replace(RUN.input, sha256=fields.pop("sha256", "same")),
        host=Host(processor="one"),
    )
    given = {"problem": np.arange(len(ones)), "chains": ones, "graded": ones, "right": ones, "latency_s": np.array(latency)}
    given |= {"thought_tokens": 40 * ones, "answer_tokens": 10 * ones, "target_tokens": 20 * ones, "thinking_s": 0.5 * np.array(latency)}
    given |= {"accepted": 3 * ones * drafts, "fallbacks": ones * drafts, "steps": 4 * ones, "drafts": 15 * ones * drafts}
    given |= dict.fromkeys(("drafted", "longest", "unverified", "drafted_reward", "drafted_rewards"), 0 * ones)
    given |= dict.fromkeys(("selected_reward", "selected_rewards"), 0 * ones)
    given |= {each: np.asarray(column, float) for each, column in (sums or {}).items()}
    given |= {"problems": (given["chains"] > 0).astype(float), "tokens": given["thought_tokens"] + given["answer_tokens"]}
    given |= {"verified": given["accepted"] + given["fallbacks"], "by_draft": given["accepted"] + given["unverified"]}
    given["judged"] = given["verified"] + given["unverified"]
    values = {"folders": (), "seeds": (options.get("seed", 0),), "status": "finished", "mean_wall_time_s": 10.0, "ends": Ends(len(ones))}
    return Run(name=name, file=structs.replace(file, **fields), sums=given, **values | own)


def write_rewards(run: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write the table `rewards`, of which the `rows` have the fields that matter."""
    with RunStore(run).rewards() as add:
        add([blank(RewardRow, **row) for row in rows])
