"""Figures of the docs are those of their results files, and pages are as their scripts wrote them."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import structs

from pipeline.session.options import RunOptions
from pipeline.session.run import run
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems

sys.path.insert(0, str(ROOT / "bench"))
import figures
import kept_runs
import recording
import tables
import views

UNITS = r"(?:%|s|us|ms|MB|MiB|GiB|times|points|minutes|tokens/s|problems/s|requests/s)"
FIGURE = re.compile(rf"(?<![\w@=<>.-])\d[\d.,]*\s?{UNITS}(?![\w/])")
DOCS = [path.relative_to(ROOT).as_posix() for path in figures.docs()]
MINI = """
[mini]
tables.mini = { minutes = 0 }
tables.foreign = { minutes = 0, needs = "no_such_package" }

[page]
tables.page = { page = "page.md", minutes = 0 }
"""
SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {bench!r})
from recording import Recording
Recording("mini", Path.cwd()).write(Path(sys.argv[-1]), {{"printed": ["it took 3 s"]}})
"""


def typed_in(text: str, sentences: bool = True) -> list[str]:
    """Lines with measured figures outside of the markers: of tables, and of sentences; aims and code blocks are none."""
    text = re.sub(r"```.*?```", "", figures.BLOCK.sub("", text), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith("Aim")]
    return [line for line in lines if re.search(r"^\|.*\| *\d", line) or (sentences and FIGURE.search(line))]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one script and a page of documentation."""
    (tmp_path / "bench/results").mkdir(parents=True)
    (tmp_path / "bench/figures.toml").write_text(MINI)
    (tmp_path / "bench/mini.py").write_text(SCRIPT.format(bench=str(ROOT / "bench")))
    (tmp_path / "README.md").write_text("# Speed\n\n<!-- figures: mini -->\ntyped in: 2 s\n<!-- /figures -->\n\nThe end.\n")
    return tmp_path


@pytest.fixture
def command(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """bench/figures.py in that repository: its exit code and what it printed."""
    monkeypatch.setitem(tables.TABLES, "mini", tables.bundled_run)

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(figures.main, [*arguments, "--root", str(repository)])
        return result.exit_code, result.output

    return run


@pytest.mark.parametrize("name", DOCS)
def test_docs_have_what_the_results_files_have(name: str) -> None:
    text = (ROOT / name).read_text()
    assert figures.rendered(text) == text, "`python bench/figures.py --render` writes it"
    assert text.count("<!-- figures:") == len(figures.BLOCK.findall(text)), "a marker is not closed"


@pytest.mark.parametrize("name", DOCS)
def test_no_figure_is_typed_in(name: str) -> None:
    assert typed_in((ROOT / name).read_text(), sentences=not name.startswith("docs/")) == []  # a guide says what is set, such as limits


@pytest.mark.parametrize("line", ["It takes 7.3 s.", "| run | 1,815 |", "with 410 MiB at most", "91.3% of the time", "1.21 times as fast"])
def test_a_figure_that_is_typed_in_is_found(line: str) -> None:
    assert typed_in(f"Before.\n{line}\nAfter.") == [line]
    assert typed_in(f"<!-- figures: mini -->\n{line}\n<!-- /figures -->") == []


def test_every_results_file_and_script_is_declared_and_every_table_shown() -> None:
    known = figures.scripts()
    shown = [name for doc in DOCS for name in figures.BLOCK.findall((ROOT / doc).read_text())]
    assert sorted({path.stem for path in (ROOT / recording.RESULTS).iterdir()} - known.keys()) == []
    assert sorted(set(shown) ^ {name for name, (key, _) in known.items() if key in tables.TABLES} ^ views.VIEWS.keys()) == []
    for name, (key, script) in known.items():
        assert (ROOT / f"bench/{key}.py").exists()
        assert key in tables.TABLES or script.tables[name].page, f"{name} has neither a table nor a page"


def test_pages_are_as_their_scripts_wrote_them() -> None:
    for name, (_, script) in figures.scripts().items():
        if page := script.tables[name].page:
            results = recording.results_of(name)
            if name in figures.PAGES:
                assert figures.PAGES[name](results) == (ROOT / page).read_text(), "`python bench/figures.py --render` writes it"
            else:
                assert recording.page_digest(ROOT / page) == results["measured"]["page"], f"{page} was edited"


def test_every_chart_of_a_page_is_there_and_no_other() -> None:
    for page in ("scaling", "frontier"):
        shown = re.findall(rf"\]\(({page}/[^)]+)\)", (ROOT / f"bench/{page}.md").read_text())
        assert sorted(shown) == sorted(f"{page}/{path.name}" for path in (ROOT / "bench" / page).iterdir())


@pytest.mark.slow
def test_measuring_writes_the_docs(repository: Path, command: Callable[..., tuple[int, str]]) -> None:
    assert command("mini")[0] == 0
    text = (repository / "README.md").read_text()
    assert "it took 3 s\n```\n<!-- /figures -->\n\nThe end.\n" in text
    assert "typed in" not in text
    assert "`python bench/mini.py` at no commit" in text


def test_what_is_not_measured_is_said(repository: Path, command: Callable[..., tuple[int, str]]) -> None:
    code, said = command("foreign")
    assert (code, said) == (0, "foreign: left out, no_such_package is not installed\n")
    assert "Not measured yet: `python bench/figures.py mini`" in (repository / "README.md").read_text()
    code, said = command("nonsense")
    assert code == 2
    assert "nonsense: no such table; bench/figures.toml has foreign, mini, page" in said
    (repository / "README.md").write_text("<!-- figures: nonsense -->\n<!-- /figures -->\n")
    assert "figures: nonsense: no such table" in command("--render")[1]
    assert [line.split()[0] for line in command("--list")[1].splitlines()] == ["mini", "foreign", "page"]


@pytest.mark.slow
def test_a_script_that_fails_is_named_and_the_others_are_measured(repository: Path, command: Callable[..., tuple[int, str]]) -> None:
    (repository / "bench/page.py").write_text("raise SystemExit(3)\n")
    code, said = command("page", "mini")
    assert code == 1
    assert "not measured: page; why stands above" in said
    assert "it took 3 s" in (repository / "README.md").read_text()


def test_a_page_is_written_with_its_results(repository: Path) -> None:
    output = repository / recording.RESULTS / "page.json"
    recording.Recording("page", repository).write(output, {}, "# Speed\n")
    assert (repository / "page.md").read_text() == "# Speed\n"
    assert json.loads(output.read_bytes())["measured"]["page"] == recording.page_digest(repository / "page.md")


@pytest.mark.slow
def test_no_figure_is_made_of_a_run_with_failed_chains(tmp_path: Path) -> None:
    problems = write_problems(tmp_path, 2, (b'{"problem_id": "lost"}',))
    options = RunOptions(graph=ROOT / "graphs/target.yaml", engines=SIM, input=problems, output=tmp_path / "run")
    with pytest.raises(recording.click.ClickException, match="run: 1 chains failed; no figure is made of such a run"):
        kept_runs.whole(run(options))
    assert kept_runs.whole(run(structs.replace(options, limit=2, output=tmp_path / "whole"))).done == 2


def test_what_is_continued_is_as_old_as_its_beginning(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    first = recording.go_on("bench/papers.py", folder)
    kept = json.loads((folder / recording.KEPT).read_bytes())
    (folder / recording.KEPT).write_text(json.dumps(kept | {"commit": "abc"}))
    again = recording.go_on("bench/papers.py", folder)
    assert (first.measured["commit"], again.measured["commit"]) == (kept["commit"], "abc")
    (folder / recording.KEPT).unlink()
    (folder / "target").mkdir()
    with pytest.raises(recording.click.ClickException, match="of a state of the code that is not recorded: move it away"):
        recording.go_on("bench/papers.py", folder)


def test_the_picture_of_the_docs_is_of_the_results() -> None:
    assert (ROOT / views.PICTURE).read_text() == views.picture(ROOT), "`python bench/figures.py --render` draws it"
