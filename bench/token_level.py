"""Token-level speculation in the simulator against printed speed-ups: the fit of what a roofline leaves out, and its error.

The printed speed-ups are in bench/anchors.yaml. `bench/calibration.py` runs this and writes it on its page.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import yaml
from msgspec import Struct, structs
from scipy.optimize import least_squares

from bench.figures import ROOT, results_of
from pipeline.analysis.tables import Table, markdown_table
from pipeline.engines.sim.roofline import Roofline
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec, SimSpeculativeSpec

REACHED_BYTES, REACHED_FLOPS = 0.72, 0.6
"""Shares of the datasheet, as in the files of simulated machines."""
ALONE_S, TOGETHER_S = 0.002, 0.0032
"""Overhead of an iteration on one card and with tensor parallelism, as there."""
FITTED = ("verification_s", "overhead_s", "overlap")
FIRST, BOUNDS = (0.001, 0.0006, 0.5), ((0.0, 0.0, 0.0), (0.02, 0.01, 1.0))


class Card(Struct, frozen=True):
    """Datasheet of one card."""

    flops_per_s: float
    bytes_per_s: float


class Weights(Struct, frozen=True):
    """A model, or the head of one."""

    parameters: float = 0.0
    kv_bytes_per_token: float = 0.0


class Anchor(Struct, frozen=True, kw_only=True):
    """A printed speed-up over the same engine without speculation."""

    source: str
    model: Weights
    card: Card
    cards: int = 1
    method: str
    head: Weights
    batch_size: int
    proposed: int
    accepted: float
    share: float = 1.0
    context: int
    printed: float


PRINTED = yaml.safe_load((ROOT / "bench/anchors.yaml").read_bytes())
"""What others print; the file says what each key is."""
MODELS = msgspec.convert(PRINTED["models"], dict[str, Weights])
CARDS = msgspec.convert(PRINTED["cards"], dict[str, Card])


def _anchors() -> Iterator[Anchor]:
    for row in PRINTED["speed_ups"]:
        about = row | {"model": MODELS[row["model"]], "card": CARDS[row["card"]], "head": MODELS.get(row["head"], Weights())}
        sizes, printed = about.pop("batch_sizes"), about.pop("printed")
        for size, value in zip(sizes, printed, strict=True):
            yield Anchor(**about, batch_size=size, printed=value[0] / value[1] if isinstance(value, list) else value)


ANCHORS = tuple(_anchors())


def speed_up(anchor: Anchor, verification_s: float, overhead_s: float, overlap: float) -> float:
    """Tokens per second with token-level speculation over those without, as the simulator has them. Seconds are those of one card; with
    tensor parallelism they grow as the overhead of an iteration does."""
    device = SimDeviceSpec(
        name="d",
        flops_per_s=anchor.card.flops_per_s * anchor.cards * REACHED_FLOPS,
        bytes_per_s=anchor.card.bytes_per_s * anchor.cards * REACHED_BYTES,
        overhead_s=ALONE_S if anchor.cards == 1 else TOGETHER_S,
    )
    size, model = anchor.batch_size, anchor.model
    slower = device.overhead_s / ALONE_S  # with all-reduces
    plain = SimSpec(model="m", device=device, parameters=model.parameters, kv_bytes_per_token=model.kv_bytes_per_token)
    inner = SimSpeculativeSpec(
        num_speculative_tokens=anchor.proposed,
        acceptance=0.5,
        proposed_share=anchor.share,
        parameters=anchor.head.parameters,
        kv_bytes_per_token=anchor.head.kv_bytes_per_token,
        overhead_s=overhead_s * slower if anchor.head.parameters else 0.0,
        verification_s=verification_s * slower,
        overlap=overlap,
    )
    specs = (plain, structs.replace(plain, speculative=inner))
    before, after = (Roofline(spec).iteration(size, size * anchor.context).duration(1) for spec in specs)
    return anchor.accepted * before / after


def fitted(anchors: Sequence[Anchor]) -> tuple[float, ...]:
    """The values of `FITTED` with the least squared logarithms of simulated over printed."""

    def residuals(point: Any) -> list[float]:
        return [math.log(speed_up(each, *point) / each.printed) for each in anchors]

    return tuple(map(float, least_squares(residuals, FIRST, bounds=BOUNDS, x_scale=FIRST).x))


def error(anchors: Sequence[Anchor], values: Sequence[float]) -> float:
    """Mean |ln(simulated / printed)|."""
    return float(np.mean([abs(math.log(speed_up(each, *values) / each.printed)) for each in anchors]))


def table(values: Sequence[float]) -> Table:
    """Every row of printed figures beside the simulated ones, and its error."""
    rows: dict[tuple[str, ...], list[Anchor]] = {}
    for each in ANCHORS:
        rows.setdefault((each.source, each.method, f"{each.proposed}", f"{each.accepted:.2f}"), []).append(each)
    cells = []
    for key, row in rows.items():
        pairs = [(each.printed, speed_up(each, *values)) for each in row]
        printed, simulated = (", ".join(f"{value:.2f}" for value in side) for side in zip(*pairs, strict=True))
        cells.append((*key, ", ".join(str(each.batch_size) for each in row), printed, simulated, f"{error(row, values):.0%}"))
    columns = ("source", "method", "proposed", "tokens an iteration", "batch sizes", "printed", "simulated", "error")
    return Table("Throughput over the same engine without token-level speculation", columns, tuple(cells))


def by_source(values: Sequence[float]) -> Iterator[tuple[str, int, float, float, float]]:
    """Each source with its anchors, its error, its bias (mean ln), and its error where nothing is fitted to it."""
    for source in dict.fromkeys(each.source for each in ANCHORS):
        own, others = ([each for each in ANCHORS if (each.source == source) is same] for same in (True, False))
        bias = float(np.mean([math.log(speed_up(each, *values) / each.printed) for each in own]))
        yield source, len(own), error(own, values), bias, error(own, fitted(others))


def results() -> dict[str, Any]:
    """The fit and its errors, for the results file."""
    values = fitted(ANCHORS)
    sources = [dict(zip(("source", "anchors", "error", "bias", "held_out_error"), found, strict=True)) for found in by_source(values)]
    return {
        "token_level_error": float(np.average([each["held_out_error"] for each in sources], weights=[each["anchors"] for each in sources])),
        "token_level_fitted_error": error(ANCHORS, values),
        "token_level_roofline_error": error(ANCHORS, (0.0, 0.0, 1.0)),
        "token_level": dict(zip(FITTED, values, strict=True)) | {"anchors": len(ANCHORS), "sources": sources},
    }


def verified(values: Sequence[float]) -> Table:
    """What three more tokens of each sequence cost the target, measured on an H200 and simulated."""
    (verification_s, _, overlap), card, model = values, CARDS["H200"], MODELS["QwQ-32B"]
    device = SimDeviceSpec(name="d", flops_per_s=card.flops_per_s * REACHED_FLOPS, bytes_per_s=card.bytes_per_s * REACHED_BYTES)
    inner = SimSpeculativeSpec(num_speculative_tokens=3, acceptance=0.5, verification_s=verification_s, overlap=overlap)
    plain = SimSpec(model="m", device=device, parameters=model.parameters, kv_bytes_per_token=model.kv_bytes_per_token)
    results = results_of("gpu-interference")
    times = {(row["batch"], row["tokens"]): row["seconds"]["mean_s"] for row in results["alone"]["target"] if row["mode"] == "graph"}
    rows = []
    for size in sorted(size for size, tokens in times if tokens == 4):
        costs = (Roofline(spec).iteration(size, size * results["context"]) for spec in (plain, structs.replace(plain, speculative=inner)))
        before, after = (cost.duration(1) for cost in costs)
        rows.append((str(size), f"{(times[size, 4] - times[size, 1]) * 1e3:.1f}", f"{(after - before) * 1e3:.1f}"))
    return Table(
        "Milliseconds that verifying three more tokens of each sequence takes", ("sequences", "measured", "simulated"), tuple(rows)
    )


HEADING = "## Token-level speculation"


def _biased(sources: Sequence[Any]) -> Iterator[str]:
    for each in sources:
        if abs(each["bias"]) >= 0.1:
            yield f"{each['source']} is {abs(each['bias']):.0%} {'slower' if each['bias'] > 0 else 'faster'} than simulated"


def section(found: Any) -> str:
    """The section of the page on these `results`."""
    fit = found["token_level"]
    verification_s, overhead_s, overlap = (fit[name] for name in FITTED)
    held = ", ".join(f"{each['source']} {each['held_out_error']:.0%} ({each['bias']:+.0%})" for each in fit["sources"])
    return "\n\n".join(
        [
            HEADING,
            f"Three figures are fitted to {fit['anchors']} printed speed-ups (least squares of logarithms), with machines and models as in "
            "the files of simulated machines and acceptance lengths as printed for the same text: what an iteration takes for preparing "
            f"and rejection sampling, {verification_s * 1e3:.2f} ms; what a pass of an EAGLE head takes beside its weights, "
            f"{overhead_s * 1e3:.2f} ms, both {TOGETHER_S / ALONE_S:.1f} times as long with tensor parallelism, as the overhead of an "
            f"iteration; and the share of the arithmetic of proposed tokens that is hidden behind memory traffic, {overlap:.2f}. Nearly "
            "all of it comes on top of the traffic: that, and not the peak, is why large batches gain little. Of the "
            f"figures that it has seen the fit is {found['token_level_fitted_error']:.1%} off (mean |ln|), the roofline alone "
            f"{found['token_level_roofline_error']:.0%}.",
            f"**The error is {found['token_level_error']:.0%}**, of each source's figures where the fit has not seen them. It is stated "
            "beside simulated speeds. Each source's own, left out of the fit, and in brackets its bias where all are fitted: "
            f"{held}. "
            f"Engines differ by more than the model does: {', '.join(_biased(fit['sources']))}. Token-level baselines of a recent vLLM may "
            "be that much faster than simulated.",
            markdown_table(table((verification_s, overhead_s, overlap))),
            "Nothing is fitted to these: QwQ-32B's shape on the H200 of [gpu.md](gpu.md), whose attention, PyTorch's, makes the measured "
            "ones upper bounds from 32 sequences on.",
            markdown_table(verified((verification_s, overhead_s, overlap))),
            "Acceptance in the files of simulated machines, in the middle of the candidates (`acceptance_sigma` 0.2, as in the traces of "
            "arXiv 2601.11580 for GSM8K): EAGLE-3 0.75, 0.70, 0.70 and n-grams 0.21, 0.80, 0.80 in 0.4 of the iterations, with which the "
            "simulator has the speed-ups that the same study prints for Qwen3-8B thinking about AIME and GSM8K (figure 3: 1.64 to 1.80 and "
            "1.50 to 1.58 at batch sizes 1 to 16 on AIME). The 1.5B draft inside the engine: 0.7, assumed; SpecReason prints none.",
        ]
    )
