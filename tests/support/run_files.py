"""A `run.json` for tests that write one by hand."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pipeline.options import RunOptions
from pipeline.store.folder import FORMAT
from pipeline.store.run_file import RunFile

RESPONSE = {"kind": "generate", "engine": "target", "unit": "response", "max_tokens": 9}
SIM: dict[str, Any] = {
    "backend": "sim",
    "model": "large",
    "device": {"name": "one", "flops_per_s": 1.0, "bytes_per_s": 1.0},
    "parameters": 1.0,
    "kv_bytes_per_token": 1.0,
}


def source(stages: Mapping[str, Any] | None = None, engines: Mapping[str, Any] | None = None, **more: Any) -> str:
    """A graph of these stages, or of one response of each engine, which are simulated ones but for the fields given here; JSON is YAML."""
    engines = {"target": {}} if engines is None else engines
    stages = {f"by-{role}": RESPONSE | {"engine": role} for role in engines} if stages is None else stages
    found = {role: each if each.get("backend", "sim") != "sim" else _simulated(each) for role, each in engines.items()}
    return json.dumps({"name": "target", "engines": found, "stages": stages} | more)


def _simulated(fields: Mapping[str, Any]) -> dict[str, Any]:
    return SIM | fields | {"device": SIM["device"] | fields.get("device", {})}


RUN_JSON: dict[str, Any] = {
    "format": FORMAT,
    "run_id": "r",
    "status": "finished",
    "options": {"graph": "graphs/target.yaml", "input": ["problems.csv"], "batch_size": 8},
    "source": source(),
    "input": {"sha256": "0", "rows": 1, "chains": 1, "samples": 1},
    "virtual_time": False,
    "sessions": [{"started_unix_ns": 1_700_000_000_000_000_000, "status": "finished"}],
}
"""The least that one may say: a run of the target alone."""
RUN = msgspec.convert(RUN_JSON, RunFile, dec_hook=lambda kind, value: kind(value))


def write_run_json(
    folder: Path, *, stages: Mapping[str, Any] | None = None, engines: Mapping[str, Any] | None = None, **fields: Any
) -> Path:
    """`RUN_JSON` with these stages, engines and other `fields` or options, in `folder`."""
    options = RUN_JSON["options"] | {name: fields.pop(name) for name in RunOptions.__struct_fields__ if name != "input" and name in fields}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(RUN_JSON | {"source": source(stages, engines), "options": options} | fields))
    return folder


def edit_engines(folder: Path, **engines: Mapping[str, Any]) -> None:
    """Give roles of the run in `folder` these fields, or with a `backend` other engines."""
    file = folder / "run.json"
    card = json.loads(file.read_text())
    graph = yaml.safe_load(card["source"])
    for role, fields in engines.items():
        graph["engines"][role] = dict(fields) if "backend" in fields else graph["engines"][role] | fields
    file.write_text(json.dumps(card | {"source": json.dumps(graph)}))
