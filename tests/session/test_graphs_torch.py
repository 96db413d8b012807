"""The graphs of the papers on the bundled models, and a likelihood against what the engine that wrote a step said of it."""

import math
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from anyio.from_thread import BlockingPortal
from msgspec import structs

from pipeline.data.problems import Problem
from pipeline.engine import Engine
from pipeline.reasoning.chain import Chain, Outcome
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.reasoning.translate import TokenTranslator
from pipeline.stages.draft import DraftSpec, DraftStage
from pipeline.stages.likelihood import LikelihoodSpec, LikelihoodStage
from tests.support.graphs import DECODE, NAMES, SEEN
from tests.support.runs import SolveTestSet, chains_of

pytestmark = pytest.mark.torch
PROBLEM = "Lily has 19 pens. Lily sells 5 packs of 2. Lily drops 9. How many pens has Lily now?"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DECODE])
def test_every_graph_runs_on_the_bundled_models(tmp_path: Path, solve_test_set: SolveTestSet, name: str) -> None:
    solve_test_set(tmp_path / "out", name, limit=12)
    kinds, decisions = SEEN[name]
    assert set(pq.read_table(tmp_path / "out/calls")["kind"].to_pylist()) <= kinds
    assert set(pq.read_table(tmp_path / "out/steps")["decision"].to_pylist()) <= decisions
    least = 2 if name in ("draft", "guided-draft", "scot", "best-of-n") else 10
    assert sum(row["correct"] for row in chains_of(tmp_path / "out")) >= least


async def _scored(engines: Mapping[str, Engine]) -> None:
    builders = {role: PromptBuilder(engine.tokenizer) for role, engine in engines.items()}
    translator = TokenTranslator({role: engine.tokenizer for role, engine in engines.items()})
    limits = {role: engine.max_model_len for role, engine in engines.items()}
    chain = Chain(Problem(row=1, problem_id="p", problem=PROBLEM, answer="0"), 0, 0, 0, builders, translator, limits)
    drafts = DraftStage("draft", DraftSpec(engine="draft", candidates=6, max_tokens=64, temperature=1.6), builders)
    [request] = drafts.requests(chain)
    drafted = await engines["draft"].generate(structs.replace(request, logprobs=True))
    # An end of sequence is in the sum of its candidate and not among its ids; a control token is spelled out where it is shown.
    controls = engines["draft"].tokenizer.control_ids
    ended = (each for each in drafted.candidates if each.stop_reason is not None or each.finish_reason == "length")
    kept = tuple(each for each in ended if controls.isdisjoint(each.ids[:-1]))
    drafted, written = structs.replace(drafted, candidates=kept), [each.cumulative_logprob for each in kept]
    chain.apply("draft", Outcome(candidates=drafts.apply(chain, [drafted]).candidates))
    judge = LikelihoodStage("verify", LikelihoodSpec(engine="draft", threshold=-math.inf), builders)
    completions = [await engines["draft"].generate(asked) for asked in judge.requests(chain)]
    assert len(completions) == len(chain.distinct_candidates()) > 1
    sums = {index: sum(answer.scored_logprobs) for index, answer in zip(chain.distinct_candidates(), completions, strict=True)}
    assert list(sums.values()) == pytest.approx([written[index] for index in sums], abs=1e-3)
    verdict = judge.apply(chain, completions).verdict
    assert verdict is not None
    means = {index: total / len(chain.candidates[index].ids) for index, total in sums.items()}
    assert verdict.chosen == max(means, key=means.__getitem__)
    assert verdict.value == pytest.approx(max(means.values()))
    assert verdict.mass == pytest.approx(sum(map(math.exp, sums.values())))


def test_a_candidate_is_as_likely_as_when_the_engine_wrote_it(portal: BlockingPortal, torch_engines: Mapping[str, Engine]) -> None:
    portal.call(_scored, {"draft": torch_engines["draft"]})
