"""A calibration as an engines file with comments: a `Calibration` enters, YAML text leaves. Pure."""

from collections.abc import Iterator
from typing import Any

from msgspec import structs

from pipeline.analysis.resources import replica_count
from pipeline.calibration.calibrate import Calibration
from pipeline.calibration.fit import Fit
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec
from pipeline.text import one_line


def engines_file(found: Calibration) -> str:
    """The text of the file, which `pipeline run --engines` takes."""
    return "\n".join([*_about(found), *(line for role, spec in found.specs.items() for line in _role(role, spec, found))]) + "\n"


def fit_lines(found: Calibration) -> Iterator[str]:
    """A line for each device: what it was fitted to, and how well."""
    for device, fit in found.fits.items():
        roles = [role for role, spec in found.specs.items() if spec.device.name == device]
        calls = ", ".join(f"{found.calls[role]:,} calls of {role}" for role in roles)
        yield (
            f"{device}: {calls}; a call's time is off by {fit.error:.1%} on average "
            f"(mean |ln|); simulated over recorded seconds: {_stages(fit)}"
        )


def _stages(fit: Fit) -> str:
    return ", ".join(f"{role} {stage} {ratio:.2f}" for role, stages in fit.stages.items() for stage, ratio in stages.items())


def _about(found: Calibration) -> Iterator[str]:
    first, host = found.runs[0], found.runs[0].host
    names = ", ".join(f"{one_line(run.run_id)} (batch size {run.batch_size}{_one_of(replica_count(run))})" for run in found.runs)
    yield f"# Simulated engines with rates fitted by `pipeline calibrate` to {names},"
    yield f"# {first.schedule}, on {host.cores} cores of {one_line(host.processor)}."
    yield "# Rates are those that explain the calls' times best, not a maker's; sizes are those of the models' files, lengths and"
    yield "# acceptance those of the run."
    yield from (f"# {one_line(line)}" for line in fit_lines(found))


def _role(role: str, spec: SimSpec, found: Calibration) -> Iterator[str]:
    device, text = spec.device, spec.text
    yield f"{role}:"
    yield "  backend: sim"
    yield f"  model: {_quoted(spec.model)}"
    yield f"  max_in_flight: {spec.max_in_flight}"
    yield (
        f"  device: {{name: {_quoted(device.name)}, flops_per_s: {_number(device.flops_per_s)}, "
        f"bytes_per_s: {_number(device.bytes_per_s)}, overhead_s: {_number(device.overhead_s)}, "
        f"fit_error: {_number(device.fit_error)}{_shared(device)}}}  # fitted"
    )
    for name in ("parameters", "bytes_per_parameter", "kv_bytes_per_token"):
        yield f"  {name}: {_number(getattr(spec, name))}"
    for name in ("kv_cache_tokens", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
        yield f"  {name}: {getattr(spec, name)}"
    if spec.adapters:
        yield f"  adapters: [{', '.join(map(_quoted, spec.adapters))}]"
    fields = [f"{name}: {_number(value)}" for name, value in structs.asdict(text).items() if isinstance(value, int | float)]
    yield f"  text: {{{', '.join(fields[:5])},"
    yield f"         {', '.join(fields[5:])}}}"


def _shared(device: SimDeviceSpec) -> str:
    """How the device is shared, where the run was simulated and that is not the default; it is not fitted."""
    if (device.sharing, device.sharing_efficiency) == ("time_slices", 1.0):
        return ""
    return f", sharing: {device.sharing}, sharing_efficiency: {_number(device.sharing_efficiency)}"


def _number(value: Any) -> str:
    """A number in the form that YAML reads as a number: an exponent needs a decimal point and a sign."""
    if isinstance(value, int):
        return str(value)
    digits, e, exponent = f"{value:.6g}".partition("e")
    return f"{digits if '.' in digits else digits + '.0'}e{exponent}" if e else digits


def _quoted(text: str) -> str:
    return "'" + one_line(text).replace("'", "''") + "'"


def _one_of(replicas: int) -> str:
    """Of which part of a run the calls are."""
    return f", one of {replicas} replicas" if replicas > 1 else ""
