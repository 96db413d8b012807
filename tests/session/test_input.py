"""A run is of one input: what is cut, appended to or edited while it goes on is noticed, and put back it goes on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.data.part import ALL
from pipeline.errors import InputError, UsageError
from pipeline.session.observer import Observer, View
from pipeline.session.options import RunOptions, resume_options
from pipeline.session.run import SessionResult, run
from tests.support.paths import ROOT, SIM
from tests.support.runs import chains_of, write_problems

ROWS = 700
"""More than are read ahead."""
Change = Callable[[Path], object]


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def cut(path: Path) -> None:
    path.write_bytes(b"".join(lines(path)[:400]))


def edit(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"number 650?", b"number 65O?"))


def double(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


CHANGES: dict[str, tuple[Change, str]] = {
    "cut": (cut, "it had 700 rows and now has 400"),
    "doubled": (double, "it had 700 rows and now has more"),
    "edited": (edit, "row 651 differs"),
    "reformatted": (lambda path: path.write_bytes(path.read_bytes().replace(b":", b": ")), "its rows are the same, but its bytes differ"),
    "gone": (Path.unlink, "no such file"),
}


def changed_meanwhile(path: Path, change: Change) -> Observer:
    """Changes the file once the engines are open."""

    @contextmanager
    def watch(view: View) -> Iterator[None]:
        change(path)
        yield

    return Observer(watch=watch)


def solved(problems: Path, out: Path, observer: Observer, **options: object) -> SessionResult:
    return run(RunOptions(graph=ROOT / "graphs/target.yaml", engines=SIM, input=problems, output=out, **options), observer)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_while_it_is_read_ends_the_run(tmp_path: Path, name: str) -> None:
    change, what = CHANGES[name]
    problems = write_problems(tmp_path, ROWS)
    before = problems.read_bytes()
    result = solved(problems, tmp_path / "run", changed_meanwhile(problems, change))
    assert (result.exit_code, result.run.status) == (1, "failed")
    remedy = "this run was started with the earlier version of the file; restore it and resume, or start a new run"
    assert str(result.error) == result.run.error == f"{problems}: was changed during the run: {what}; {remedy}"
    assert {row["input_row"] for row in chains_of(tmp_path / "run")} <= set(range(1, ROWS + 1))
    if name != "gone":  # the run has kept its problems
        with pytest.raises(UsageError, match=r"input sha256 is .*, was |holds no rows|is taken by"):
            run(resume_options(tmp_path / "run"))
        problems.write_bytes(before)
    assert run(resume_options(tmp_path / "run")).exit_code == 0
    assert sorted(row["problem_id"] for row in chains_of(tmp_path / "run")) == sorted(f"p{i}" for i in range(ROWS))


@pytest.mark.parametrize("change", [double, edit, Path.unlink])
def test_what_changes_after_it_was_read_is_noticed_at_the_end(tmp_path: Path, change: Change) -> None:
    """Every chain is of the file as it was, and is kept."""
    problems = write_problems(tmp_path, 30)
    before = problems.read_bytes()

    @contextmanager
    def watch(view: View) -> Iterator[None]:
        yield
        change(problems) if change is not edit else problems.write_bytes(before.replace(b"number 20?", b"number 2O?"))

    result = solved(problems, tmp_path / "run", Observer(watch=watch), limit=30)
    assert (result.exit_code, result.done) == (1, 30)
    assert "was changed during the run: " in str(result.error)
    problems.write_bytes(before)
    again = run(resume_options(tmp_path / "run"))
    assert (again.exit_code, again.done) == (0, 30)
    assert len(chains_of(tmp_path / "run")) == 30


def test_a_file_that_is_touched_replaced_by_its_copy_or_linked_is_the_same(tmp_path: Path) -> None:
    problems = write_problems(tmp_path)

    def touch(path: Path) -> None:
        path.rename(tmp_path / "old")
        path.write_bytes((tmp_path / "old").read_bytes())

    assert solved(problems, tmp_path / "run", changed_meanwhile(problems, touch)).exit_code == 0


def test_a_file_that_is_written_while_it_is_checked_is_refused(tmp_path: Path) -> None:
    from pipeline.data.problems import Problems, open_problems

    class Written(Problems):
        """A line comes while its bytes are summed up."""

        def _sha256(self) -> str:
            double(self.path)
            return super()._sha256()

    path = write_problems(tmp_path)
    open_problems(path).check()
    with pytest.raises(InputError, match="is still being written; start the run when it is complete"):
        Written(path, {}, ALL).check()


def test_problems_that_are_called_as_bad_rows_would_be(tmp_path: Path) -> None:
    """A row that holds no problem gives way; where nobody has its name, it keeps the one that it always had."""
    texts = [b'{"problem_id": "(row 2)", "problem": "One?"}', b"{oops", b'{"problem_id": "(row 2)*", "problem": "Two?"}', b"{oops"]
    (tmp_path / "problems.jsonl").write_bytes(b"\n".join(texts) + b"\n")
    result = solved(tmp_path / "problems.jsonl", tmp_path / "run", Observer(), samples=2)
    assert (result.exit_code, result.done, result.failed) == (3, 4, 4)
    found = sorted((row["input_row"], row["problem_id"]) for row in chains_of(tmp_path / "run") if row["sample_index"] == 0)
    assert found == [(1, "(row 2)"), (2, "(row 2)**"), (3, "(row 2)*"), (4, "(row 4)")]
    assert len({row["chain_id"] for row in chains_of(tmp_path / "run")}) == 8
    assert run(resume_options(tmp_path / "run", retry_failed=True)).failed == 4
    assert len(chains_of(tmp_path / "run")) == 8
