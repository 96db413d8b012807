"""The engines of a graph where only their models are named: `--model ROLE=VALUE` enters, what an engines file would hold leaves.

A value is a name on the Hugging Face hub, a folder, `bundled:NAME`, or the URL of a server up to `/v1`, with the model's name after a `#`
if the server has several. Nothing is started; a server is asked for its models where none is named, and the hub for sizes.

On GPUs with vLLM the largest model is split over the largest power of two of them that its heads divide, and the others are on the next
one, else on the first. Engines on one GPU get its memory for their weights, and share what is left so that each caches equally many tokens.
Without vLLM, torch has a GPU for each model, or the CPU.
"""

import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio

from pipeline.engines.hub import NotOnHub, is_hub_name
from pipeline.engines.models import ModelCard, check_model, read_card, resolve
from pipeline.engines.openai.client import Server, read_key
from pipeline.engines.openai.engine import listed_models
from pipeline.engines.openai.spec import flaw_in_url
from pipeline.engines.vllm.backend import SHARE, is_cpu_build
from pipeline.errors import UsageError, boundary, did_you_mean, install_command
from pipeline.graph.load import PRESET, Graph, load_graph, outline
from pipeline.graph.plan import Plan, StageNode
from pipeline.system.machine import GIB, Gpu, gib, look, ranges

Roles = dict[str, dict[str, Any]]
"""The fields of engines by role, as an engines file holds them."""
_FORMS = "a Hugging Face name, a folder, bundled:NAME, or http://HOST:PORT/v1#MODEL"
_MOST = 0.92
"""The part of a GPU that engines may have together; the rest is CUDA's."""
_BESIDE_BYTES = 3 * GIB
"""What an engine needs beside weights and cache, for activations, CUDA graphs and sampling: an assumption."""
_MAX_SEQUENCES, _MAX_SEQUENCES_ON_CPU = 1024, 64
_PROBLEM_TOKENS = 1024
"""Room for the problem and the words around it: an assumption."""


def pairs(values: Sequence[str]) -> dict[str, str]:
    """The values of an option `--model ROLE=VALUE` by role; raises `UsageError`."""
    found: dict[str, str] = {}
    for each in values:
        role, equals, value = each.partition("=")
        if not equals or not role or not value:
            raise UsageError(f"--model {each}: expected ROLE=VALUE, such as target=Qwen/QwQ-32B; VALUE is {_FORMS}")
        found[role] = value
    return found


def place(
    graphs: Sequence[Graph],
    models: Mapping[str, object],
    *,
    settings: Sequence[str] = (),
    batch_size: int = 64,
    replicas: int = 1,
) -> tuple[Roles, tuple[str, ...]]:
    """Engines for `graphs` with these `models` by role, on this machine, where they must be able to start `replicas` times, and sentences
    about them. Raises `UsageError`."""
    machine = look()
    gpus = machine.gpus[: len(machine.gpus) // replicas]
    if machine.gpus and not gpus:
        raise UsageError(f"--replicas {replicas}: each needs a GPU, and this machine has {len(machine.gpus)}")
    on_cpu = not gpus or machine.versions.get("torch", "").endswith("+cpu")
    backend = "torch" if not gpus or is_cpu_build(machine) else "vllm"
    chosen = {role: _engine(role, str(model), backend, settings) for role, model in models.items()}
    plans = _plans(graphs, chosen, backend, settings)
    specs: dict[str, Any] = {role: spec for plan in plans for role, spec in plan.engines.items()}
    chosen = {role: fields | {"backend": specs[role].backend} for role, fields in chosen.items() if role in specs}
    with boundary(UsageError, "--model", foreign=NotOnHub):
        cards = {role: read_card(resolve(role, specs[role].model)) for role, fields in chosen.items() if fields["backend"] != "openai"}
    most = _MAX_SEQUENCES if gpus else _MAX_SEQUENCES_ON_CPU
    placed = {role: _limited(role, fields, cards.get(role), plans, batch_size, most) for role, fields in chosen.items()}
    heaviest_first = sorted(cards, key=lambda role: -(cards[role].weights_bytes or 0))
    if on_vllm := {role: specs[role] for role in heaviest_first if specs[role].backend == "vllm"}:
        put_on_gpus(placed, on_vllm, cards, gpus)
    for index, role in enumerate(each for each in heaviest_first if each not in on_vllm):
        placed[role]["device"] = "cpu" if on_cpu else f"cuda:{index % len(gpus)}"
    told = [_line(placed, plans)]
    if gpus and backend == "torch":
        told.append(f"vLLM is not installed, so PyTorch is used, which is slower: {install_command('vllm')}")
    return placed, tuple(told)


def _plans(graphs: Sequence[Graph], chosen: Roles, backend: str, settings: Sequence[str]) -> list[Plan]:
    """The plans of `graphs` on the `chosen` engines; of several graphs each gets the settings that it has a param or stage for. Raises
    `UsageError` for a role that no graph has, or that lacks a model."""
    outlines = [outline(graph) for graph in graphs]
    roles = dict.fromkeys(role for each in outlines for role in each.roles)
    if unknown := [role for role in chosen if role not in roles]:
        what = f"{' and '.join(map(str, graphs))} has no role `{unknown[0]}`"
        raise UsageError(f"--model {unknown[0]}=...: {what}; {did_you_mean(unknown[0], roles)}")
    engines: Roles = {role: chosen.get(role, {"backend": backend, "model": ""}) for role in roles}
    plans = []
    for graph, known in zip(graphs, outlines, strict=True):
        always = ("engines.", PRESET, "") if len(graphs) == 1 else ("engines.", PRESET)
        own = [each for each in settings if each.startswith(always) or known.has(each.partition("=")[0])]
        plans.append(load_graph(graph, engines=engines, settings=own))
    if lacking := dict.fromkeys(role for plan in plans for role in plan.engines if role not in chosen):
        what = f"{plans[0].name} also needs a model for {' and '.join(lacking)}"
        raise UsageError(f"--model: {what}; add {' '.join(f'--model {role}=NAME' for role in lacking)}, or give --engines")
    return plans


def _engine(role: str, value: str, backend: str, settings: Sequence[str]) -> dict[str, Any]:
    """The backend and the model that `value` means."""
    if re.match(r"https?://", value, re.IGNORECASE):
        return _served(role, value, settings)
    if (folder := Path(value).expanduser()).is_dir():
        value = str(folder.absolute())
    elif not (value.startswith("bundled:") or is_hub_name(value) or folder.suffix == ".gguf"):
        what = "there is no such folder" if "://" not in value and "/" in value else "is not a valid model"
        raise UsageError(f"--model {role}={value}: {what}; expected {_FORMS}")
    check_model(f"--model {role}=...", resolve(role, value))
    return {"backend": backend, "model": value}


def _served(role: str, text: str, settings: Sequence[str]) -> dict[str, Any]:
    """The engine of a role that a server plays, which is asked for its models."""
    url, _, model = text.partition("#")
    url, key = url.rstrip("/"), next((each.partition("=")[2] for each in settings if each.startswith(f"engines.{role}.api_key_env=")), None)
    if flaw := flaw_in_url(url) or (None if re.search(r"[^/:]/+[^/]", url) else f"must include the path, up to /v1: {url}/v1"):
        raise UsageError(f"--model {role}={text}: {flaw}")
    where, found = f"--model {role}={text}", {"backend": "openai", "base_url": url, "model": model}
    named = [each for each in _listed(where, url, key) if each.id == model or not (model or each.parent)]
    if not model and len(named) != 1:
        names = f"serves {', '.join(each.id for each in named[:10])}" if named else "does not list its models"
        raise UsageError(f"{where}: it {names}; name one: {role}={url}#{named[0].id if named else 'MODEL'}")
    if named:
        root = named[0].root
        found |= {"model": named[0].id} | ({"tokenizer": root} if root and root != named[0].id and "/" in root else {})
    return found


def _listed(where: str, url: str, api_key_env: str | None) -> list[Any]:
    """The models that a server lists. Also for callers in whose thread an event loop runs."""

    async def ask() -> list[Any]:
        server = Server(where, url, read_key(where, api_key_env))
        try:
            return await listed_models(where, server, api_key_env)
        finally:
            await server.aclose()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(anyio.run, ask).result()


def _limited(
    role: str, fields: dict[str, Any], card: ModelCard | None, plans: Sequence[Plan], batch_size: int, most: int
) -> dict[str, Any]:
    """`fields` with the limits that the stages of `plans` need with this many chains at once; a server has its own (`card` is None)."""
    if card is None:
        return fields | {"max_in_flight": batch_size}
    asking = [(plan, [node for node in plan.stages() if node.spec.role == role]) for plan in plans if role in plan.engines]
    limits = {"max_num_seqs": min(batch_size * max([node.spec.drafted or 1 for _, own in asking for node in own], default=1), most)}
    contexts = [_context(plan, own) for plan, own in asking]
    if None not in contexts:
        limits["max_model_len"] = min(max(each or 0 for each in contexts), card.max_model_len or 1 << 30)
    return fields | {"max_in_flight": batch_size} | ({"args": limits} if fields["backend"] == "vllm" else limits)


def _context(plan: Plan, own: Sequence[StageNode]) -> int | None:
    """Tokens of the longest sequence of the stages `own`: the problem, a whole thought, and the longest that is written or shown then."""
    whole = ("thought", "response")
    thoughts = [
        *(loop.until.token_budget for loop in plan.loops),
        *(_tokens(node) for node in plan.stages() if getattr(node.spec, "unit", None) in whole),
    ]
    last = [0, *(_tokens(node) for node in own if getattr(node.spec, "unit", None) not in whole)]
    if any(node.spec.judges for node in own):
        last.append(sum(node.spec.drafted * (_tokens(node) or 0) for node in plan.stages() if node.spec.drafted))
    if None in (*thoughts, *last) or not thoughts:
        return None
    return _PROBLEM_TOKENS + max(each or 0 for each in thoughts) + max(each or 0 for each in last)


def _tokens(node: StageNode) -> int | None:
    """Most tokens that a stage writes; 0 of one that judges, None where it has no limit."""
    found = 0 if node.spec.judges else getattr(node.spec, "max_tokens", None)
    return found if isinstance(found, int) else None


def put_on_gpus(placed: Roles, specs: Mapping[str, Any], cards: Mapping[str, ModelCard], gpus: Sequence[Gpu]) -> None:
    """Give each engine of vLLM its GPUs and its share of their memory, the heaviest first; raises `UsageError` where they do not fit."""
    largest, *others = specs
    parts = 1 << (len(gpus).bit_length() - 1)
    while (cards[largest].heads or 1) % parts:
        parts //= 2
    places = {largest: tuple(range(parts))} | {role: (parts + n if parts + n < len(gpus) else 0,) for n, role in enumerate(others)}
    places |= {role: spec.gpus for role, spec in specs.items() if spec.devices or "tensor_parallel_size" in spec.args}
    if absent := [role for role, indices in places.items() if max(indices) >= len(gpus)]:
        raise UsageError(f"--model {absent[0]}=...: it is to use GPU {max(places[absent[0]])}, and there are {len(gpus)}")
    found: dict[str, list[float]] = {role: [] for role in specs}
    for index, gpu in enumerate(gpus):
        here = [role for role in specs if index in places[role]]
        needs = {role: (cards[role].weights_as(specs[role].args.get("quantization")) or 0) // len(places[role]) for role in here}
        tokens = {role: 2.0 * (cards[role].kv_values or 0) / len(places[role]) for role in here}
        ratios = tokens if all(tokens.values()) else {role: float(needs[role]) for role in here}
        total = gpu.memory_bytes or 1
        most = min(_MOST, ((gpu.free_bytes or total) - len(here) * GIB // 2) / total)
        left = most * total - sum(needs.values()) - len(here) * _BESIDE_BYTES
        if here and (not all(needs.values()) or left <= sum(tokens[role] * placed[role]["args"].get("max_model_len", 0) for role in here)):
            raise UsageError(_too_large(specs, cards, gpus))
        for role in here:
            found[role].append((needs[role] + _BESIDE_BYTES + left * ratios[role] / sum(ratios.values())) / total)
    for role, shares in found.items():
        args = {"tensor_parallel_size": len(places[role]), SHARE: math.floor(100 * min(shares)) / 100}
        placed[role]["args"] |= args
        placed[role]["devices"] = list(places[role])


def _too_large(specs: Mapping[str, Any], cards: Mapping[str, ModelCard], gpus: Sequence[Gpu]) -> str:
    sizes = {role: cards[role].weights_bytes for role in specs}
    if unknown := [spec.model for role, spec in specs.items() if sizes[role] is None]:
        return f"--model: the size of {unknown[0]} is unknown; download it, or write an engines file and give --engines"
    weights = " and ".join(f"{role} {specs[role].model} ({gib(size or 0)} of weights)" for role, size in sizes.items())
    have = f"{len(gpus)} x {gpus[0].name} of {gib(gpus[0].memory_bytes or 0)}"
    return f"--model: {weights} do not fit on {have} with room for one context each; use more or larger GPUs, or quantized models"


def _line(placed: Roles, plans: Sequence[Plan]) -> str:
    """The engines in one line."""
    said = []
    for role, fields in placed.items():
        where = fields.get("base_url") or fields.get("device")
        if "args" in fields:
            where = f"GPU {ranges(fields['devices'])}, {fields['args'][SHARE]:g} of the memory"
        said.append(f"{role} {fields['model']} ({fields['backend']}, {where})")
    prompts = {plan.params["prompts"] for plan in plans if isinstance(plan.params.get("prompts"), str)}
    return f"engines: {', '.join(said)}" + "".join(f"; prompts: {each}" for each in sorted(map(str, prompts)))
