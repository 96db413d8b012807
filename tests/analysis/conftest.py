"""Runs without any run folder, and rewards for runs that have none."""

from collections.abc import Callable, Sequence
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
from tests.support.runs import rows

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
    given |= {"fallbacks": ones * drafts, "steps": 4 * ones, "drafts": 15 * ones * drafts}
    given |= {"verified": 4 * ones * drafts, "by_draft": 3 * ones * drafts, "judged": 4 * ones * drafts}
    given |= dict.fromkeys(("drafted", "longest", "unverified", "drafted_reward", "drafted_rewards"), 0 * ones)
    given |= dict.fromkeys(("selected_reward", "selected_rewards"), 0 * ones)
    given |= {each: np.asarray(column, float) for each, column in (sums or {}).items()}
    given |= {"problems": (given["chains"] > 0).astype(float), "tokens": given["thought_tokens"] + given["answer_tokens"]}
    values = {"folders": (), "seeds": (options.get("seed", 0),), "status": "finished", "mean_wall_time_s": 10.0, "ends": Ends(len(ones))}
    return Run(name=name, file=structs.replace(file, **fields), sums=given, **values | own)


def score_drafts(run: Path, reward: Callable[[int], float]) -> None:
    """Give each drafted candidate of a run folder the reward of its place, as `pipeline score` would write it."""
    found = [
        blank(RewardRow, chain_id=step["chain_id"], step_index=step["step_index"], decision=step["decision"], model="prm",
              candidate_index=place, selected=place == step["chosen_candidate"], reward=reward(place))
        for step in rows(run, "steps")
        for place in range(step["num_candidates"])
    ]  # fmt: skip
    if found:
        with RunStore(run).rewards() as add:
            add(found)
