"""The tree, line by line."""

from collections.abc import Callable

from pipeline.graph.plan import Plan
from pipeline.show.graph_text import engines_of, text

Load = Callable[..., Plan]


def test_roles_look_the_same_on_every_drawing(plan: Load) -> None:
    assert list(engines_of(plan("speccot"))) == list(engines_of(plan("specreason"))) == ["target", "draft"]


def test_the_tree_of_a_graph(plan: Load) -> None:
    speccot = plan("speccot")
    assert (
        text(speccot)
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


def test_prompts_that_are_not_the_default_are_named(plan: Load) -> None:
    other = plan("scot", "prompts=published")
    assert "  prompts published" in text(other).splitlines()
    assert "prompts" not in text(plan("scot"))


def test_the_tree_says_what_runs_at_the_same_time_and_what_instead(nasty: Plan) -> None:
    lines = text(nasty).splitlines()
    place = lines.index("├─ at the same time")
    assert [line[:10].rstrip() for line in lines[place + 1 : place + 3]] == ["│  ├─ ○ on", "│  └─ ● tw"]
    assert "├─ either" in lines
    assert "  ◆ third" in {line[:9] for line in lines}
