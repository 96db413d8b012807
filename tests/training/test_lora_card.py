"""Model cards: what the hub reads, and what a person needs."""

from typing import Any

import msgspec
import yaml

from pipeline.training.lora.card import adapter_card, merged_card
from pipeline.training.lora.config import SelectConfig
from pipeline.training.lora.data import Asking, FileCounts
from pipeline.training.lora.log import Row, StepRow, ValidationRow
from pipeline.training.lora.output import Outcome, Record

CONFIG = SelectConfig(model="Qwen/QwQ-32B", data=("a|b.parquet",), output="adapters/mine")
FILE = FileCounts(name="a|b.parquet", form="choices", sha256="a" * 64, train=5, validation=1, too_long=2, runs=("run r1 of scot, M",))
RECORD = Record(
    task="select",
    model="Qwen/QwQ-32B",
    weights_sha256="b" * 64,
    files=(FILE,),
    processes=1,
    versions={"trl": "1.16.0"},
    commands=("pipeline train select train.yaml",),
    outcome=Outcome(steps=40, trained_parameters=8_388_608, parameters=32_000_000_000, device="H100", precision="bfloat16", seconds=2.0),
)
ROWS: list[Row] = [
    ValidationRow(step=0, epoch=0.0, loss=4.0, class_1_accuracy=0.0),
    StepRow(step=10, epoch=1.0, loss=3.0, learning_rate=1e-4, grad_norm=1.0),
    StepRow(step=40, epoch=4.0, loss=0.5, learning_rate=1e-4, grad_norm=1.0),
    *(ValidationRow(step=step, epoch=4.0, loss=0.4, class_1_accuracy=0.9) for step in range(1, 41)),
]


def card(**values: Any) -> tuple[dict[str, Any], str]:
    said: dict[str, Any] = {"name": "mine", "folder": "adapters/mine", "base_model": "Qwen/QwQ-32B", "on_hub": True, "config": CONFIG}
    text = adapter_card(**{**said, "record": RECORD, "rows": ROWS, **values})
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


def test_the_header_is_what_the_hub_reads() -> None:
    head, _ = card()
    assert head["base_model"] == "Qwen/QwQ-32B"
    assert (head["library_name"], head["base_model_relation"]) == ("peft", "adapter")
    assert "base_model" not in card(on_hub=False)[0], "the hub knows no folders"


def test_the_body_has_all_that_it_takes_to_do_it_again() -> None:
    _, body = card()
    assert f"weights sha256 `{'b' * 64}`" in body
    assert f"| a\\|b.parquet | choices | 5 | 1 | 2 too long | `{'a' * 64}` |" in body
    assert "- run r1 of scot, M" in body
    assert "Training loss 3 at step 10, 0.5 at step 40." in body
    assert body.count("| 0.4 | 0.9 |") == 11, "of 41 validations twelve are shown"
    assert "| 0 | 4 | 0 |" in body
    assert "learning_rate: 0.0001" in body
    assert "pipeline train select train.yaml" in body
    assert "--set adapter=selection" in body


def serving(task: str, *asked: Asking) -> list[str]:
    """The commands under `Serving` of a card about data that were asked so."""
    record = msgspec.structs.replace(RECORD, task=task, files=(msgspec.structs.replace(FILE, asked=asked),))
    _, body = card(record=record)
    return [line for line in body.partition("## Data")[0].splitlines() if line.startswith("pipeline ")]


def test_it_is_served_with_the_prompts_of_its_data() -> None:
    published, step = Asking(graph="scot", prompts="scot"), Asking(graph="speccot", prompts="my prompts.yaml")
    run = "pipeline run scot --engines FILE --set adapter=selection --set prompts=scot --input FILE"
    assert serving("select", published) == [run]
    other = "pipeline run speccot --engines FILE --set adapter=selection --set 'prompts=my prompts.yaml' --input FILE"
    assert serving("select", published, step) == [run, other]
    unknown = "pipeline run scot --engines FILE --set adapter=selection --set prompts=FILE --input FILE"
    assert serving("select", Asking(graph="scot", prompts=None)) == [unknown]
    assert serving("select") == [unknown], "a record of an earlier version"
    for graph in ("cascade", "my graph"):  # no param for it, and no bundled graph
        [command] = serving("select", Asking(graph=graph, prompts="default"))
        assert command == (
            "pipeline run FILE --engines FILE --set prompts=default --input FILE  "
            f"# the graph {graph!r}, with `adapter: selection` at the stage that judges"
        )
    merge = "pipeline train merge adapters/mine -o adapters/mine-merged"
    for graph in ("scot", "target"):
        assert serving("draft", Asking(graph=graph, prompts="default")) == [
            merge,
            "pipeline run scot --engines FILE --set prompts=default --input FILE",
        ]


def test_a_merged_model_says_what_is_in_it() -> None:
    text = merged_card("both", "Qwen/QwQ-32B", True, "adapters/mine", "e" * 64, RECORD, "pipeline train merge adapters/mine -o both")
    head = yaml.safe_load(text.split("---\n")[1])
    assert (head["base_model"], head["base_model_relation"], head["library_name"]) == ("Qwen/QwQ-32B", "merge", "transformers")
    assert f"sha256 `{'e' * 64}`" in text
    assert "not hashed" in merged_card("both", "m", False, "a", "e" * 64, None, "c")
