"""The log of a training: rows in a file, lines for a person."""

from pathlib import Path

import pytest

from pipeline.errors import InputError, RunError
from pipeline.training.lora.log import Log, StepRow, ValidationRow, read_log, validations


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def step(number: int, loss: float = 1.5) -> StepRow:
    return StepRow(step=number, epoch=number / 10, loss=loss, learning_rate=1e-4, grad_norm=2.0)


def test_lines_are_few_and_know_what_is_left(tmp_path: Path) -> None:
    clock, told = Clock(), list[str]()
    log = Log(tmp_path / "log.jsonl", told.append, now=clock)
    clock.now = 100.0  # the model is loaded, and measured
    log.write(ValidationRow(step=0, epoch=0.0, loss=2.0, accuracy=0.25, chance=0.2, mass=0.5), 40)
    for number in range(1, 41):
        clock.now += 3.0
        log.write(step(number), 40)
    assert told[:3] == [
        "step 0/40 · validation loss 2 · accuracy 25.0% (chance 20.0%) · mass 0.500",
        "step 1/40 · epoch 0.10 · loss 1.5 · learning rate 0.0001 · ETA 1:57",
        "step 5/40 · epoch 0.50 · loss 1.5 · learning rate 0.0001 · ETA 1:45",
    ]
    assert told[-1].startswith("step 40/40 ")
    assert len(read_log(tmp_path / "log.jsonl")) == 41


def test_classes_are_told_with_what_chance_reaches(tmp_path: Path) -> None:
    told = list[str]()
    figures = {"class_1_accuracy": 0.5, "class_1_chance": 0.25, "class_1_examples": 8.0}
    figures |= {"class_2_accuracy": 1.0, "class_2_chance": 0.2, "class_2_examples": 2.0, "accuracy": 0.6, "chance": 0.24, "mass": 0.9}
    Log(tmp_path / "log.jsonl", told.append).write(ValidationRow(step=4, epoch=1.0, loss=1.0, **figures), 4)
    [line] = told
    assert "class 1 50.0% (chance 25.0%, n 8) · class 2 100.0% (chance 20.0%, n 2) · accuracy 60.0% (chance 24.0%)" in line


def test_each_validation_is_shown_when_it_is_in_the_log(tmp_path: Path) -> None:
    path, shown = tmp_path / "log.jsonl", list[int]()
    log = Log(path, lambda line: None, show=lambda: shown.append(len(read_log(path))))
    for row in (ValidationRow(step=0, epoch=0.0, loss=2.0), step(1), ValidationRow(step=1, epoch=0.1, loss=1.0)):
        log.write(row, 2)
    assert shown == [1, 3]


def test_a_log_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = Log(path, lambda line: None)
    for number in (10, 20, 30):
        log.write(step(number), 40)
    with path.open("ab") as file:
        file.write(b'{"kind":"step","st')  # a kill in the middle of a row
    Log(path, lambda line: None, from_step=20).write(step(30, loss=0.5), 40)
    assert [(row.step, row.loss) for row in read_log(path)] == [(10, 1.5), (20, 1.5), (30, 0.5)]


def test_a_new_training_begins_a_new_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("old")
    Log(path, lambda line: None)
    assert read_log(path) == []
    assert read_log(tmp_path / "none.jsonl") == []


def test_a_lost_loss_ends_the_training(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl", lambda line: None)
    with pytest.raises(RunError, match="the loss is nan at step 3; lower learning_rate, or raise warmup, and start again"):
        log.write(step(3, float("nan")), 10)


def test_a_log_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(InputError, match=r"log.jsonl"):
        read_log(tmp_path / "log.jsonl")


def test_validations_alone(tmp_path: Path) -> None:
    rows = [step(1), ValidationRow(step=1, epoch=0.1, loss=1.0, perplexity=2.7)]
    assert [row.perplexity for row in validations(rows)] == [2.7]
