"""The problems and training sequences of the pairs `wordy` and `rambling`: fast checks without training."""

import random
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.graph.plugins import engine_specs
from pipeline.reasoning.reward_prompts import RewardPromptBuilder
from pipeline.rewards.spec import load_reward_model

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import make_wordy  # noqa: E402
import tiny_tokenizer  # noqa: E402
import train_tiny  # noqa: E402
import wordy_examples  # noqa: E402

WORDS = (*make_wordy.WORDS, *make_wordy.GAINS, *make_wordy.LOSSES)
PACKS = make_wordy.Event("sells", "-", 3, 4, 20, 8)
ONE = make_wordy.Event("finds", "+", 1, 5, 8, 13)
TOLD = make_wordy.Problem(
    "Lily has 20 pens. Lily sells 3 packs of 4. Lily finds 5. How many pens has Lily now?", "Lily", "pens", (PACKS, ONE), 13
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> HFTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer.save(folder, WORDS, wordy_examples.MOST)
    return HFTokenizer(str(folder))


@pytest.fixture(scope="module")
def target(tokenizer: HFTokenizer) -> wordy_examples.WordyExamples:
    return wordy_examples.WordyExamples(tokenizer, 0, "target")


@pytest.mark.parametrize("name", make_wordy.SPLIT_SEEDS)
def test_the_committed_rows_are_what_the_seed_gives(name: str) -> None:
    rows = pq.read_table(ROOT / "datasets" / "wordy" / f"{name}.parquet").to_pylist()
    assert [(row["problem"], row["answer"], row["steps"]) for row in rows] == [
        (each.text, str(each.answer), each.steps) for each in make_wordy.split(name)
    ]


def test_no_problem_is_in_two_sets() -> None:
    validation, test = ({each.text for each in make_wordy.split(name)} for name in ("validation", "test"))
    assert not validation & test
    drawn = make_wordy.training(0)
    assert not {next(drawn).text for _ in range(3000)} & (validation | test)


def test_every_way_of_saying_a_step_is_right_and_ends_with_its_total() -> None:
    rng = random.Random(0)
    for problem in make_wordy.split("test")[:200]:
        for place, event in enumerate(problem.events):
            ways = make_wordy.ways(problem, place, rng)
            assert all(said.endswith(event.sum) for said in ways.values())
            assert {make_wordy.score(event, ways[name]) for name in ("terse", "wordy", "rambling")} == {9}
            assert make_wordy.score(event, ways["sloppy"]) == (make_wordy.RIGHT if event.product else 9)


DOUBTS = (" Wait,", " But maybe", " Hmm,")


def doubts(step: str) -> int:
    return sum(doubt in step for doubt in DOUBTS)


def thought(problem: make_wordy.Problem, way: str, rng: random.Random) -> str:
    return "".join(make_wordy.ways(problem, place, rng)[way] + "\n\n" for place in range(len(problem.events)))


def test_a_rambling_thought_has_most_second_thoughts_and_almost_twice_the_tokens(tokenizer: HFTokenizer) -> None:
    rng, problems = random.Random(0), make_wordy.split("validation")
    tokens = {way: sum(len(tokenizer.encode(thought(each, way, rng))) for each in problems) for way in ("wordy", "rambling")}
    assert 1.7 < tokens["rambling"] / tokens["wordy"] < 1.9
    for problem in problems[:100]:
        for place in range(len(problem.events)):
            said = make_wordy.rambling(problem, place, rng)
            assert doubts(said) >= 2
            wrong = make_wordy.misled(problem, place, said, rng)
            if wrong is not None:
                assert len(tokenizer.encode(wrong[1])) == len(tokenizer.encode(said)), "the doubt that misleads comes last"
                assert make_wordy.score(problem.events[place], wrong[1]) < make_wordy.RIGHT


def test_a_rambling_draft_learns_its_own_words_from_steps_of_either_model(tokenizer: HFTokenizer) -> None:
    examples = wordy_examples.WordyExamples(tokenizer, 0, "rambling")
    for _ in range(300):
        example = examples.reasoning(next(examples.problems))
        learnt = [token for token in example.next_token if token != wordy_examples.NONE]
        assert example.ids[-len(learnt) :] == learnt, "what is learnt is the end of the response, without gaps"
        steps = tokenizer.decode(learnt).partition("</think>")[0].split("\n\n")[:-1]
        assert all(doubts(step) >= 2 for step in steps)
        assert all(len(tokenizer.encode(step)) < examples.limits.step for step in steps)
        assert len(learnt) < examples.limits.response


@pytest.mark.parametrize("role", ["target", "verify"])
def test_the_pair_rambling_has_no_target_of_its_own(role: str, tmp_path: Path) -> None:
    given = [role, "--pair", "rambling", "--out", str(tmp_path / "out"), "--start", str(tmp_path), "--draft", str(tmp_path)]
    done = CliRunner().invoke(train_tiny.main, given)
    assert "rambling has only a draft of its own; its target is that of the pair wordy" in done.output
    assert done.exit_code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("sells 3 packs of 4: 3 * 4 = 12. 20 - 12 = 8.", 9),
        ("sells 3 packs of 4: 20 - 12 = 8.", 7),
        ("sells 3 packs of 4: 3 * 4 = 11. 20 - 12 = 8.", 5),
        ("sells 3 packs of 5: 20 - 12 = 8.", 5),
        ("sells 3 packs of 4: 3 * 4 = 12. 20 - 12 = 7.", 4),
        ("sells 3 packs of 4: 3 * 4 = 11. 20 - 11 = 9.", 3),
        ("sells 3 packs of 4: 3 * 4 = 12. 19 - 12 = 7.", 2),
        ("sells 3 packs of 4: 3 * 4 = 12.", 0),
        ("First, Lily sells 3 packs of 4. That is 3 * 4 = 12 pens. Lily had 20, so 20 - 12 = 8. Hmm, is it 9? Yes, 20 - 12 = 9.", 4),
    ],
)
def test_a_step_is_scored_by_how_much_of_it_is_right(said: str, score: int) -> None:
    assert make_wordy.score(PACKS, said) == score


def test_a_verification_asks_what_is_served_and_every_right_answer_counts(target: wordy_examples.WordyExamples) -> None:
    for _ in range(200):
        situation = target.situation()
        candidates = [*situation.ways, target.corrupt(situation)]
        asked, example = target.builder.choose(situation.context, candidates), target.choose(situation, candidates)
        right = [option for option, each in zip(asked.option_ids[1:], candidates, strict=True) if target.is_right(situation, each)]
        assert list(example.ids) == list(asked.ids)
        assert example.options == tuple(right)
        assert len(right) >= len(situation.ways), "a corrupted step may be right by chance"
        for candidate in candidates:
            scored = target.score(situation, candidate)
            assert list(scored.ids) == list(target.builder.score(situation.context, candidate).ids)
            assert scored.options == (target.digits[target.score_of(situation, candidate)],)


def test_a_reward_model_is_asked_about_the_step_and_the_steps_before_are_right(target: wordy_examples.WordyExamples) -> None:
    prompt = load_reward_model(ROOT / "graphs/rewards/prm-wordy.yaml", engine_specs()).prompt
    asks = RewardPromptBuilder(target.builder.tokenizer, prompt, "prm-wordy")
    good, bad = asks.option_ids
    for _ in range(100):
        situation = target.situation()
        for candidate in (*situation.ways, target.corrupt(situation)):
            example, right = target.judged(situation, candidate, asks), target.is_right(situation, candidate)
            assert example.options == ((good if right else bad),)
            said = target.builder.tokenizer.decode(example.ids)
            assert said.endswith("\n\n")
            assert situation.problem.text in said
            if right:
                assert tuple(example.ids[: len(situation.context) + len(candidate)]) == (*situation.context, *candidate)
            assert example.next_token.count(good) in (0, situation.place), "a blank line behind a right step is answered with good"
