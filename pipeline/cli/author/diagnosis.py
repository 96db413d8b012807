"""The report of `pipeline doctor`: what this machine has, which engines could start on it, and what would have to change.

Nothing is started and no weights are downloaded; files of models are read, but no model is loaded.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from msgspec import Struct, structs

from pipeline.bundled import find_file
from pipeline.engine import Availability, Examination, Finding, MemoryRow, Tokenizer
from pipeline.engines.model_card import ANEW, local_folder
from pipeline.engines.models import resolve
from pipeline.engines.placement.machines import described
from pipeline.engines.registry import by_backend, cautions, side_by_side, taking_turns
from pipeline.engines.sim.device import devices_of
from pipeline.engines.sim.spec import SimSpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, UsageError
from pipeline.graph.loader import load_engines
from pipeline.graph.needs import unmet_needs
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import broken_plugins, engine_backend, engine_specs
from pipeline.graph.spec import EngineSpec
from pipeline.graph.yaml_file import read_yaml
from pipeline.rewards.spec import load_reward_model
from pipeline.session.prepare import load_plan
from pipeline.stages.build import build_stages, builders_of
from pipeline.store.folder import FILE as RUN_FILE
from pipeline.store.run_file import RunFile
from pipeline.system.machine import Machine, look, system


class BackendState(Availability, frozen=True, kw_only=True):
    """True if engines of one backend can start on this machine at all."""

    backend: str


class RoleState(Struct, frozen=True, kw_only=True):
    """True if the engine of one role could start on this machine."""

    role: str
    backend: str
    model: str
    could_start: bool
    checked: bool
    """False where the backend has nothing that could be checked before a start."""
    findings: tuple[Finding, ...] = ()
    """Reasons against a start, and notes."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """The whole report of `pipeline doctor`."""

    system: str
    machine: Machine
    backends: tuple[BackendState, ...]
    engines_file: str | None = None
    roles: tuple[RoleState, ...] = ()
    memory: tuple[MemoryRow, ...] = ()
    handover: str | None = None
    """How drafted text passes between the roles, where their tokenizers are on this machine."""
    sharing: tuple[str, ...] = ()
    """A notice for each group of roles that share a GPU: how they share it, and what would be better."""
    notices: tuple[str, ...] = ()
    """A sentence for each plug-in that cannot be loaded."""
    engines: dict[str, dict[str, Any]] = {}
    """The engines that were chosen for models which the user named, as an engines file would hold them."""

    @property
    def healthy(self) -> bool:
        """True if every role could start."""
        return all(role.could_start for role in self.roles)


class Roles(NamedTuple):
    """The engines to look at, and what they are for."""

    specs: Mapping[str, EngineSpec]
    plan: Plan | None = None
    """The graph whose stages they are to compute; None: that is not known."""


def diagnose(
    engines: Path | None,
    settings: Sequence[str] = (),
    *,
    bound: Path | Mapping[str, Any] | None = None,
    elsewhere: Machine | None = None,
) -> Diagnosis:
    """Look at this machine, or another one `elsewhere`, and at an engines file, a run folder or a graph and its engines, `bound` in their
    place; raises `UsageError`."""
    specs, plan = Roles({}) if engines is None else load_roles(engines, settings, bound)
    machine = elsewhere or look()
    examined = anyio.run(examine, specs, machine)
    tokenizers, broken = read_tokenizers(specs)
    vocabularies = {role: tokenizer.vocabulary for role, tokenizer in tokenizers.items()}
    unsuited = [] if plan is None else [*unmet(plan, examined), *unsuited_tokenizers(plan, tokenizers)]
    memory = tuple(row for role in specs for row in (examined[role] or Examination()).memory if row.role == role)
    return Diagnosis(
        system=system() if elsewhere is None else described(elsewhere),
        machine=machine,
        backends=tuple(backend_states(machine)) if elsewhere is None else (),
        engines_file=None if engines is None else str(engines),
        roles=tuple(_role_state(role, spec, examined[role], [*broken, *unsuited]) for role, spec in specs.items()),
        memory=memory,
        handover=handover(vocabularies),
        sharing=(*taking_turns(specs, machine), *side_by_side(specs, machine)),
        notices=broken_plugins(),
        engines=dict(bound) if isinstance(bound, Mapping) else {},
    )


def load_roles(path: Path, settings: Sequence[str], bound: Path | Mapping[str, Any] | None = None) -> Roles:
    """The specs by role in a run folder, an engines file, a graph file or a file for `--prm`, given by path or bundled name; a graph may
    be `bound` to other engines. Raises `UsageError`."""
    if (path / RUN_FILE).is_file():
        plan = RunFile.read(path).plan
        return Roles(plan.engines, plan)
    path = find_file(path, "engines file", "graph", "reward model")
    raw = read_yaml(path)
    if "stages" in raw:
        plan = load_plan(path, bound, tuple(settings))
        return Roles(plan.engines, plan)
    if bound is not None:
        raise UsageError(f"--engines {bound}: needs a graph, and {path} is not one; name the graph to run on these engines")
    if "prompt" in raw:
        return Roles({"reward": load_reward_model(path, engine_specs(), settings).reward})
    if not any(isinstance(spec, dict) and "backend" in spec for spec in raw.values()):
        raise GraphError(str(path), "is neither an engines file (role: {backend: ...}) nor a graph file (name, engines, stages)")
    specs = load_engines(path, engine_specs(), settings)
    devices_of({role: spec for role, spec in specs.items() if isinstance(spec, SimSpec)})
    return Roles(specs)


def unmet(plan: Plan, examined: Mapping[str, Examination | None]) -> Iterator[Finding]:
    """The needs of the stages of `plan` that their engines cannot do, as a run would find at its start."""
    cannot: dict[str, Collection[str]] = {role: spec.cannot for role, spec in plan.engines.items()}
    for found in examined.values():
        cannot |= {} if found is None else found.cannot
    for each in unmet_needs(plan, cannot):
        yield Finding(role=each.role, what=each.what, remedy=each.remedy, fatal=each.fatal)


def unsuited_tokenizers(plan: Plan, tokenizers: Mapping[str, Tokenizer]) -> Iterator[Finding]:
    """The flaws of the tokenizers, and their chat templates, for the stages of `plan`."""
    for role, tokenizer in tokenizers.items():
        stages = [node.name for node in plan.stages() if node.spec.role == role]
        try:
            builders = builders_of(plan, {role: tokenizer})
            for name in stages:
                build_stages(plan, builders, f"engine {role!r}", only=name)
        except GraphError as error:
            place = error.where.removeprefix(f"engine {role!r}").lstrip(": ")
            what = f"{place}: {error.what}" if place else error.what
            yield Finding(role=role, what=what, remedy="use another model, or other prompts", fatal=True)


async def examine(specs: Mapping[str, EngineSpec], machine: Machine) -> dict[str, Examination | None]:
    """What the backends find out about their roles, by role; None for backends with nothing to check."""
    examined: dict[str, Examination | None] = {}
    for backend, group in by_backend(specs):
        examined |= dict.fromkeys(group, None if backend.examine is None else await backend.examine(group, machine))
    return examined


def _role_state(role: str, spec: EngineSpec, examined: Examination | None, more: Sequence[Finding]) -> RoleState:
    """`more` is what was found in addition to `examined`; it says nothing new of a role that could not start anyway."""
    found = tuple(finding for finding in (examined or Examination()).findings if finding.role == role)
    if not any(finding.fatal for finding in found):
        found += tuple(finding for finding in more if finding.role == role)
    found += tuple(_caution(role, what) for what in cautions({role: spec}))
    return RoleState(
        role=role,
        backend=spec.backend,
        model=str(getattr(spec, "model", "")),
        could_start=not any(finding.fatal for finding in found),
        checked=examined is not None,
        findings=found,
    )


def _caution(role: str, caution: str) -> Finding:
    what = caution.removeprefix(f"warning: engine {role!r}: ")
    trusts = what.startswith("trust_remote_code")
    remedy = "leave it out unless you have reviewed that code" if trusts else "set it, or leave out api_key_env"
    return Finding(role=role, what=what, remedy=remedy, fatal=False)


def backend_states(machine: Machine) -> Iterator[BackendState]:
    """Which backends are usable here, and what to install for the others."""
    for name in engine_specs():
        available = engine_backend(name).available
        found = available(machine) if available else Availability(usable=True, what="always")
        yield BackendState(backend=name, **structs.asdict(found))


def handover(vocabularies: Mapping[str, str]) -> str | None:
    """A clause on which roles share token ids, given the fingerprints of their vocabularies; None for fewer than two."""
    if len(vocabularies) < 2:
        return None
    groups: dict[str, list[str]] = {}
    for role, vocabulary in vocabularies.items():
        groups.setdefault(vocabulary, []).append(role)
    if len(groups) == 1:
        return f"{' and '.join(vocabularies)} share one vocabulary: steps are passed as token ids"
    named = " | ".join(" and ".join(roles) for roles in groups.values())
    return f"different vocabularies ({named}): steps are passed as text, which each side tokenizes again"


def read_tokenizers(specs: Mapping[str, EngineSpec]) -> tuple[dict[str, Tokenizer], list[Finding]]:
    """By role the tokenizers that are on this machine as a `tokenizer.json`, and what is wrong with those that cannot be loaded."""
    tokenizers: dict[str, Tokenizer] = {}
    broken: list[Finding] = []
    for role, spec in specs.items():
        model = getattr(spec, "tokenizer", None) or getattr(spec, "model", None)
        folder = local_folder(resolve(role, model)) if isinstance(model, str) else None
        if folder is None or not (folder / "tokenizer.json").is_file():
            continue
        try:
            tokenizers[role] = HFTokenizer(str(folder), template_arguments=getattr(spec, "chat_template_kwargs", {}))
        except GraphError as error:
            broken.append(Finding(role=role, what=f"its tokenizer cannot be loaded: {error}", remedy=ANEW, fatal=True))
    return tokenizers, broken
