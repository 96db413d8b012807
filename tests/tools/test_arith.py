"""The bundled models' data, tokenizer and training sequences: fast checks without training."""

import make_arith
import pyarrow.parquet as pq
import pytest
import tiny_examples
import tiny_tokenizer

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.graph.prompts import DELIMITER, WORDINGS
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer.save(folder)
    return HFTokenizer(str(folder))


def test_the_committed_rows_are_what_the_seed_gives_and_no_problem_is_there_twice():
    drawn = make_arith.training(seed=0)
    texts = {next(drawn).text for _ in range(1000)}
    for name in make_arith.SPLIT_SEEDS:
        rows, made = pq.read_table(ROOT / f"datasets/arith/{name}.parquet").to_pylist(), make_arith.split(name)
        assert [(row["problem"], row["answer"], tuple(row["steps"])) for row in rows] == [(p.text, str(p.answer), p.steps) for p in made]
        assert len({row["problem_id"] for row in rows}) == len({row["problem"] for row in rows} - texts) == 500
        texts |= {row["problem"] for row in rows}


def test_every_step_is_true_and_leads_to_the_answer():
    for each in make_arith.split("test"):
        for step in each.steps:
            left, right = step.rstrip(".").split(", so ")[-1].removeprefix("Then ").split(" = ")
            first, sign, second = left.split()
            assert {"+": int(first) + int(second), "-": int(first) - int(second), "*": int(first) * int(second)}[sign] == int(right)
        assert each.steps[-1].endswith(f"= {each.answer}.")


def test_fixed_texts_are_one_token_each(tokenizer):
    numbers = [text for i in range(100) for text in (str(i), f" {i}")]
    fixed = [*WORDINGS, DELIMITER, "<think>", "</think>", "\\boxed{", "}", *(f"[{i}] " for i in range(1, 10)), *numbers]
    assert [text for text in fixed if len(tokenizer.encode(text)) != 1] == []


def test_a_verification_asks_exactly_what_is_served_and_every_right_candidate_is_an_answer(tokenizer):
    examples, wrong = tiny_examples.Examples(tokenizer, seed=0), (5, 6, 7)
    situation = examples.situation()
    asked, example = examples.builder.score(situation.context, situation.gold), examples.score(situation, situation.gold)
    assert (example.ids, example.options) == (asked.ids, asked.option_ids[9:])
    candidates = [wrong, situation.gold, wrong[:2]]
    asked, example = examples.builder.choose(situation.context, candidates), examples.choose(situation, candidates)
    assert (example.ids, example.options) == (asked.ids, asked.option_ids[2:3])
    assert examples.choose(situation, [wrong]).options == asked.option_ids[:1]
