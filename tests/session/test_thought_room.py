"""What a plan with simulated thoughts of measured length is checked for, and which limits of it are named before a run."""

from pathlib import Path

import pytest

from pipeline.engines.sim.lengths import PRESETS
from pipeline.engines.sim.spec import SimSpec
from pipeline.errors import GraphError, UsageError
from pipeline.graph.plan import Plan
from pipeline.session.notices import notices
from pipeline.session.observer import Observer
from pipeline.session.options import RunOptions, resume_options
from pipeline.session.prepare import load_plan
from pipeline.session.run import run
from tests.support.runs import solve, write_problems

SIM = Path("sim-2xh100")
ROOMY = ("token_budget=30720", "max_steps=1000")
IN_ALL_GRAPHS = (*ROOMY, "draft_tokens=30720")


def plan(graph: str, *settings: str) -> Plan:
    return load_plan(Path(graph), SIM, settings)


def test_a_budget_that_cuts_many_thoughts_is_named_once() -> None:
    [said] = notices(plan("specreason", "engines.*.text.preset=aime", "max_steps=100"))
    assert said.startswith("warning: max_steps (100) cuts 43% and token_budget (8,192) cuts 15% of the simulated thoughts, ")
    assert said.endswith("preset `aime`; --set token_budget=30720 --set max_steps=1000 leaves enough room for every preset")
    [said] = notices(plan("target", "engines.*.text.preset=aime"))
    assert said.startswith("warning: max_tokens of response (8,192) cuts 15% of ")
    assert said.endswith("; --set token_budget=30720 leaves enough room for every preset")


def test_a_context_that_cuts_many_thoughts_is_named() -> None:
    [said] = notices(plan("specreason", "engines.*.text.preset=aime", *ROOMY, "engines.draft.max_model_len=4096"))
    assert said.startswith("warning: max_model_len (4,096) cuts 53% of ")
    assert said.endswith("; --set 'engines.*.max_model_len=32768' leaves enough room for every preset")


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("graph", ["speccot", "specreason", "scot", "target", "best-of-n"])
def test_there_is_room_for_every_preset(graph: str, preset: str) -> None:
    params = load_plan(Path(graph), SIM).params
    settings = [setting for setting in IN_ALL_GRAPHS if setting.partition("=")[0] in params]
    said = notices(plan(graph, f"engines.*.text.preset={preset}", *settings))
    assert [sentence for sentence in said if "drafts may have" not in sentence] == []


def test_without_measured_lengths_nothing_is_said() -> None:
    assert notices(plan("specreason", "token_budget=50")) == []


def test_lengths_of_a_file_are_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "lengths.yaml").write_text("steps: {p10: 300, p90: 500}\nstep_tokens: [40]\n")
    [said] = notices(plan("specreason", f"engines.*.text.lengths={tmp_path / 'lengths.yaml'}"))
    assert said.startswith("warning: max_steps (256) cuts 98% and token_budget (8,192) cuts 100% of ")
    assert said.endswith("whose lengths are those of `text.lengths`; set it higher")


def test_engines_that_disagree_on_the_number_of_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError) as error:
        plan("speccot", "engines.target.text.preset=math")
    assert str(error.value) == (
        "engine 'target': text: its thoughts differ in numbers of steps from those of 'draft', which continues them; "
        "give both the same `preset`, or `lengths` with the same `steps`"
    )
    (tmp_path / "steps.yaml").write_text("steps: [5, 9]\n")
    lengths = f"engines.*.text.lengths={tmp_path / 'steps.yaml'}"
    agreed = plan("speccot", lengths, "engines.draft.text.step_tokens_mean=20")  # tokens of a step may differ
    specs = [spec.text for spec in agreed.engines.values() if isinstance(spec, SimSpec)]
    assert [text.distribution("steps") for text in specs] == [specs[0].distribution("steps")] * 2
    assert {text.step_tokens_mean for text in specs} == {20, 40}
    assert plan("target", "engines.target.text.preset=math").engines.keys() == {"target"}


@pytest.mark.slow
def test_a_run_says_what_is_cut_and_holds_the_lengths_it_had(tmp_path: Path) -> None:
    """So that it can be resumed, and is refused where the file says something else by then."""
    lengths = tmp_path / "lengths.yaml"
    lengths.write_text("steps: [2, 3]\nstep_tokens: [9]\n")
    said: list[str] = []

    class Listener(Observer):
        def tell(self, sentence: str) -> None:
            said.append(sentence)

    settings = (f"engines.*.text.lengths={lengths}", "token_budget=10")
    options = RunOptions(
        graph=Path("specreason"), engines=SIM, input=write_problems(tmp_path, 1), output=tmp_path / "run", settings=settings
    )
    assert run(options, Listener()).exit_code == 0
    assert [sentence for sentence in said if "cuts" in sentence] == [
        "warning: token_budget (10) cuts 100% of the simulated thoughts, whose lengths are those of `text.lengths`; set it higher"
    ]
    assert run(resume_options(tmp_path / "run")).nothing_to_do
    lengths.write_text("steps: [2, 4]\nstep_tokens: [9]\n")
    with pytest.raises(UsageError, match=r"engines.draft.text is .*'steps': \(2.0, 4.0\).*, was .*'steps': \(2.0, 3.0\)"):
        run(resume_options(tmp_path / "run"))


def test_a_run_of_a_preset_is_finished_and_has_its_steps(tmp_path: Path) -> None:
    settings = ("engines.*.text.preset=gsm8k", "engines.*.text.difficulty=beta", *ROOMY)
    result = solve(tmp_path, input=write_problems(tmp_path, 4), settings=settings)
    assert (result.exit_code, result.done) == (0, 4)
