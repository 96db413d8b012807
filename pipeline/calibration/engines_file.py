"""A calibration as an engines file with comments: a `Calibration` enters, YAML text leaves. Pure."""

from collections.abc import Iterator
from typing import Any

from pipeline.analysis.resources import replica_count
from pipeline.calibration.calibrate import Calibration
from pipeline.engines.sim.spec import SimSpec
from pipeline.graph.plan import settings_of
from pipeline.graph.yaml_file import engines_text
from pipeline.text import one_line

FIELDS = (
    *("model", "max_in_flight", "device", "parameters", "bytes_per_parameter", "kv_bytes_per_token", "kv_cache_tokens"),
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "adapters", "text"),
)
"""The fields of an engine that the file has."""


def engines_file(found: Calibration) -> str:
    """The text of the file, which `pipeline run --engines` takes."""
    return engines_text({role: {"backend": "sim", **_fields(spec)} for role, spec in found.specs.items()}, list(_about(found)))


def fit_lines(found: Calibration) -> Iterator[str]:
    """A line for each device: what it was fitted to, and how well."""
    for device, fit in found.fits.items():
        roles = [role for role, spec in found.specs.items() if spec.device.name == device]
        calls = ", ".join(f"{found.calls[role]:,} calls of {role}" for role in roles)
        ratios = ", ".join(f"{role} {stage} {ratio:.2f}" for role, stages in fit.stages.items() for stage, ratio in stages.items())
        error = f"a call's time is off by {fit.error:.1%} on average (mean |ln|)"
        yield f"{device}: {calls}; {error}; simulated over recorded seconds: {ratios}"


def _about(found: Calibration) -> Iterator[str]:
    first, host = found.runs[0], found.runs[0].host
    parts = (f", one of {count} replicas" if (count := replica_count(run)) > 1 else "" for run in found.runs)
    names = ", ".join(f"{one_line(run.run_id)} (batch size {run.batch_size}{part})" for run, part in zip(found.runs, parts, strict=True))
    on = f"{first.schedule}, on {host.cores} cores of {one_line(host.processor)}"
    yield f"Simulated engines with rates fitted by `pipeline calibrate` to {names}, {on}."
    yield "The rates of a device are those that explain the calls' times best, not a maker's; sizes are those of the models' files, lengths"
    yield "and acceptance those of the run."
    yield from map(one_line, fit_lines(found))


def _fields(spec: SimSpec) -> dict[str, Any]:
    """The fields of an engine, numbers to six digits."""
    settings = {name: value for name, value in settings_of(spec).items() if name in FIELDS and value not in (None, ())}
    return {name: _rounded(settings[name]) for name in FIELDS if name in settings}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items() if each is not None}
    return float(f"{value:.6g}") if isinstance(value, float) else value
