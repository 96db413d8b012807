"""The model cards of an adapter and of a merged model: what was trained enters, Markdown with the hub's YAML header leaves.

Of the bundled graphs it is looked up which take an adapter by a param.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pipeline.bundled import bundled_files
from pipeline.graph.yaml_file import read_yaml
from pipeline.text import in_markdown, one_line
from pipeline.training.lora.config import FILE, Task, TrainConfig, as_yaml
from pipeline.training.lora.log import Row, StepRow, ValidationRow, validations
from pipeline.training.lora.output import Record

ABOUT: dict[Task, str] = {
    "draft": "It writes thoughts as its target does (thinking behaviour alignment, Speculative Chain-of-Thought 3.3).",
    "select": "It names a right option with one token, or the option that rejects all (draft selection, Speculative Chain-of-Thought 3.4).",
}
SERVING: dict[Task, str] = {
    "draft": "Merge it into its model and name the merged folder as the draft's `model` in an engines file; its data have these prompts:",
    "select": "Name it under `adapters` of the target in an engines file, for the stage that chooses; its data have these prompts:",
}
MOST_ROWS = 12
"""Most rows of the curve in a card; the log has them all."""


def adapter_card(name: str, folder: str, base_model: str, on_hub: bool, config: TrainConfig, record: Record, rows: Sequence[Row]) -> str:
    """The `README.md` of the adapter `name`, trained in `folder` on `base_model`, which is on the hub or not; `rows` are its log."""
    outcome = record.outcome
    assert outcome is not None
    facts = [
        f"Base model: `{base_model}`; weights {_hash(record.weights_sha256)}.",
        f"{outcome.steps:,} steps; {outcome.trained_parameters:,} trained and {outcome.parameters:,} frozen parameters; {outcome.precision}"
        f" on {outcome.device}; seed {config.seed}.",
    ]
    parts = [
        _header(base_model if on_hub else None, "peft", ["lora", "trl", "speculative-decoding", f"train-{record.task}"]),
        f"# {in_markdown(name)}\n\nA LoRA adapter made by `pipeline train {record.task}`. {ABOUT[record.task]}\n",
        "".join(f"- {fact}\n" for fact in facts),
        f"## Serving\n\n{SERVING[record.task]}\n\n```\n{_serving(record, folder, base_model)}\n```\n",
        f"## Data\n\n{_data(record)}",
        f"## Results\n\n{_results(rows)}",
        f"## Config\n\n```yaml\n{as_yaml(config).decode()}```\n\nThe same is in `{FILE}`.\n",
        "## Made by\n\n```\n" + "".join(f"{command}\n" for command in record.commands) + "```\n",
        _versions(record.versions),
    ]
    return "\n".join(parts)


def merged_card(name: str, base_model: str, on_hub: bool, adapter: str, adapter_sha256: str, record: Record | None, command: str) -> str:
    """The `README.md` of a model with the weights of `base_model` and an adapter in one; `record` is that of the adapter's training."""
    made = "" if record is None else f", which `pipeline train {record.task}` made. {ABOUT[record.task]}"
    parts = [
        _header(base_model if on_hub else None, "transformers", ["lora", "merged", "speculative-decoding"], relation="merge"),
        f"# {in_markdown(name)}\n\n`{base_model}` with the weights of the adapter `{in_markdown(adapter)}` in its own{made or '.'}\n",
        f"- Adapter: sha256 `{adapter_sha256}` of its `adapter_model.safetensors`.\n",
        f"- Base model: weights {_hash(None if record is None else record.weights_sha256)}.\n",
        f"```\n{command}\n```\n",
    ]
    return "\n".join(parts)


def _header(base_model: str | None, library: str, tags: Sequence[str], relation: str | None = None) -> str:
    """The metadata that the hub reads at the head of a card."""
    said: dict[str, Any] = {"library_name": library, "pipeline_tag": "text-generation", "tags": list(tags)}
    if base_model is not None:
        said = {"base_model": base_model, "base_model_relation": relation or "adapter", **said}
    return f"---\n{msgspec.yaml.encode(said).decode()}---\n"


def _serving(record: Record, folder: str, base_model: str) -> str:
    """How to serve an adapter: a command for each graph and prompts of its data, with FILE for what is not known."""
    asked = {(each.graph, each.prompts or "FILE") for file in record.files for each in file.asked} or {("scot", "FILE")}
    if record.task == "draft":
        first = f"pipeline train merge {folder} -o {folder}-merged"
        runs = {_run("scot", prompts) for _, prompts in asked}
    else:
        first = f"target: {{backend: torch, model: {base_model!r}, adapters: {{selection: {folder!r}}}}}"
        runs = {_selecting(graph, prompts) for graph, prompts in asked}
    return "\n".join([f"{first}\n", *sorted(runs)])


def _selecting(graph: str, prompts: str) -> str:
    """The command that runs a graph with the adapter; of one that is not bundled or has no param `adapter`, what its file has to say."""
    path = bundled_files("graph").get(graph)
    if path is not None and "adapter" in (read_yaml(path).get("params") or {}):
        return _run(graph, prompts, " --set adapter=selection")
    return f"{_run('FILE', prompts)}  # the graph {one_line(graph)!r}, with `adapter: selection` at the stage that judges"


def _run(graph: str, prompts: str, options: str = "") -> str:
    return f"pipeline run {graph} --engines FILE{options} --set {shlex.quote(f'prompts={prompts}')} --input FILE"


def _data(record: Record) -> str:
    lines = ["| file | rows | train | validation | left out | sha256 |\n|---|---|---|---|---|---|\n"]
    for file in record.files:
        left_out = [f"{count:,} {why}" for count, why in ((file.too_long, "too long"), (file.held_out, "of a test set")) if count]
        counts = f"{file.train:,} | {file.validation:,} | {', '.join(left_out) or '-'}"
        lines.append(f"| {in_markdown(file.name)} | {file.form} | {counts} | `{file.sha256}` |\n")
    runs = sorted({run for file in record.files for run in file.runs})
    return "".join([*lines, "\n", *(f"- {in_markdown(run)}\n" for run in runs)])


def _results(rows: Sequence[Row]) -> str:
    """The validations, evenly thinned out, and where the loss began and ended."""
    steps = [row for row in rows if isinstance(row, StepRow)]
    ends = [f"{row.loss:.4g} at step {row.step:,}" for row in steps[:1] + steps[-1:]]
    said = f"Training loss {', '.join(ends)}.\n" if ends else ""
    found = validations(rows)
    if not found:
        return f"{said}\nNo examples were held back for validation.\n"
    columns = [name for name in ValidationRow.__struct_fields__[2:-1] if any(getattr(row, name) is not None for row in found)]
    head = f"| step | {' | '.join(column.replace('_', ' ') for column in columns)} |\n|{'---|' * (len(columns) + 1)}\n"
    lines = (f"| {row.step:,} | {' | '.join(_figure(getattr(row, column)) for column in columns)} |\n" for row in _thinned(found))
    note = "\nStep 0 is the untouched model. Classes as in SCoT 4.4: 1, some option is right; 2, none is.\n"
    return f"{said}\n{head}{''.join(lines)}{note}"


def _thinned(found: Sequence[ValidationRow]) -> Iterable[ValidationRow]:
    if len(found) <= MOST_ROWS:
        return found
    places = sorted({round(place * (len(found) - 1) / (MOST_ROWS - 1)) for place in range(MOST_ROWS)})
    return [found[place] for place in places]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value == int(value) and value > 1 else f"{value:.4g}"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) + ".\n"


def _hash(sha256: str | None) -> str:
    return "not hashed" if sha256 is None else f"sha256 `{sha256}` (of `sha256sum` over their files, sorted by name)"
