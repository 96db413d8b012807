"""The report of a training."""

from pipeline.report.page import is_page
from pipeline.training.lora.config import DraftConfig, SelectConfig
from pipeline.training.lora.data import FileCounts
from pipeline.training.lora.log import Row, StepRow, ValidationRow
from pipeline.training.lora.output import Record
from pipeline.training.lora.page import training_page

FILE = FileCounts(name="<a>.parquet", form="choices", sha256="a" * 64, train=5, validation=1)
RECORD = Record(task="select", model="m", weights_sha256=None, files=(FILE,), processes=1, versions={}, commands=("pipeline train",))
STEP = StepRow(step=10, epoch=1.0, loss=3.0, learning_rate=1e-4, grad_norm=1.0)


def test_curves_and_tables() -> None:
    figures = {"accuracy": 0.5, "chance": 0.2, "class_1_accuracy": 0.25, "class_1_chance": 0.2}
    rows: list[Row] = [ValidationRow(step=0, epoch=0.0, loss=4.0, **figures), STEP]
    html = training_page("mine", SelectConfig(model="m", data=("a",)), RECORD, rows)
    assert is_page(html[:4000])
    for text in ("Validation accuracy by class", "class 1: some option is right", "&lt;a&gt;.parquet", "lora.rank", "25.0%"):
        assert text in html


def test_a_draft_has_no_accuracies() -> None:
    rows: list[Row] = [ValidationRow(step=0, epoch=0.0, loss=4.0, perplexity=54.6), STEP]
    html = training_page("mine", DraftConfig(model="m", data=("a",)), RECORD, rows)
    assert "perplexity" in html
    assert "Validation accuracy" not in html


def test_a_training_that_goes_on_is_not_finished() -> None:
    html = training_page("mine", DraftConfig(model="m", data=("a",)), RECORD, [STEP])
    assert "not finished" in html


def test_nothing_was_held_back() -> None:
    assert "Validations" not in training_page("mine", DraftConfig(model="m", data=("a",)), RECORD, [STEP])
