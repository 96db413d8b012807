"""Figures of a validation, against a plain loop."""

import math
import random

import numpy as np
import pytest

from pipeline.training.lora.measures import CLASS_1, CLASS_2, SCORED, draft_figures, select_figures


def test_accuracy_by_class() -> None:
    draw = random.Random(1)
    rows = [(draw.random(), draw.random(), float(draw.random() < 0.5), draw.choice([CLASS_1, CLASS_2]), draw.random()) for _ in range(50)]
    found = select_figures(np.array(rows))
    for number in (CLASS_1, CLASS_2):
        of_class = [row for row in rows if row[3] == number]
        assert found[f"class_{number}_examples"] == len(of_class)
        assert found[f"class_{number}_accuracy"] == pytest.approx(sum(row[2] for row in of_class) / len(of_class))
        assert found[f"class_{number}_chance"] == pytest.approx(sum(row[4] for row in of_class) / len(of_class))
    assert found["loss"] == pytest.approx(sum(row[0] for row in rows) / 50)
    assert found["mass"] == pytest.approx(sum(row[1] for row in rows) / 50)
    assert found["accuracy"] == pytest.approx(sum(row[2] for row in rows) / 50)


def test_scores_have_no_classes() -> None:
    found = select_figures(np.array([(1.0, 0.9, 1.0, SCORED, 0.3), (2.0, 0.7, 0.0, SCORED, 0.7)]))
    assert found == {"loss": 1.5, "mass": pytest.approx(0.8), "accuracy": 0.5, "chance": 0.5}


def test_perplexity_is_of_tokens_not_of_replies() -> None:
    found = draft_figures(np.array([(6.0, 2.0), (2.0, 6.0)]))
    assert found == {"loss": 1.0, "perplexity": pytest.approx(math.e)}


def test_a_hopeless_loss_has_a_perplexity_that_can_be_written() -> None:
    assert math.isfinite(draft_figures(np.array([(1e9, 1.0)]))["perplexity"])
