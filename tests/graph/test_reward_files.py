"""Files of reward models: every one loads and fits the hardware it names, and every flaw is named with its place."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import GraphError
from pipeline.graph.load import load_reward_model
from pipeline.run.prepare import load_plan
from pipeline.stages.build import build_stages, builders_of
from pipeline.stages.reward import RewardJudgeSpec
from tests.support.paths import ROOT

FILES = sorted((ROOT / "graphs/rewards").glob("*.yaml"))
GOOD = 'reward: {backend: torch, model: m}\nprompt: {form: text, begin: "{problem}", step: "{step}"}\n'


class Untemplated(SimTokenizer):
    """A tokenizer as of Math-Shepherd's model."""

    def __init__(self) -> None:
        super().__init__()
        self.special_ids = {}

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        raise GraphError("m: its chat template fails", "it has none")


def load(folder: Path, content: str, *settings: str) -> Any:
    path = folder / "prm.yaml"
    path.write_text(content)
    return load_reward_model(path, settings)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_checked_in_file_loads_and_says_what_it_is(path: Path) -> None:
    spec = load_reward_model(path)[0]
    assert path.read_text().startswith("# ")
    assert isinstance(spec, TorchSpec | VllmSpec)


def test_settings_reach_the_engine(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD, "engines.reward.max_in_flight=7")[0].max_in_flight == 7
    assert load(tmp_path, GOOD)[1].good == "+"


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"--set engines.prm.core=1: expected engines.ROLE.NAME=VALUE"):
        load(tmp_path, GOOD, "engines.prm.core=1")
    with pytest.raises(GraphError, match="unknown key `form`"):
        load(tmp_path, GOOD, "engines.reward.form=chat")


def test_a_graph_takes_from_the_file_what_serves_the_model_and_how_it_is_asked(tmp_path: Path) -> None:
    plan = load_plan(ROOT / "graphs/rsd.yaml", None, ("prm=prm-tiny", "engines.reward.max_in_flight=3"))
    verify = next(node.spec for node in plan.stages() if node.name == "verify")
    assert isinstance(verify, RewardJudgeSpec)
    assert verify.prompt == load_reward_model(Path("prm-tiny"))[1]
    assert (plan.models["reward"], plan.engines["reward"].max_in_flight) == ("tiny-prm", 3)


def test_a_reward_model_needs_neither_chat_template_nor_reasoning_tags() -> None:
    plan = load_plan(ROOT / "graphs/rsd.yaml", None, ())
    builders = builders_of(plan, {"draft": SimTokenizer(), "target": SimTokenizer(), "reward": Untemplated()})
    assert "verify" in build_stages(plan, builders, "rsd")
    context = builders["reward"].generation("How many?")
    assert builders["reward"].tokenizer.decode(context).startswith("How many?")
