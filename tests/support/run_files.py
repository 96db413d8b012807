"""A `run.json` for tests that write one by hand."""

import json
from pathlib import Path
from typing import Any

STAGE: dict[str, Any] = {
    "name": "response",
    "spec": {"kind": "generate", "engine": "target", "unit": "response", "max_tokens": 9},
    "rank": 0,
}
BLOCK = {"levels": [[STAGE]], "first_writer": None, "first_steps": 0}
SIM = {
    "backend": "sim",
    "model": "large",
    "device": {"name": "one", "flops_per_s": 1.0, "bytes_per_s": 1.0},
    "parameters": 1.0,
    "kv_bytes_per_token": 1.0,
}
RUN_JSON: dict[str, Any] = {
    "format": 1,
    "run_id": "r",
    "status": "finished",
    "graph_file": "graphs/target.yaml",
    "graph": BLOCK,
    "graph_digest": "0",
    "graph_name": "target",
    "prompts": {},
    "speculate": None,
    "params": {},
    "engines": {"target": SIM},
    "schedule": "pipelined",
    "batch_size": 8,
    "samples": 1,
    "seed": 0,
    "input": {"file": "problems.csv", "sha256": "0", "rows": 1},
    "virtual_time": False,
    "started_unix_ns": 1_700_000_000_000_000_000,
}
"""The least that one may say: a run of the target alone."""


def write_run_json(folder: Path, **fields: Any) -> Path:
    """`RUN_JSON` with other `fields`, in `folder`."""
    (folder / "run.json").write_text(json.dumps(RUN_JSON | fields))
    return folder
