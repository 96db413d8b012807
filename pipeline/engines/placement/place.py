"""The engines that play the roles of a graph where only their models are named: `--model ROLE=VALUE` enters, what an engines file would
hold leaves, with sentences that say what was chosen.

Models are looked up on this machine, else at the hub; servers are asked which model they have; no engine starts.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from pipeline.bundled import bundled_files, find_file
from pipeline.engine import Finding
from pipeline.engines.adapters import read_adapter
from pipeline.engines.cores import ranges
from pipeline.engines.model_card import GUESSED, refuse
from pipeline.engines.models import bundled_name, resolve
from pipeline.engines.placement.choices import Choice, Served, Weights, card_of, read_choices, served_fields
from pipeline.engines.placement.demand import Demands, demands
from pipeline.engines.placement.layout import FEW_CONTEXTS, Planner, room
from pipeline.engines.placement.machines import described
from pipeline.engines.placement.shares import part_of
from pipeline.engines.torch.backend import cuda_build, gpu_of, torch_examination
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.vllm.check import CUDA_INSTALL, findings
from pipeline.engines.vllm.memory import MemoryPlan, build, devices_of, models_of
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import UsageError, did_you_mean
from pipeline.graph.document import Document
from pipeline.graph.loader import Graph, apply_setting, decode_engines, load_preset
from pipeline.graph.plan import settings_of
from pipeline.graph.plugins import engine_specs
from pipeline.graph.prompt_files import PUBLISHED
from pipeline.graph.spec import EngineSpec
from pipeline.graph.yaml_file import read_yaml
from pipeline.system.machine import Machine, gib, look

Roles = dict[str, dict[str, Any]]
"""The fields of engines by role, as an engines file holds them."""
_MAX_TORCH_SEQUENCES = 4096


class Placement(Struct, frozen=True, kw_only=True):
    """The engines of a graph, and what to tell about them."""

    engines: Roles
    sentences: tuple[str, ...] = ()
    """The engines in one line, and then what a person should know about them."""


def place(
    graphs: Sequence[Graph],
    models: Mapping[str, object],
    *,
    settings: Sequence[str] = (),
    engines: Path | Mapping[str, Any] | None = None,
    batch_size: int = 64,
    machine: Machine | None = None,
    replicas: int = 1,
) -> Placement:
    """Engines for `graphs` with these `models` by role, on `machine`, by default this one, where they must be able to start `replicas`
    times.

    With `engines`, a file or what it holds, only the models in it are replaced. Raises `UsageError`.
    """
    if engines is not None:
        return Placement(engines=_replaced(read_choices(models), engines, settings))
    asked = demands(graphs, settings, batch_size, models)
    choices = read_choices(models, {role: asked.plans[0].name for role in asked.by_role if role not in models})
    chosen = {role: choices[role] for role in models if role in asked.by_role}
    placer = _Placer(chosen, asked, settings, machine or look(), replicas)
    if machine is None:
        refuse(placer.findings())
    return Placement(engines=placer.engines(), sentences=(placer.line(), *placer.remarks()))


def _replaced(choices: Mapping[str, Choice], engines: Path | Mapping[str, Any], settings: Sequence[str]) -> Roles:
    """The engines with other models: a model in place of another, and a server in place of a whole engine."""
    file = "engines" if isinstance(engines, Mapping) else str(engines)
    raw = engines if isinstance(engines, Mapping) else read_yaml(find_file(engines, "engines file"))
    roles: Roles = {role: dict(fields) for role, fields in raw.items() if isinstance(fields, Mapping)}
    for role, choice in choices.items():
        if role not in roles:
            raise UsageError(f"--model {role}=...: {file} has no role `{role}`; {did_you_mean(role, roles)}")
        backend = roles[role].get("backend")
        if isinstance(choice, Served):
            roles[role] = served_fields(role, choice, _said({role: {}}, settings)[role])
        elif backend in ("sim", "replay"):
            what = f"{file} uses the backend `{backend}` for it, which loads no model"
            raise UsageError(f"--model {role}=...: {what}; leave out --model, or --engines")
        else:
            roles[role]["model"] = choice.model
    return roles


def _said(roles: Mapping[str, Mapping[str, Any]], settings: Sequence[str]) -> Roles:
    """`roles` with the fields that `settings` set."""
    found = Document(roles, "--model")
    for each in settings:
        if each.startswith("engines.") and each.split(".")[1] in (*roles, "*"):
            apply_setting(each, found, ())
    return found.values


class _Placer:
    """Places engines on a machine: servers anywhere, vLLM's by a memory plan, torch's a GPU each or the CPU."""

    def __init__(self, choices: Mapping[str, Choice], asked: Demands, settings: Sequence[str], whole: Machine, replicas: int) -> None:
        self._asked, self._whole, self._replicas = asked, whole, replicas
        self._machine = machine = part_of(whole, replicas)
        self._uses_vllm = bool(machine.gpus) and build(machine) == "cuda"
        loaded = {role: choice for role, choice in choices.items() if isinstance(choice, Weights)}
        backend = "vllm" if self._uses_vllm else "torch"
        local = _said({role: {"backend": backend, "model": choice.model} for role, choice in loaded.items()}, settings)
        self._served: Roles = {
            role: served_fields(role, choice, _said({role: {}}, settings)[role]) | {"max_in_flight": asked.by_role[role].calls}
            for role, choice in choices.items()
            if isinstance(choice, Served)
        }
        specs = decode_engines(Document(local, "--model"), engine_specs())
        self._cards = {model: card_of(role, resolve(role, model)) for role, spec in specs.items() for model in _models(spec)}
        self._check_sizes(specs)
        self._torch = self._place_torch({role: spec for role, spec in specs.items() if isinstance(spec, TorchSpec)})
        self._vllm = self._place_vllm({role: spec for role, spec in specs.items() if isinstance(spec, VllmSpec)})

    def engines(self) -> Roles:
        """The fields of all engines: those that are not the defaults."""
        specs: dict[str, EngineSpec] = {**(self._vllm.specs if self._vllm else {}), **self._torch}
        return {role: _fields(spec) for role, spec in specs.items()} | self._served

    def findings(self) -> tuple[Finding, ...]:
        """The reasons why engines that are loaded here may not start."""
        cards = {role: self._cards[spec.model] for role, spec in self._torch.items()}
        adapters = {role: {name: read_adapter(path) for name, path in spec.adapters.items()} for role, spec in self._torch.items()}
        return (*(findings(self._vllm) if self._vllm else ()), *torch_examination(self._torch, self._machine, cards, adapters).findings)

    def _check_sizes(self, specs: Mapping[str, EngineSpec]) -> None:
        for role, spec in specs.items():
            card = self._cards[_models(spec)[0]]
            if isinstance(spec, VllmSpec) and card.parameters is None and card.file_bytes is None:
                why, remedy = "it is not on this machine, and its name does not state it", "download it"
                if Path(spec.model).is_dir():
                    why, remedy = "the folder has no config.json that tells it, and no weights", "put them there"
                what = f"the size of {spec.model} is unknown: {why}; {remedy}, or write an engines file and give --engines"
                raise UsageError(f"--model {role}={spec.model}: {what}")

    def _limits(self, spec: Any, role: str, most_sequences: int) -> Any:
        """`spec` with what the stages ask of it, where it says nothing else."""
        demand, default, own = self._asked.by_role[role], type(spec)(model=""), self._cards[spec.model].max_model_len
        context = spec.max_model_len or (demand.context and min(demand.context, own or demand.context))
        calls = demand.calls if spec.max_in_flight == default.max_in_flight else spec.max_in_flight
        sequences = spec.max_num_seqs
        if sequences == default.max_num_seqs:
            sequences = min(demand.sequences, most_sequences)
        return structs.replace(spec, max_model_len=context, max_in_flight=calls, max_num_seqs=sequences)

    def _place_vllm(self, specs: Mapping[str, VllmSpec]) -> MemoryPlan | None:
        if not specs:
            return None
        limited = {role: self._limits(spec, role, 1024) for role, spec in specs.items()}
        adapters = {path: read_adapter(path) for spec in specs.values() for path in spec.adapter_paths}
        planner = Planner(self._machine, self._cards, adapters)
        found = planner.best(limited) if self._machine.gpus else None
        if found is None:
            raise UsageError(self._too_large(limited, planner))
        return found

    def _too_large(self, specs: Mapping[str, VllmSpec], planner: Planner) -> str:
        """The error for models that do not fit on the machine, with what would do."""
        if not self._machine.gpus:
            return f"--model: backend vllm needs a GPU, and this machine has none; use torch, or {CUDA_INSTALL} on a machine with one"
        sizes = {role: self._cards[spec.model].weights_bytes("bfloat16", spec.quantization) or 0 for role, spec in specs.items()}
        weights = " and ".join(f"{role} {_shown(specs[role].model)} ({gib(size)} of weights)" for role, size in sizes.items())
        each, count = self._machine.gpus[0].memory_bytes, planner.enough_gpus(specs)
        have = described(self._machine) + ("" if each is None else f" of {gib(each)}")
        remedy = f"{count} such GPUs would be enough" if count else "larger GPUs are needed"
        heaviest = max(sizes, key=lambda role: sizes[role])
        halved = dict(specs) | {heaviest: structs.replace(specs[heaviest], quantization="fp8")}
        fits = specs[heaviest].quantization is None and planner.best(halved) is not None
        quantized = f", or --set engines.{heaviest}.quantization=fp8, which halves its weights" if fits else ""
        return f"--model: {weights} do not fit on {have} with room for one context each; {remedy}{quantized}"

    def _place_torch(self, specs: Mapping[str, TorchSpec]) -> dict[str, TorchSpec]:
        """The largest model on the first GPU, each other one on its own where there are enough, else on the first too."""
        on_gpus = bool(self._machine.gpus) and cuda_build(self._machine)
        largest_first = sorted(specs, key=lambda role: -(self._cards[specs[role].model].weights_bytes("bfloat16") or 0))
        placed: dict[str, TorchSpec] = {}
        for place, role in enumerate(largest_first):
            spec = specs[role]
            if on_gpus:
                gpu = place if len(specs) <= len(self._machine.gpus) else 0
                spec = structs.replace(spec, device=f"cuda:{gpu}") if gpu and spec.device == "auto" else spec
            placed[role] = self._limits(spec, role, _MAX_TORCH_SEQUENCES if on_gpus else spec.max_num_seqs)
        return placed

    def line(self) -> str:
        """The engines in one line."""
        said = [self._vllm_words(role, spec, self._vllm) for role, spec in self._vllm.specs.items()] if self._vllm else []
        places = {role: gpu_of(spec, self._machine) for role, spec in self._torch.items()}
        names = {role: "CPU" if gpu is None else f"GPU {gpu}" for role, gpu in places.items()}
        said += [f"{role} {_shown(spec.model)} (torch, {names[role]})" for role, spec in self._torch.items()]
        said += [f"{role} {fields['model']} ({fields['backend']}, {fields['base_url']})" for role, fields in self._served.items()]
        prompts = {plan.params["prompts"] for plan in self._asked.plans if isinstance(plan.params.get("prompts"), str)}
        return f"engines: {', '.join(said)}" + "".join(f"; prompts: {each}" for each in sorted(map(str, prompts)))

    def _vllm_words(self, role: str, spec: VllmSpec, plan: MemoryPlan) -> str:
        sequences = min((row.sequences for row in plan.rows_of(role) if row.sequences is not None), default=None)
        has_room = "" if sequences is None else f", room for {sequences:.1f} contexts of {spec.max_model_len:,} tokens"
        return (
            f"{role} {_shown(spec.model)} (vllm, GPU {ranges(devices_of(spec))}, {spec.gpu_memory_utilization:g} of the memory{has_room})"
        )

    def remarks(self) -> list[str]:
        """Advice on the engines."""
        guessed = (card for card in self._cards.values() if card.source == GUESSED)
        said = [f"the size of {card.model} is guessed from its name: {card.parameters:,} parameters" for card in guessed]
        said += self._papers_prompts()
        if self._torch and self._machine.gpus and not self._uses_vllm:
            said.append(f"vLLM is not installed, so PyTorch is used, which is slower: {CUDA_INSTALL}")
        if self._vllm is None:
            return said
        if (chains := room(self._vllm)) < FEW_CONTEXTS:
            largest = next(iter(self._vllm.specs))
            what = f"there is room for {chains:.1f} full contexts at once, so chains will wait for each other"
            said.append(f"{what}; more GPUs or a quantized model (such as --set engines.{largest}.quantization=fp8) would hold more")
        used = {index for spec in self._vllm.specs.values() for index in devices_of(spec)}
        each, there = max(used) + 1, len(self._whole.gpus)
        busy = {each * replica + index for replica in range(self._replicas) for index in used}
        if idle := [index for index in range(there) if index not in busy]:
            more = "; `pipeline run --replicas 2` would place all engines on each half of the GPUs" if self._replicas == 1 else ""
            said.append(f"GPU {ranges(idle)} will be idle{more}")
        return said

    def _papers_prompts(self) -> Iterator[str]:
        """A sentence for each graph whose paper asks problems, or all that it asks, in other words than the prompts that it has."""
        if not self._served and all(bundled_name(model) for model in self._cards):
            return
        for plan in self._asked.plans:
            own = load_preset(plan.name).set.get("prompts") if plan.name in bundled_files("preset") else None
            if own is not None and (prompts := plan.params.get("prompts")) != own:
                said = "its judge is asked as in the paper, problems are not" if prompts == PUBLISHED else "the prompts are this package's"
                yield f"{plan.name}: {said}; for the paper's: --set prompts={own}"


def _models(spec: EngineSpec) -> list[str]:
    return models_of(spec) if isinstance(spec, VllmSpec) else [str(getattr(spec, "model", ""))]


def _fields(spec: EngineSpec) -> dict[str, Any]:
    """The fields of a spec that are not the defaults, as an engines file would hold them."""
    default = settings_of(type(spec)(model=""))  # type: ignore[call-arg]
    own = {name: value for name, value in settings_of(spec).items() if name == "model" or value != default.get(name)}
    return {"backend": spec.backend} | {name: value for name, value in own.items() if name != "backend"}


def _shown(model: str) -> str:
    return bundled_name(model) or model
