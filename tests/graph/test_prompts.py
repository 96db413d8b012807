"""The block `prompts` of a graph: bundled files, and one sentence for whatever is wrong with one."""

from pathlib import Path

import pytest

from pipeline.graph.files import bundled_files, read_file
from pipeline.graph.load import decode_file
from pipeline.graph.plan import Plan
from pipeline.graph.prompts import DEFAULT_PROMPTS, Prompts
from pipeline.run.prepare import load_plan
from tests.support.paths import ROOT, SIM

SPECCOT = "\n".join(line for line in (ROOT / "graphs/speccot.yaml").read_text().splitlines() if not line.lstrip().startswith("prompts:"))


def graph_with(folder: Path, prompts: str) -> Plan:
    """SpecCoT's graph with a block of prompts."""
    path = folder / "graph.yaml"
    path.write_text(SPECCOT.replace("engines: engines/tiny.yaml", f"engines: {ROOT}/graphs/engines/tiny.yaml\nprompts: {prompts}"))
    return load_plan(path)


def test_a_file_is_next_to_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path, tmp_path / "mine"):
        folder.mkdir(exist_ok=True)
        (folder / "prompts.yaml").write_text(f"system: Of {folder.name}.")
    engines, preset = tmp_path / "mine/engines.yaml", tmp_path / "mine/preset.yaml"
    engines.write_text(f"params: {{speccot: {{prompts: prompts.yaml}}}}\n{SIM.read_text()}")
    preset.write_text("set: {prompts: prompts.yaml}")
    monkeypatch.chdir(tmp_path)

    def system(engines: Path | None, *settings: str) -> str | None:
        return load_plan(Path("speccot"), engines, settings).prompts.system

    assert system(engines) == system(None, f"preset={preset}") == "Of mine."
    assert system(engines, "prompts=prompts.yaml") == f"Of {tmp_path.name}."


@pytest.mark.parametrize("name", bundled_files("prompts file"))
def test_every_bundled_file_is_whole_and_is_a_preset_of_a_graph(tmp_path: Path, name: str) -> None:
    prompts = decode_file(read_file(name, "prompts file"), Prompts)
    assert (prompts == DEFAULT_PROMPTS) == (name == "default")
    assert graph_with(tmp_path, name).prompts == prompts


def test_a_text_may_begin_with_a_dollar_sign(tmp_path: Path) -> None:
    found = graph_with(tmp_path, "{system: '$5 is a price.', problem: '$$x$$ {{problem}}', trial: $}")
    assert (found.prompts.system, found.prompts.problem, found.prompts.trial) == ("$5 is a price.", "$$x$$ {{problem}}", "$")


@pytest.mark.parametrize(
    ("engines", "prompts"),
    [("servers", "published"), ("qwq-r1_1.5b-2x48gb", "published"), ("tiny", "default"), ("sim-2xh100", "default")],
)
def test_an_engines_file_names_the_prompts_that_suit_its_judge(engines: str, prompts: str) -> None:
    for graph in ("specreason", "gated", "scot", "best-of-n"):
        plan = load_plan(Path(graph), Path(engines))
        assert (plan.params["prompts"], plan.prompts) == (prompts, decode_file(read_file(prompts, "prompts file"), Prompts))
        assert plan.prompts.problem == DEFAULT_PROMPTS.problem, "as of every other system"
        assert load_plan(Path(graph), Path(engines), ("prompts=short",)).params["prompts"] == "short"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "True?"),
        (("yes", "no"), "True?\n\n(A) yes\n(B) no\n\nOne option is right. The final answer is its letter alone: A or B."),
        (("1", "2", "3"), "True?\n\n(A) 1\n(B) 2\n(C) 3\n\nOne option is right. The final answer is its letter alone: A, B or C."),
    ],
)
def test_options_are_lettered_behind_their_problem(options: tuple[str, ...], text: str) -> None:
    assert DEFAULT_PROMPTS.with_options("True?", options) == text
    assert DEFAULT_PROMPTS.asked("True?", options).startswith(text)
    assert Prompts(options="").with_options("True?", options) == "True?", "who wants none has none"
    own = Prompts(options=" Choices:\n{{options}}", option="{{letter}}. {{option}}")
    assert own.with_options("True?", options) == (
        "True?" + (" Choices:\n" if options else "") + "\n".join(map("{}. {}".format, "ABC", options))
    )
