"""What a run computed on, whether models gave its answers, and how far simulated times are from measured ones: facts that engines stated
enter, `EngineFacts`, `Resources` and sentences leave. Pure.

Engines state them as `pipeline.engine.Engine.facts` says.
"""

import math
from collections.abc import Collection, Iterable

import msgspec
from msgspec import Struct

from pipeline.analysis.tables import plain_percent
from pipeline.errors import InputError, boundary
from pipeline.store.run_file import RunFile

MEDIAN_ERROR = 0.11
"""Median error of the wall times that fitted engines predict of runs that they were not fitted to, with the recorded text.
bench/calibration.py measures it and writes it here; it is `median_error` of bench/results/calibration.json."""
OWN_TEXT_ERROR: float | None = None
"""The same where the fitted engines write text of their own: `own_text_error`. None: not measured since that text is as it is."""
TOKEN_LEVEL_ERROR = 0.18
"""Mean |ln| of simulated over printed speed-ups by token-level speculation, of sources that the fit has not seen: `token_level_error`
there."""


class EngineFacts(Struct, frozen=True, kw_only=True):
    """Those of an engine's facts (`Engine.facts`) that analyses use."""

    answers: str = "model"
    """What gives the engine's answers: `model`, `simulated` or `recorded`."""
    devices: tuple[str, ...] = ()
    """Names of the devices that it computes on; empty where they are not known: then it counts as a separate device."""
    device_model: str | None = None
    """For example `NVIDIA H200`."""
    accelerators: int = 0
    """Number of GPUs."""
    cores: int = 0
    """Number of CPU cores that it computes on."""
    flops_per_s: float | None = None
    """Compute rate of a simulated device; null where it has no bound, and for real devices."""
    servers: tuple[str, ...] = ()
    """Addresses of the servers that it sends requests to."""
    replay: str | None = None
    """The run folder whose recorded answers it gives; null for other engines."""
    fit_error: float | None = None
    """Of a simulated engine with fitted rates: the mean error of its calls' times, |ln|."""
    token_level: bool = False
    """Whether a simulated engine speculates token by token."""


class Resources(Struct, frozen=True, order=True):
    """What all engines of a run computed on together; sorts from less to more."""

    gpus: int = 0
    """Distinct GPUs: one that two engines share counts once."""
    servers: int = 0
    """Distinct addresses of servers; what these compute on is not known."""
    cores: int = 0
    """CPU cores of the engines that compute on the CPU: those that two engines share count once."""
    flops_per_s: float = 0.0
    """Sum over distinct simulated devices."""
    replays: int = 0
    """Distinct recorded runs that were replayed."""
    names: tuple[str, ...] = ()
    """Models of the GPUs, as far as engines tell, and names of simulated devices."""

    @property
    def amounts(self) -> tuple[float, ...]:
        """All but the names."""
        return self.gpus, self.servers, self.cores, self.flops_per_s, self.replays

    @property
    def label(self) -> str:
        """A short text to print, such as `2 GPUs (NVIDIA H200)`."""
        counts = {"GPU": self.gpus, "server": self.servers, "core": self.cores, "replay": self.replays}
        said = [f"{count} {noun}{'s' * (count > 1)}" for noun, count in counts.items() if count]
        said += [f"{self.flops_per_s / 1e12:,.0f} TFLOP/s, simulated"] if self.flops_per_s else []
        return " + ".join(said) + (f" ({', '.join(self.names)})" if self.names else "") or "unknown"


def engine_facts(run: RunFile) -> dict[str, EngineFacts]:
    """What the engines of `run` stated, by role; raises `InputError`."""
    found = {}
    for role in run.engines:
        with boundary(InputError, f"run.json: $.engine_facts.{role}", foreign=msgspec.ValidationError):
            found[role] = msgspec.convert(run.engine_facts.get(role, {}), EngineFacts)
    return found


def replica_count(run: RunFile) -> int:
    """How many replicas solved the problems of `run`; 1 where the process itself had the engines."""
    return min(run.options.replicas, max(run.input.rows, 1))


def resources(engines: Iterable[EngineFacts], replicas: int = 1) -> Resources:
    """What these engines computed on together; an engine that states nothing adds nothing.

    Each of several `replicas` has such engines on its own devices; servers and recorded runs are the same ones.
    """
    given = tuple(engines)
    replayed = {each for each in given if each.replay is not None}
    rated = {each for each in given if each.answers == "simulated" or each.flops_per_s is not None} - replayed
    on_gpus = {each for each in given if each.accelerators} - replayed - rated
    rates = {name: each.flops_per_s or math.inf for each in rated for name in each.devices}  # JSON has no infinity
    models = {name for each in replayed for name in ((each.device_model,) if each.device_model else each.devices)}
    models |= {each.device_model for each in on_gpus if each.device_model}
    return Resources(
        gpus=len({name for each in on_gpus for name in each.devices}) * replicas,
        servers=len({url for each in given for url in each.servers}),
        cores=sum({each.devices or place: each.cores for place, each in enumerate(given)}.values()) * replicas,
        flops_per_s=sum(rates.values()) * replicas,
        replays=len({each.replay for each in replayed}),
        names=tuple(sorted(models | rates.keys())),
    )


def answers(engines: Iterable[EngineFacts]) -> str | None:
    """`simulated` or `recorded` where any of the engines' answers are; None where models gave all of them.

    Those of a replayed simulated run are `simulated`.
    """
    found = {each.answers for each in engines}
    return next((kind for kind in ("simulated", "recorded") if kind in found), None)


def made_up(made: str | None, accuracy: float | None) -> bool:
    """Whether right and wrong say nothing: answers are simulated and none is right. `made` is what `answers` says."""
    return made == "simulated" and not accuracy


def of_answers(value: float | None, made: str | None, said: str = "") -> str:
    """An accuracy as it is `said`, by default in percent, with what gave the answers where models did not (see `answers`).

    `-` without one and for made-up answers, see `made_up`.
    """
    if value is None or made_up(made, value):
        return "-"
    return (said or plain_percent(value)) + (f" of {made} answers" if made else "")


def devices_of(role: str, engine: EngineFacts) -> tuple[str, ...]:
    """Names of the devices of the engine `role`, such as `GPU 0`; its role where they are not known, as a separate device."""
    return engine.devices or (role,)


def sentence(median_error: float, own_text_error: float | None) -> str:
    """How far simulated times are from measured ones, as shares of the measured ones."""
    own = "not measured" if own_text_error is None else f"{own_text_error:.0%}"
    recorded = f"Simulated; on our measured points this simulator is off by a median of {median_error:.0%} with recorded text"
    return f"{recorded}; with its own: {own}."


def stated(engines: Collection[EngineFacts] = ()) -> str:
    """The sentence shown with the speeds of simulated engines that stated these facts."""
    worst = max((each.fit_error for each in engines if each.fit_error is not None), default=None)
    said = sentence(MEDIAN_ERROR, OWN_TEXT_ERROR)
    if worst is not None:
        said += f" The rates here were fitted, and times of single calls are off by {worst:.1%} on average."
    if any(each.token_level for each in engines):
        said += f" Speed-ups by token-level speculation are off by {TOKEN_LEVEL_ERROR:.0%} of printed ones on average."
    return said


def of_engines(engines: Collection[EngineFacts]) -> str:
    """The same of the engines of a run on virtual time; empty where none is on a simulated device, as those of a replay that take as long
    as they were recorded to."""
    return stated(engines) if any(each.devices for each in engines) else ""
