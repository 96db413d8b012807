"""Fits simulated engines to real runs: run folders enter, a `Calibration` with rates, lengths and errors of the fit leaves, and as text the
engines file that `pipeline run --engines` takes.

Devices are taken from `run.json`, the sizes of models from their files; only rates are fitted.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from pipeline.analysis.facts import devices_of, engine_facts
from pipeline.calibration.fit import fit_device
from pipeline.calibration.recorded import read_calls, read_texts
from pipeline.engines.hub import NotOnHub
from pipeline.engines.models import DTYPE_BYTES, read_card, resolve
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec
from pipeline.errors import InputError, UsageError, boundary
from pipeline.files import one_line
from pipeline.graph.files import BUNDLED, written
from pipeline.store.run_file import RunFile

MAX_CALLS = 1500
"""The number of calls of each engine that are fitted by default."""
UNIT_RATES: dict[str, Any] = {"flops_per_s": 1e12, "bytes_per_s": 1e12, "overhead_s": 1e-3}
"""Rates of a device before the fit, which does not depend on them."""


class Calibration(Struct, frozen=True, kw_only=True):
    """Simulated engines that were fitted to one or several runs."""

    runs: tuple[RunFile, ...]
    """The `run.json` of each run."""
    specs: dict[str, SimSpec]
    """The simulated engines by role, on devices with the fitted rates."""
    calls: dict[str, int]
    """Number of calls that were fitted, by role."""


def calibrate(folders: Sequence[Path], max_calls: int = MAX_CALLS) -> Calibration:
    """Fit simulated engines to the runs in `folders`, which had the same engines, by the first `max_calls` calls of each engine.

    Lengths of texts are taken from the first run. Raises `InputError` where a run cannot be read or a model's size is not known, and
    `UsageError` where the engines differ.
    """
    runs = tuple(RunFile.read(folder) for folder in folders)
    _check_same(folders, runs)
    traces = [read_calls(folder, max_calls) for folder in folders]
    roles = [role for role in runs[0].engines if any(role in calls for calls in traces)]
    texts = read_texts(folders[0], runs[0].plan, roles)
    specs = {role: structs.replace(_spec(folders[0], runs[0], role), text=texts[role]) for role in roles}
    for device in dict.fromkeys(spec.device.name for spec in specs.values()):
        sharing = {role: spec for role, spec in specs.items() if spec.device.name == device}
        parts = ({role: calls[role] for role in sharing if role in calls} for calls in traces)
        fitted = fit_device(sharing, [calls for calls in parts if calls])
        specs |= {role: structs.replace(spec, device=fitted) for role, spec in sharing.items()}
    return Calibration(runs=runs, specs=specs, calls={role: sum(len(calls.get(role, ())) for calls in traces) for role in roles})


def engines_file(found: Calibration) -> str:
    """The text of the file, which `pipeline run --engines` takes."""
    first = found.runs[0]
    names = ", ".join(f"{one_line(run.run_id)} (batch size {run.options.batch_size})" for run in found.runs)
    lines = [f"# Fitted by `pipeline calibrate` to {names}, on {first.host.cores} cores of {one_line(first.host.processor)}."]
    lines += [f"# {one_line(line)}" for line in fit_lines(found)]
    for role, spec in found.specs.items():
        stated = {each.name: value for each in structs.fields(spec) if (value := getattr(spec, each.name)) != each.default}
        lines += [f"{role}:", "  backend: sim"]
        lines += [f"  {name}: {written(_rounded(value))}" for name, value in msgspec.to_builtins(stated).items()]
    return "\n".join(lines) + "\n"


def fit_lines(found: Calibration) -> Iterator[str]:
    """A line per device: its data, and how well it was fitted."""
    for device in dict.fromkeys(spec.device for spec in found.specs.values()):
        calls = ", ".join(f"{found.calls[role]:,} calls of {role}" for role, spec in found.specs.items() if spec.device == device)
        yield f"{device.name}: {calls}; a call's time is off by {device.fit_error:.1%} on average (mean |ln|)"


def _rounded(value: Any) -> Any:
    """Numbers to six digits."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items() if each is not None}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _check_same(folders: Sequence[Path], runs: Sequence[RunFile]) -> None:
    for folder, run in zip(folders, runs, strict=True):
        for role, given in run.engines.items():
            if runs[0].engines.get(role, given) != given:
                raise UsageError(f"{folder}: its engine {role!r} differs from {folders[0]}; use runs on the same engines")
        if run.host.cuda_mps != runs[0].host.cuda_mps:
            raise UsageError(f"of {folder} and {folders[0]} one was under CUDA MPS and one not; use runs that shared a GPU alike")


def _spec(folder: Path, run: RunFile, role: str) -> SimSpec:
    """The simulated engine for `role`, with `UNIT_RATES` for the rates to fit."""
    if isinstance(simulated := run.plan.engines[role], SimSpec):
        return structs.replace(simulated, device=structs.replace(simulated.device, **UNIT_RATES), replay=None)
    facts: Mapping[str, Any] = run.engine_facts.get(role, {})
    given: Mapping[str, Any] = {**run.engines[role], **(run.engines[role].get("args") or {}), **facts}
    size, own_length = _size(folder, role, given)
    seqs, length = given.get("max_num_seqs") or given["max_in_flight"], given.get("max_model_len") or own_length or 32768
    sharing: Any = "mps" if run.host.cuda_mps else "time_slices"
    return SimSpec(
        model=str(given["model"]).removeprefix(BUNDLED),
        max_in_flight=given["max_in_flight"],
        device=SimDeviceSpec(name="+".join(devices_of(role, engine_facts(run)[role])), sharing=sharing, **UNIT_RATES),
        kv_cache_tokens=int(given.get("kv_cache_tokens") or 2 * seqs * length),
        max_num_seqs=seqs,
        max_num_batched_tokens=int(given.get("max_num_batched_tokens") or 8192),
        max_model_len=length,
        adapters=tuple(run.engines[role].get("adapters") or ()),
        **size,
    )


def _size(folder: Path, role: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
    """Fields of a `SimSpec` that follow from the model's files, and its context length; raises `InputError` where these are not here."""
    where, model = f"{folder / 'run.json'}, engine {role!r}", given.get("model")
    if not model:
        raise InputError(where, f"its backend `{given['backend']}` names no model; calibrate a run of vllm or torch")
    with boundary(InputError, where, foreign=NotOnHub):
        card = read_card(resolve(role, str(model)))
    if card.weights_bytes is None or card.kv_values is None or card.layers is None or card.quantization is not None:
        what = f"the size of {model!r} is not known; calibrate where its config.json and its weights, not quantized, are"
        raise InputError(where, what)
    packed = DTYPE_BYTES[card.dtype or "bfloat16"]
    value_bytes = DTYPE_BYTES.get(str(given.get("dtype")), packed)
    parameters, quantization = card.weights_bytes // packed, given.get("quantization")
    weights = parameters * value_bytes if quantization is None else card.weights_as(quantization) or 0
    size = {"parameters": float(parameters), "bytes_per_parameter": weights / parameters, "layers": card.layers}
    return size | {"kv_bytes_per_token": float(card.kv_values * value_bytes)}, card.max_model_len
