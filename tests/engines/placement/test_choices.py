"""What `--model ROLE=VALUE` may say."""

from pathlib import Path

import pytest

from pipeline.engines.placement.choices import Served, Weights, pairs, read_choices
from pipeline.errors import UsageError


def test_a_role_is_played_by_a_hub_name_a_bundled_model_or_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    found = read_choices(pairs(["target=Qwen/QwQ-32B", "draft=bundled:tiny-draft", "other=mine"]))
    assert found == {
        "target": Weights("Qwen/QwQ-32B"),
        "draft": Weights("bundled:tiny-draft"),
        "other": Weights(str(tmp_path / "mine")),
    }


@pytest.mark.parametrize(
    ("value", "served"),
    [
        ("http://127.0.0.1:8000/v1", Served("http://127.0.0.1:8000/v1")),
        ("http://127.0.0.1:8000/v1/#Qwen/QwQ-32B", Served("http://127.0.0.1:8000/v1", "Qwen/QwQ-32B")),
        ("chat+https://models.example/v1#large", Served("https://models.example/v1", "large", chat=True)),
    ],
)
def test_a_role_is_played_by_a_server(value: str, served: Served) -> None:
    assert read_choices({"target": value}) == {"target": served}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["Qwen/QwQ-32B"], "--model Qwen/QwQ-32B: expected ROLE=VALUE, such as target=Qwen/QwQ-32B"),
        (["target="], "expected ROLE=VALUE"),
        (["target=a/b", "target=c/d"], "the role is given twice"),
        (["target=http://localhost:8000"], "must include the path, up to /v1: target=http://localhost:8000/v1"),
        (["target=./nowhere"], "there is no such folder; expected a Hugging Face name, a folder"),
        (["target=s3://bucket/model"], "is not a valid model"),
    ],
)
def test_any_other_value_is_refused(values: list[str], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_choices(pairs(values))
    assert said in str(raised.value)
