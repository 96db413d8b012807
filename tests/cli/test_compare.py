"""`pipeline compare`: what it prints and writes, and that wrong input is one sentence and exit code 2."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.analysis.tables import named_queries
from pipeline.options import RunOptions
from pipeline.run.run import run
from tests.support.commands import pipeline
from tests.support.runs import solve, write_problems

pytestmark = pytest.mark.slow  # whole runs

ROOT = Path(__file__).parent.parent.parent
Compare = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of six problems: `target` and `speccot`, `seed` of another seed, `data` over other data."""
    place = tmp_path_factory.mktemp("runs")
    (place / "other.csv").write_text("problem,answer\nWhat is 1 + 1?,2\n")
    arith = ROOT / "datasets/arith/test.parquet"
    for name, graph, seed, input_ in (
        ("target", "target", 0, arith),
        ("speccot", "speccot", 0, arith),
        ("seed", "speccot", 1, arith),
        ("data", "target", 0, place / "other.csv"),
    ):
        engines = ROOT / "graphs/engines/sim-instant.yaml"
        options = RunOptions(
            graph=ROOT / f"graphs/{graph}.yaml", input=(str(input_),), engines=engines, limit=6, seed=seed, output=place / name
        )
        assert run(options).exit_code == 0
    return place


@pytest.fixture
def compare(folders: Path) -> Compare:
    """Exit code, stdout and stderr of the command, in the folder of the runs."""

    def called(*arguments: str | Path) -> tuple[int, str, str]:
        done = pipeline("compare", *arguments, cwd=folders)
        return done.returncode, done.stdout, done.stderr

    return called


def test_tables_are_printed_and_written_as_the_names_end(compare: Compare, tmp_path: Path) -> None:
    outputs = [tmp_path / f"tables{suffix}" for suffix in (".md", ".csv", ".json")]
    options = [part for path in outputs for part in ("--output", path)]
    code, out, err = compare("target", "speccot", *options)
    assert (code, err) == (0, "")
    assert out == outputs[0].read_text()
    assert "**Accuracy and speed**" in out
    assert outputs[1].read_text().startswith("run,dataset,pooled,graph,")
    assert json.loads(outputs[2].read_text())["baseline"] == "target"
    assert json.loads(compare("target", "speccot", "--json")[1])["baseline"] == "target"


def test_a_table_and_a_sentence_about_each_run(compare: Compare) -> None:
    alone = compare("speccot")[1]
    head = "| run | system | models | batch | accuracy | problems/s | kept tokens/s | times as fast | speed-up | = tokens | x rate |"
    assert head in alone
    assert alone.count("| speccot |") == 1
    assert "solve them with `pipeline run target`" in alone
    both = compare("target", "speccot", "data")[1]
    assert "| run | data | system |" in both
    assert "\nspeccot has no speed to compare\n" in both, "its engines cost no time"
    assert "`pipeline run target`" not in both


def test_a_table_of_a_paper_is_a_query_over_runs(compare: Compare, folders: Path) -> None:
    """By its name or as a file of one's own; `query` prints what it is made of."""
    by_name = compare("target", "speccot", "--table", "speccot-3")[1]
    (folders / "mine.sql").write_text(named_queries()["speccot-3"].sql)
    assert compare("target", "speccot", "--table", "mine.sql")[1].splitlines()[2:] == by_name.splitlines()[2:]
    [row] = json.loads(
        pipeline("query", "target", "speccot", "SELECT run, tokens FROM runs WHERE graph = 'speccot'", "--json", cwd=folders).stdout
    )
    assert (row["run"], row["tokens"]["low"], row["tokens"]["text"][-9:]) == ("speccot", None, "(too few)")
    joined = "SELECT runs.run, samples, count(*) AS n FROM runs JOIN chains USING (run) GROUP BY ALL ORDER BY run"
    assert json.loads(pipeline("query", "target", "speccot", joined, "--json", cwd=folders).stdout) == [
        {"run": "speccot", "samples": 1, "n": 6},
        {"run": "target", "samples": 1, "n": 6},
    ]


def test_the_sentence_says_how_many_times_as_fast(tmp_path: Path) -> None:
    for name in ("speccot", "target"):
        solve(tmp_path, name, name, input=write_problems(tmp_path, 2))
    out = pipeline("compare", "speccot", "target", cwd=tmp_path).stdout
    [said] = [line for line in out.splitlines() if line.startswith("speccot is ")]
    assert re.fullmatch(r"speccot is \d+\.\d\d times as fast as target", said), "the accuracy of simulated answers says nothing"
    assert f"| {said.split()[2]} | " in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere: no such directory; expected a run folder"),
        (["other.csv"], "other.csv: not a directory; expected a run folder"),
        (["empty"], "empty/run.json: cannot be read: no such file or directory; expected a run folder"),
        (["text"], "text/run.json: is not a run.json of this program: "),
        (["unfinished"], "unfinished: has no finished chain: there is nothing to compare"),
        (["damaged"], "part-00000.parquet: cannot be read: "),
        (["target", "./target"], "target is given twice; name each run once"),
        ([], "name one or more run folders to compare"),
        (["target", "--table", "speccot-7"], "--table speccot-7: no such table; did you mean `speccot-"),
        (
            ["target", "--table", "specreason-7"],
            "SpecReason figure 7, section 5.4: the runs give none of its figures",
        ),
        (
            ["target", "--table", "speccot-2", "--baseline", "target"],
            "--table and --baseline cannot be combined: paper tables always compare with the target alone",
        ),
        (["target", "data", "speccot", "--baseline", "speccot"], "--baseline speccot: no such run or graph here over other"),
        (["target", "--baseline", "scot"], "--baseline scot: no such run or graph here; there are target"),
        (["speccot", "seed", "--baseline", "graph"], "--baseline graph: no such run or graph here"),
        (["target", "--output", "nowhere/x.md"], "--output nowhere/x.md: cannot be written: no such file or directory"),
        (["target", "--output", "folder.md"], "--output folder.md: cannot be written: folder.md is not a regular file"),
        (["target", "--output", "tables.xlsx"], "--output tables.xlsx: its name must end in .md, .csv, .json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_sentence_and_exit_code_2(compare: Compare, folders: Path, arguments: list[str], says: str) -> None:
    for name in ("empty", "folder.md", "unfinished", "damaged/chains", "text"):
        (folders / name).mkdir(parents=True, exist_ok=True)
    (folders / "text/run.json").write_text("not JSON")
    for name in ("unfinished", "damaged"):
        (folders / name / "run.json").write_bytes((folders / "target/run.json").read_bytes())
    (folders / "damaged/chains/part-00000.parquet").write_bytes(b"PAR1")
    code, out, err = compare(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert says in err
    assert err.count("\n") == 1
