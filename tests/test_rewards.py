"""Steps are scored: which texts and whose, what is asked at once, what fails, and what the bundled reward model makes of a real run."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

import anyio
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from msgspec import structs, to_builtins

from pipeline.cli import grade as command
from pipeline.cli.grade import reward_lines
from pipeline.data.reading import read_files
from pipeline.engine import Completion, Engine, Request
from pipeline.engines.registry import open_engines
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec
from pipeline.errors import ContextOverflow, EngineDead, InputError, RequestRefused, UsageError
from pipeline.graph.rewards import TextPrompt
from pipeline.reasoning.reward_prompts import RewardPromptBuilder
from pipeline.rewards import QUALITY, WINDOW, MeanRewards, Reward, Scorer, ScoringResult, StepToScore, score_run, steps_to_score
from pipeline.store.kept_problems import keep_problems, solved_problems
from pipeline.store.query import Query
from pipeline.store.rows import RewardRow, StepRow
from pipeline.store.run_file import RunFile
from pipeline.store.store import RunStore
from tests.support.commands import pipeline
from tests.support.paths import ROOT, TEST_SET
from tests.support.rows import blank
from tests.support.run_files import write_run_json
from tests.support.runs import SolveTestSet, rows, solve

PRM = ROOT / "graphs/rewards/prm-tiny.yaml"
SIM = SimSpec(
    model="sim-prm", device=SimDeviceSpec(name="gpu", flops_per_s=3e14, bytes_per_s=2e12), parameters=1e9, kv_bytes_per_token=30_000,
    max_model_len=256, max_in_flight=4,
)  # fmt: skip
PROMPT = TextPrompt(begin="{problem}\n", step="{step}\n\n")
Failures = Mapping[str, Exception | float]
Scores = list[tuple[StepToScore, Mapping[str, Reward]]]
STAGES = {"draft": {"kind": "draft", "engine": "small", "candidates": 2, "max_tokens": 9}}
ENGINES: dict[str, Any] = {"small": {}, "large": {}}


def row(problem: str, index: int, text: str, chosen: int | None = None, drafted: tuple[str, ...] = ()) -> StepRow:
    """A step of problem a or b."""
    decision, writer = ("fallback", "large") if chosen is None else ("accepted", "small")
    place: dict[str, Any] = {"problem_id": problem, "chain_id": f"{problem}#0", "step_index": index, "decision": decision}
    said: dict[str, Any] = {"source_engine": writer, "chosen_candidate": chosen, "step_text": text, "candidate_texts": drafted}
    return blank(StepRow, **place, **said)


def rounds_of_rows(folder: Path, *rows: Any) -> list[StepToScore]:
    """What is scored of these steps, in a run folder over an input of two problems."""
    store = RunStore(write_run_json(folder))
    store.append("steps", rows)
    store.close()
    path = folder / "problems.csv"
    path.write_text("name,text\na,Problem A?\nb,Problem B?\n")
    columns = {"problem": "text", "problem_id": "name"}
    sha256 = keep_problems(folder, read_files([path], columns)).counts(1).sha256
    read = {"sha256": sha256, "rows": 2, "chains": 2, "samples": 1}
    return rounds_of(write_run_json(folder, stages=STAGES, engines=ENGINES, columns=columns, input=read))


def rounds_of(folder: Path) -> list[StepToScore]:
    file = RunFile.read(folder)
    with Query(folder) as query:
        return list(steps_to_score(query, file.plan, solved_problems(folder, file), "prm"))


def texts_of(step: StepToScore) -> list[tuple[str, int | None, bool, str]]:
    return [(text, r.candidate_index, r.selected, r.source_engine) for text, r in zip(step.texts, step.rows, strict=True)]


def test_a_step_knows_its_problem_its_thought_and_its_candidates(tmp_path: Path) -> None:
    a0, b0, b1, b2 = rounds_of_rows(
        tmp_path,
        row("b", 0, "Ben has"),
        row("a", 0, "Ann has"),
        row("b", 1, " 3.\n\n", 1, (" 2.\n\n", " 3.\n\n")),
        row("b", 2, "So 4.\n\n", None, ("So 5.\n\n", "So 5.\n\n")),
    )
    assert (b0.problem, a0.problem, b2.rows[0].chain_id) == ("Problem B?", "Problem A?", "b#0")
    assert (texts_of(b0), b0.steps) == ([("Ben has", None, True, "large")], {"Ben has": ["Ben has"]})
    assert texts_of(b1) == [(" 2.\n\n", 0, False, "small"), (" 3.\n\n", 1, True, "small")]
    assert (b1.before, b1.steps) == ((), {" 2.\n\n": ["Ben has 2."], " 3.\n\n": ["Ben has 3."]})
    drafted = [("So 5.\n\n", number, False, "small") for number in range(2)]
    assert texts_of(b2) == [*drafted, ("So 4.\n\n", None, True, "large")]
    assert (b2.before, list(b2.steps)) == (("Ben has 3.",), ["So 5.\n\n", "So 4.\n\n"])
    with pytest.raises(InputError, match=r"problems.csv: holds no problem 'c', of which this run has steps"):
        rounds_of_rows(tmp_path / "foreign", row("c", 1, "x"))


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["speccot", "scot"])
def test_it_reads_what_a_run_writes(tmp_path: Path, graph: str) -> None:
    found = rounds_of(solve(tmp_path, graph=graph, samples=2, batch_size=4).folder)
    assert {(each.rows[0].problem_id, each.problem) for each in found} == {(f"p{i}", f"Problem number {i}?") for i in range(12)}
    assert all(sum(row.selected for row in each.rows) == 1 for each in found)
    assert {row.source_engine for each in found for row in each.rows if row.candidate_index is not None} == {"draft"}
    assert any(each.before for each in found) == (graph != "scot")
    assert any(len(steps) > 1 for each in found for steps in each.steps.values()) == (graph == "scot")


class Watched:
    """An engine that counts what is asked of it, and fails with the error of a chain or dawdles for its seconds."""

    def __init__(self, engine: Engine, failures: Failures) -> None:
        self._engine, self._failures = engine, failures
        self.requests: list[Request] = []
        self.in_flight = self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            failure = self._failures.get(request.affinity, 0.0)
            if isinstance(failure, Exception):
                raise failure
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


async def score(steps: list[StepToScore], failures: Failures | None = None) -> tuple[Scores, Watched]:
    async with open_engines({"reward": SIM}) as engines:
        engine = Watched(engines["reward"], failures or {})
        found: Scores = []
        scorer = Scorer(engine, SIM, RewardPromptBuilder(engine.tokenizer, PROMPT, "test"))
        await scorer.run(iter(steps), lambda *scored: found.append(scored))
    return found, engine


@pytest.mark.anyio
async def test_rewards_come_in_order_with_the_engine_as_full_as_it_may_be() -> None:
    steps = [step_of(i, "a", "b", "a") for i in range(20)]
    found, engine = await score(steps, {"p#0": 5.0})
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
    found, _ = await score(steps, {"p#1": refused})
    long, empty, short = (found[0][1][text] for text in ("y " * 1200, "", "x"))
    assert isinstance(long, ContextOverflow)
    assert str(empty) == "the text says nothing"
    assert isinstance(short, float)
    assert found[1][1]["x"] is refused
    with pytest.raises(EngineDead, match="engine 'reward' died: out of breath"):
        await score([step_of(i, "a", "b") for i in range(9)], {"p#5": EngineDead("reward", "out of breath")})


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


def test_a_scoring_that_ends_early_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    store, row = RunStore(write_run_json(tmp_path)), blank(RewardRow, chain_id="p#0")
    with store.rewards() as add:
        add([row])
    before = {path.name for path in tmp_path.rglob("*")}
    with suppress(EngineDead), store.rewards() as add:
        add([row] * 9)
        raise EngineDead("reward", "killed")
    assert ({path.name for path in tmp_path.rglob("*")}, len(rows(tmp_path, "rewards"))) == (before, 1)


@pytest.mark.usefixtures("faulty")
def test_an_engine_that_dies_while_it_scores_leaves_no_table(tmp_path: Path) -> None:
    """It dies when the rewards of a whole window have been kept."""
    run, scored = tmp_path / "run", list[int]()
    rounds_of_rows(run, *(structs.replace(row("a", 1, "x"), chain_id=f"a#{number}") for number in range(WINDOW + 9)))
    engine = to_builtins(SIM) | {"backend": "faulty-now", "max_in_flight": 256, "max_restarts": 0, "faults": {"dies_after_calls": WINDOW}}
    (tmp_path / "prm.yaml").write_text(json.dumps({"reward": engine, "prompt": to_builtins(PROMPT)}))
    with pytest.raises(EngineDead, match="engine 'reward' died"):
        score_run(run, tmp_path / "prm.yaml", watch=lambda done, total: scored.append(done))
    assert scored[-1] == WINDOW
    assert not list(run.glob("rewards/*"))


@pytest.mark.torch
@pytest.mark.slow
def test_the_bundled_model_tells_right_steps_of_a_real_run_and_the_means_are_those_of_the_table(
    solve_test_set: SolveTestSet, tmp_path: Path
) -> None:
    """A step is right where the thought up to there is the beginning of the data set's own."""
    solved = solve_test_set(tmp_path / "solved", limit=24).folder
    done = pipeline("score", solved, "--prm", PRM, "--set", "engines.reward.max_in_flight=16", "--json")
    assert done.returncode == 0, done.stderr
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
    scored = json.loads(done.stdout)
    assert (scored["run"], scored["model"], scored["steps"], scored["errors"]) == ("solved", "bundled:tiny-prm", len(steps), {})
    drafted = sum(row["candidate_index"] is not None for row in rewards)
    assert scored["candidates"] == drafted == sum(step["num_candidates"] for step in steps)
    accepted, places = scored["quality"]["accepted"], [(step["chain_id"], step["step_index"]) for step in steps]
    assert [(row["chain_id"], row["step_index"]) for row in rewards if row["selected"]] == sorted(places)
    selected = [row["reward"] for row in rewards if row["selected"] and row["decision"] == "accepted"]
    assert accepted["committed"] == pytest.approx(mean(selected))
    assert accepted["committed"] > accepted["drafted"] + 0.05


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


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    arguments = [str(write_run_json(tmp_path)), "--prm", str(ROOT / "graphs/engines/tiny.yaml")]
    refused = CliRunner().invoke(command.score, arguments).exception
    assert isinstance(refused, UsageError)
    assert "tiny.yaml, line 4: $: unknown key `draft`" in str(refused)
