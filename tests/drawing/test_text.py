"""The tree, line by line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.drawing.captions import mean_time
from pipeline.drawing.run import count_run, engines_of
from pipeline.drawing.text import text
from pipeline.graph.plan import Plan

Load = Callable[..., Plan]


def test_roles_look_the_same_on_every_drawing(plan: Load) -> None:
    assert list(engines_of(plan("speccot"))) == list(engines_of(plan("specreason"))) == ["target", "draft"]


def test_the_tree_of_a_graph(plan: Load) -> None:
    speccot = plan("speccot")
    assert (
        text(speccot, engines_of(speccot))
        == f"""speccot, digest {speccot.digest}
  ● target  torch bundled:tiny-target
  ○ draft   torch bundled:tiny-draft

├─ ● guidance: generate, unit=tokens max_tokens=8 temperature=0.6
├─ ↻ reason: repeat
│  ├─ ○ draft: draft, unit=step candidates=5 max_tokens=256 temperature=0.6
│  ├─ ● verify: choose, unit=step
│  │  ├─ accepted
│  │  └─ rejected → fallback
│  ├─ ● fallback: generate, unit=step max_tokens=256 temperature=0.6, when verify rejected
│  └─ until
│     ├─ thought_closed
│     ├─ max_steps 256
│     ├─ token_budget 8,192
│     └─ context_length
└─ ● answer: answer, max_tokens=1,024 budget=thought token_budget=8,192 temperature=0.6
"""
    )


def test_prompts_that_the_judges_model_chose_are_said(plan: Load) -> None:
    other = plan("scot", "engines.target.model=org/large")
    assert "  prompts published" in text(other, engines_of(other)).splitlines()
    assert "prompts" not in text(plan("scot"), {})


def test_the_tree_says_what_runs_at_the_same_time_and_what_instead(nasty: Plan) -> None:
    lines = text(nasty, engines_of(nasty)).splitlines()
    place = lines.index("├─ at the same time")
    assert [line[:10].rstrip() for line in lines[place + 1 : place + 3]] == ["│  ├─ ○ on", "│  └─ ● tw"]
    assert "├─ either" in lines
    assert "  ◆ third" in {line[:9] for line in lines}


def test_the_tree_of_a_run_has_its_numbers_in_columns(plan: Load, run_folder: Path) -> None:
    speccot = plan("speccot")
    lines = text(speccot, engines_of(speccot), count_run(run_folder, "r")).splitlines()
    [heading] = [line for line in lines if line.endswith("calls  failed  in flight  waiting")]
    [guidance] = [line for line in lines if "guidance" in line]
    assert lines[1] == "run r: 12 chains"
    assert guidance[: heading.index("calls") + len("calls")].endswith(" 12")
    assert len(guidance) == len(heading)
    assert "│     ├─ thought_closed           12 (100.0%)" in lines


@pytest.mark.parametrize(
    ("total", "count", "said"), [(3.0, 2, "1.5 s"), (0.044, 1, "44 ms"), (6e-5, 2, "30 µs"), (0.0, 5, "0 s"), (0.0, 0, "-")]
)
def test_mean_times_have_the_unit_that_fits(total: float, count: int, said: str) -> None:
    assert mean_time(total, count) == said
