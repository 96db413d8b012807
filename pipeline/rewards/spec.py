"""Loads the file of a reward model for `pipeline score`: a file and settings enter, a `RewardSpec` leaves."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.bundled import find_file
from pipeline.graph.loader import Backends, apply_setting
from pipeline.graph.rewards import FORMS, RewardSpec, read_reward_file


def load_reward_model(path: Path, backends: Backends, settings: Sequence[str] = ()) -> RewardSpec:
    """The reward model in a file for `--prm`, which is a path or a bundled name; raises `GraphError`.

    `settings`: `engines.reward.NAME=VALUE`, as of `--set`.
    """
    document = read_reward_file(find_file(path, "reward model"))
    for setting in settings:
        with document.noted():
            apply_setting(setting, document, ())
    reward, prompt = document.tagged(("reward",), "backend", backends), document.tagged(("prompt",), "form", FORMS)
    document.check()
    assert reward is not None
    assert prompt is not None
    return RewardSpec(reward=reward, prompt=prompt)
