"""A package of other people: the stage kind `pick`, which judges as `choose` does, and a graph with three roles that uses it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.graph.plugins import _entries, stage_kinds

MODULE = '''
from typing import ClassVar

from pipeline.graph.spec import StageSpec
from pipeline.reasoning.chain import Outcome, Scale, Verdict
from pipeline.stages.base import StageKind
from pipeline.stages.choose import ChooseStage, probabilities


class PickSpec(StageSpec, frozen=True, kw_only=True, tag="pick"):
    engine: str
    unit: ClassVar[str] = "step"
    reject: ClassVar[bool] = True
    judges: ClassVar[bool] = True


class PickStage(ChooseStage):
    """Accepts the likeliest candidate; its value is the margin over the next option, in percent."""

    def apply(self, chain, completions):
        if not completions:
            return Outcome()
        judged = super().apply(chain, completions).verdict
        most, next_ = sorted(judged.probs, reverse=True)[:2]
        scale = Scale("margin", low=0.0, unit="percent")
        fields = {name: getattr(judged, name) for name in ("chosen", "label", "options", "of_candidates", "probs", "mass", "distinct")}
        return Outcome(verdict=Verdict(kind="pick", value=100 * (most - next_), scale=scale, **fields))


KIND = StageKind(spec=PickSpec, build=PickStage)
'''
GRAPH = """
name: picked
engines: engines.yaml
stages:
  guidance: {kind: generate, engine: large, unit: tokens, max_tokens: 8}
  reason:
    kind: repeat
    after: guidance
    until: {thought_closed: true, max_steps: 30}
    stages:
      propose: {kind: draft, engine: small, candidates: 3, max_tokens: 200}
      decide: {kind: pick, engine: critic, after: propose}
      rewrite: {kind: generate, engine: large, unit: step, after: decide, when: decide.rejected, max_tokens: 200}
  answer: {kind: answer, engine: large, after: reason}
"""
ENGINE = """
{role}:
  backend: sim
  model: {role}-model
  device: {{name: {role}-device, flops_per_s: 1.0e+15, bytes_per_s: 3.0e+12, overhead_s: 0.001}}
  parameters: 1.0e+9
  kv_bytes_per_token: 10000
  kv_cache_tokens: 400000
  max_num_seqs: 256
  text: {{step_accuracy: 0.8, step_correlation: 0.5, verifier_accuracy: 0.9}}
"""


def write_package(folder: Path) -> Path:
    """The package as pip would leave it, its graph and engines file, in `folder`; returns the graph."""
    (folder / "pick.py").write_text(MODULE)
    info = folder / "pick-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pick\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pipeline.stages]\npick = pick:KIND\n")
    (folder / "engines.yaml").write_text("".join(ENGINE.format(role=role) for role in ("small", "large", "critic")))
    graph = folder / "picked.yaml"
    graph.write_text(GRAPH)
    return graph


@contextmanager
def installed(folder: Path) -> Iterator[Path]:
    """The package is installed in this process; returns its graph."""
    graph = write_package(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        _forget()
        yield graph
    _forget()


def _forget() -> None:
    stage_kinds.cache_clear()
    _entries.cache_clear()
