"""Steps are scored: what is asked at once, what fails and how, and what the bundled reward model makes of a real run."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import anyio
import psutil
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pipeline.cli import grade as command
from pipeline.cli.grade import reward_lines
from pipeline.engine import Completion, Engine, Request
from pipeline.engines.registry import open_engines
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec
from pipeline.errors import ContextOverflow, EngineDead, RequestRefused, UsageError
from pipeline.graph.rewards import TextPrompt
from pipeline.reasoning.reward_prompts import RewardPromptBuilder
from pipeline.rewards import QUALITY, MeanRewards, Reward, Scorer, ScoringResult, StepToScore, score_run
from pipeline.store.query import Query
from pipeline.store.rows import RewardRow
from pipeline.store.store import RunStore
from tests.support.commands import pipeline
from tests.support.paths import ROOT, TEST_SET
from tests.support.rows import blank
from tests.support.run_files import write_run_json
from tests.support.runs import SolveTestSet, rows

PRM = ROOT / "graphs/rewards/prm-tiny.yaml"
SIM = SimSpec(
    model="sim-prm", device=SimDeviceSpec(name="gpu", flops_per_s=3e14, bytes_per_s=2e12), parameters=1e9, kv_bytes_per_token=30_000,
    max_model_len=256, max_in_flight=4,
)  # fmt: skip
PROMPT = TextPrompt(begin="{problem}\n", step="{step}\n\n")
Fail = Callable[[str], Exception | float | None]
Scores = list[tuple[StepToScore, Mapping[str, Reward]]]


class Watched:
    """An engine that counts what is asked of it, and fails or dawdles as `fail` says of a chain."""

    def __init__(self, engine: Engine, fail: Fail) -> None:
        self._engine, self._fail = engine, fail
        self.requests: list[Request] = []
        self.in_flight = self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            failure = self._fail(request.affinity)
            if isinstance(failure, Exception):
                raise failure
            if failure is not None:
                await anyio.sleep(failure)
            return await self._engine.generate(request)
        finally:
            self.in_flight -= 1


def step_of(number: int, *texts: str, before: tuple[str, ...] = ()) -> StepToScore:
    return StepToScore(
        problem="Why?",
        before=before,
        texts=texts,
        rows=tuple(blank(RewardRow, chain_id=f"p#{number}", step_index=1) for _ in texts),
        steps={text: [step for step in text.split("\n\n") if step] for text in texts},
    )


async def score(steps: list[StepToScore], fail: Fail = lambda chain: None) -> tuple[Scores, Watched]:
    async with open_engines({"reward": SIM}) as engines:
        engine = Watched(engines["reward"], fail)
        found: Scores = []
        scorer = Scorer(engine, SIM, RewardPromptBuilder(engine.tokenizer, PROMPT, "test"))
        await scorer.run(iter(steps), lambda *scored: found.append(scored))
    return found, engine


@pytest.mark.anyio
async def test_rewards_come_in_order_with_the_engine_as_full_as_it_may_be() -> None:
    steps = [step_of(i, "a", "b", "a") for i in range(20)]
    found, engine = await score(steps, lambda chain: 5.0 if chain == "p#0" else None)
    assert [step for step, _ in found] == steps
    assert all(set(rewards) == {"a", "b"} for _, rewards in found)
    assert all(isinstance(reward, float) and 0 <= reward <= 1 for _, rewards in found for reward in rewards.values())
    assert (engine.most, len(engine.requests), len({request.request_id for request in engine.requests})) == (4, 40, 40)
    for request in engine.requests:
        assert engine.tokenizer.decode(request.prompt_ids) in ("Why?\na\n\n", "Why?\nb\n\n")
        assert (request.max_tokens, [engine.tokenizer.decode([i]) for i in request.option_ids]) == (1, ["+", "-"])


@pytest.mark.anyio
async def test_a_text_of_several_steps_has_the_least_of_their_rewards() -> None:
    apart, _ = await score([step_of(0, "x", before=()), step_of(0, "y", before=("x",)), step_of(0, "z", before=("x", "y"))])
    [(_, together)], engine = await score([step_of(0, "x\n\ny\n\nz")])
    assert [engine.tokenizer.decode(r.prompt_ids) for r in engine.requests] == ["Why?\nx\n\n", "Why?\nx\n\ny\n\n", "Why?\nx\n\ny\n\nz\n\n"]
    values = [reward for _, rewards in apart for reward in rewards.values() if isinstance(reward, float)]
    assert together["x\n\ny\n\nz"] == min(values) < max(values)


@pytest.mark.anyio
async def test_a_text_that_fails_has_no_reward_and_the_others_have_but_a_dead_engine_ends_it() -> None:
    steps, refused = [step_of(0, "y " * 1200, "", "x"), step_of(1, "x")], RequestRefused("no")
    found, _ = await score(steps, lambda chain: refused if chain == "p#1" else None)
    long, empty, short = (found[0][1][text] for text in ("y " * 1200, "", "x"))
    assert isinstance(long, ContextOverflow)
    assert str(empty) == "the text says nothing"
    assert isinstance(short, float)
    assert found[1][1]["x"] is refused
    dead = EngineDead("reward", "out of breath")
    with pytest.raises(EngineDead, match="engine 'reward' died: out of breath"):
        await score([step_of(i, "a", "b") for i in range(9)], lambda chain: dead if chain == "p#5" else None)


def test_means_are_over_steps_and_count_a_text_as_often_as_it_was_drafted(tmp_path: Path) -> None:
    said = (
        (0, "accepted", [(0.25, False), (0.75, True), (0.75, False), (None, False)], None),
        (1, "fallback", [(0.25, False)], 0.75),
        (2, "fallback", [], 0.5),
    )
    with RunStore(write_run_json(tmp_path)).rewards() as add:
        for index, decision, drafted, written in said:
            place = {"chain_id": "p#0", "step_index": index, "decision": decision}
            rows = [{"candidate_index": i, "reward": reward, "selected": is_it} for i, (reward, is_it) in enumerate(drafted)]
            rows += [] if written is None else [{"candidate_index": None, "reward": written, "selected": True}]
            add([blank(RewardRow, **place, **row) for row in rows])
    with Query(tmp_path) as query:
        found = query.rows(QUALITY, MeanRewards)
    mean_of_three = (0.25 + 0.75 + 0.75) / 3
    assert found == [
        MeanRewards("accepted", 1, mean_of_three, 0.75),
        MeanRewards("all", 2, (mean_of_three + 0.25) / 2, 0.75),
        MeanRewards("fallback", 1, 0.25, 0.75),
    ]


@pytest.fixture(scope="module")
def solved(solve_test_set: SolveTestSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of 24 problems by the bundled pair, scored by the command."""
    folder = solve_test_set(tmp_path_factory.mktemp("runs") / "solved", limit=24).folder
    done = pipeline("score", folder, "--prm", PRM, "--set", "engines.reward.max_in_flight=16", "--json")
    assert done.returncode == 0, done.stderr
    (folder / "scored.json").write_text(done.stdout)
    return folder


@pytest.mark.torch
@pytest.mark.slow
def test_the_bundled_model_tells_right_steps_of_a_real_run_and_the_means_are_those_of_the_table(solved: Path) -> None:
    """A step is right where the thought up to there is the beginning of the data set's own."""
    gold = {row["problem_id"]: "".join(f"{step}\n\n" for step in row["steps"]) + "</think>" for row in pq.read_table(TEST_SET).to_pylist()}
    rewards, steps, so_far = rows(solved, "rewards"), rows(solved, "steps"), dict.fromkeys(gold, "")
    right: dict[tuple[str, int, int | None], bool] = {}
    for step in steps:
        problem = step["problem_id"]
        for index, text in ({None: step["step_text"]} | dict(enumerate(step["candidate_texts"]))).items():
            whole = text.endswith(("\n\n", "</think>"))
            right[step["chain_id"], step["step_index"], index] = whole and gold[problem].startswith(so_far[problem] + text)
        so_far[problem] += step["step_text"]
    found: dict[bool, list[float]] = {True: [], False: []}
    for row in rewards:
        if row["decision"] != "guidance":
            found[right[row["chain_id"], row["step_index"], row["candidate_index"]]].append(row["reward"])
    assert min(map(len, found.values())) > 20
    assert mean(found[True]) > 0.95
    assert mean(found[False]) < 0.1
    scored = json.loads((solved / "scored.json").read_text())
    assert (scored["run"], scored["model"], scored["steps"], scored["errors"]) == ("solved", "bundled:tiny-prm", len(steps), {})
    drafted = sum(row["candidate_index"] is not None for row in rewards)
    assert scored["candidates"] == drafted == sum(step["num_candidates"] for step in steps)
    accepted, places = scored["quality"]["accepted"], [(step["chain_id"], step["step_index"]) for step in steps]
    assert [(row["chain_id"], row["step_index"]) for row in rewards if row["selected"]] == sorted(places)
    selected = [row["reward"] for row in rewards if row["selected"] and row["decision"] == "accepted"]
    assert accepted["committed"] == pytest.approx(mean(selected))
    assert accepted["committed"] > accepted["drafted"] + 0.05


@pytest.mark.torch
@pytest.mark.slow
def test_a_scoring_whose_engine_is_killed_leaves_the_table_as_it_was(solved: Path) -> None:
    before, names = rows(solved, "rewards"), {path.name for path in solved.iterdir()}
    others = set(psutil.Process().children())  # engines of other tests

    def watch(done: int, total: int) -> None:
        if done == 1:
            for worker in set(psutil.Process().children()) - others:
                worker.kill()

    one_by_one = ("engines.reward.max_restarts=0", "engines.reward.max_in_flight=1")  # so that others wait when the first is done
    with pytest.raises(EngineDead):
        score_run(solved, PRM, watch=watch, settings=one_by_one)
    assert rows(solved, "rewards") == before
    assert {path.name for path in solved.iterdir()} == names


def test_what_is_printed() -> None:
    quality = [MeanRewards("accepted", 1000, 0.5, 0.75), MeanRewards("all", 1010, 0.25, None), MeanRewards("written", 10, 0.25, 0.75)]
    scored = ScoringResult(
        run="r", model="m", steps=1200, candidates=5000, quality={each.decision: each for each in quality},
        errors={"ContextOverflow": 3}, first_error="too long",
    )  # fmt: skip
    assert reward_lines(scored, "runs/r")[1:] == [
        "mean reward                     steps   drafted  committed",
        "  drafted steps                 1,010    0.2500          -",
        "  of these, one selected        1,000    0.5000     0.7500",
        "  of these, flagged                10    0.2500     0.7500",
        "texts without a reward: ContextOverflow 3; the first: too long",
        "rewards: runs/r/rewards/*.parquet",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--prm", ROOT / "graphs/engines/tiny.yaml"), "tiny.yaml, line 4: $: unknown key `draft`"),
        (("none", "--prm", PRM), "none: no such directory; expected a run folder"),
    ],
)
def test_the_command_refuses_what_is_wrong(tmp_path: Path, arguments: tuple[str | Path, ...], message: str) -> None:
    write_run_json(tmp_path / "run")
    refused = CliRunner().invoke(command.score, [f"{tmp_path}/{arguments[0]}", *map(str, arguments[1:])]).exception
    assert isinstance(refused, UsageError)
    assert message in str(refused)
