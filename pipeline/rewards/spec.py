"""Loads the file of a reward model for `pipeline score`: a file and settings enter, a `RewardSpec` leaves."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.bundled import find_file
from pipeline.graph.load import Backends, apply_setting
from pipeline.graph.rewards import FORMS, RewardSpec, read_reward_file


def load_reward_model(path: Path, backends: Backends, settings: Sequence[str] = ()) -> RewardSpec:
    """The reward model in a file for `--prm`, which is a path or a bundled name; raises `GraphError`.

    `settings`: `engines.reward.NAME=VALUE`, as of `--set`.
    """
    document = read_reward_file(find_file(path, "reward model"))
    for setting in settings:
        apply_setting(setting, document, ())
    return RewardSpec(reward=document.tagged(("reward",), "backend", backends), prompt=document.tagged(("prompt",), "form", FORMS))
