"""Every published data set becomes the problems that its recipe promises, or a sentence says which row does not."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from pipeline.analysis.summary import summarize
from pipeline.bundled import bundled_files
from pipeline.data.prepare import prepare
from pipeline.data.problems import Problem, open_problems
from pipeline.data.recipe import (
    COLUMNS,
    Hub,
    Recipe,
    RowReader,
    canonical_digest,
    find_recipe,
    load_recipe,
    shuffled,
)
from pipeline.data.rows import keys_of
from pipeline.errors import BadRow, InputError, UsageError
from pipeline.session.options import RunOptions
from pipeline.session.run import run

PUBLISHED = ["aime24", "amc23", "college_math", "gaokao2023en", "gsm8k", "math500", "olympiadbench"]
FIRST_500 = {"college_math-500": 2818, "gsm8k-500": 1319, "olympiadbench-500": 675}
"""Recipes of the first rows of a published set, with how many it has."""
TINY = {"title": "Tiny", "license": "ours", "citation": "ours", "problem": "q", "answer": "a", "grader": "math"}

Write = Callable[[str, Any], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(name: str, content: Any) -> Path:
        path = tmp_path / name
        text = "".join(json.dumps(row) + "\n" for row in content) if isinstance(content, list) else content
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return path

    return put


def tiny(**more: Any) -> Recipe:
    fields = {key: value for key, value in {"name": "tiny", **TINY, **more}.items() if value is not None}
    return msgspec.convert(fields, Recipe)


def wrong(recipe: Recipe, origin: Path | str | None, output: Path, error: type[UsageError] = InputError, force: bool = False) -> str:
    """The sentence that refuses it; nothing was written."""
    before = output.read_bytes() if output.is_file() else None
    with pytest.raises(error) as caught:
        prepare(recipe, None if origin is None else str(origin), output, overwrite=force, allow_mismatch=force)
    assert (output.read_bytes() if output.is_file() else None) == before
    assert "\n" not in str(caught.value)
    assert not list(output.parent.glob(".*"))
    return str(caught.value).replace(f"{output.parent}/", "")


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


# What is published


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_set_holds_what_its_recipe_says(shared: Path, tmp_path: Path, name: str) -> None:
    recipe, output = find_recipe(name), tmp_path / f"{name}.parquet"
    prepared = prepare(recipe, str(shared / "data" / f"{name}.jsonl"), output)
    assert (prepared.rows, prepared.digest, prepared.left_out) == (recipe.rows, recipe.digest, 0)
    assert prepared.checked
    rows = rows_of(output)
    assert tuple(rows[0]) == (*COLUMNS, *recipe.keep)
    assert all(row["problem"] == row["problem"].strip() and row["answer"] == row["answer"].strip() != "" for row in rows)
    assert {row["grader"] for row in rows} == {recipe.grader}
    assert len({row["problem_id"] for row in rows}) == len(rows)
    assert pq.read_schema(output).metadata[b"license"].decode() == recipe.license


@pytest.mark.parametrize("name", FIRST_500)
def test_a_subset_is_the_first_rows_of_the_published_set(shared: Path, tmp_path: Path, name: str) -> None:
    whole = name.removesuffix("-500")
    recipe, part = find_recipe(name), tmp_path / "part.parquet"
    prepared = prepare(recipe, str(shared / "data" / f"{whole}.jsonl"), part)
    assert (prepared.rows, prepared.left_out) == (500, FIRST_500[name] - 500)
    assert (prepared.digest, prepared.checked) == (recipe.digest, True)
    known = prepared_rows(shared, tmp_path, whole)[:500]
    assert [(row["problem"], row["answer"]) for row in rows_of(part)] == [(row["problem"], row["answer"]) for row in known]
    assert all(row["problem_id"].startswith(f"{name}-") for row in rows_of(part))


def solve(root: Path, problems: Path, folder: Path, limit: int) -> None:
    engines = root / "graphs/engines/sim-instant.yaml"
    done = run(RunOptions(graph=root / "graphs/target.yaml", engines=engines, input=problems, limit=limit, output=folder))
    assert (done.exit_code, done.done, done.failed) == (0, limit, 0)
    assert summarize(folder).done == limit


def prepared_rows(shared: Path, tmp_path: Path, name: str) -> list[dict[str, Any]]:
    prepare(find_recipe(name), str(shared / "data" / f"{name}.jsonl"), tmp_path / "out.parquet")
    return rows_of(tmp_path / "out.parquet")


def test_math500_leaves_the_instruction_to_the_graph(shared: Path, tmp_path: Path) -> None:
    rows = prepared_rows(shared, tmp_path, "math500")
    assert not any("boxed" in row["problem"] for row in rows)
    assert Counter(row["level"] for row in rows) == {"1": 43, "2": 90, "3": 105, "4": 128, "5": 134}
    assert len({row["subject"] for row in rows}) == 7


def test_olympiadbench_keeps_answers_of_many_parts_units_and_the_tolerance(shared: Path, tmp_path: Path) -> None:
    rows = prepared_rows(shared, tmp_path, "olympiadbench")
    assert sum(row["unit"] is not None for row in rows) == 8
    assert [row["tolerance"] for row in rows if row["tolerance"]] == ["1e-1"]
    assert Counter(row["answer_type"] for row in rows) == {"Numerical": 572, "Expression": 64, "Tuple": 33, "Interval": 6}


def test_the_bundled_set_needs_no_origin(root: Path, tmp_path: Path) -> None:
    recipe = find_recipe("arith")
    prepared = prepare(recipe, None, tmp_path / "arith.parquet")
    assert (prepared.rows, prepared.digest) == (500, recipe.digest)
    theirs = pq.read_table(root / "datasets/arith/test.parquet").to_pylist()
    assert [(row["problem_id"], row["answer"]) for row in rows_of(tmp_path / "arith.parquet")] == [
        (row["problem_id"], row["answer"]) for row in theirs
    ]


def test_the_bundled_set_is_drawn_again_by_its_tool(root: Path) -> None:
    sys.path.insert(0, str(root))
    try:
        from tools.make_arith import split
    finally:
        sys.path.remove(str(root))
    reader = RowReader(find_recipe("arith"), {})
    published = (
        {"problem_id": f"p{i}", "problem": each.text, "answer": each.answer, "source": "x"} for i, each in enumerate(split("test"))
    )
    assert canonical_digest(reader.read(i, row) for i, row in enumerate(published, 1)) == reader.recipe.digest


# Multiple choice

QUESTIONS = [
    ("Which planet is the largest of the solar system?", "Jupiter", "Saturn", "Neptune", "Mars"),
    ("Which gas makes up most of dry air?", "nitrogen", "oxygen", "argon", "carbon dioxide"),
    ("What is the charge of an alpha particle, in units of e?", "+2", "+1", "0", "-1"),
    ("Which of these numbers is prime?", "97", "91", "87", "51"),
    ("Which of these bases pairs with adenine in DNA?", "thymine", "cytosine", "guanine", "uracil"),
    ("What is the pH of 0.001 mol/L hydrochloric acid?", "3", "1", "7", "11"),
    ("Which quantity is conserved in every elastic collision?", "kinetic energy", "speed", "temperature", "potential energy"),
    ("How many edges has a cube?", "12", "6", "8", "10"),
    ("Which organelle makes most of a cell's ATP?", "mitochondrion", "ribosome", "nucleus", "vacuole"),
    ("What is the unit of capacitance?", "farad", "henry", "ohm", "tesla"),
    ("Which is the\nderivative of sin x?", "cos x", "-cos x", "tan x", "-sin x\n"),
    ("Which element, in its standard state, is a liquid?", "bromine, Br2", "iodine", "fluorine", "chlorine"),
]
"""Rows of GPQA's form, written for this test: the question, the right option, the wrong ones."""
HEADER = [
    "Record ID",
    "Question",
    "Correct Answer",
    "Incorrect Answer 1",
    "Incorrect Answer 2",
    "Incorrect Answer 3",
    "Subdomain",
    "Explanation",
]


def gpqa_rows() -> list[dict[str, str]]:
    rows = [dict(zip(HEADER, (f"rec{i}", *texts, "Everything", "Because."), strict=True)) for i, texts in enumerate(QUESTIONS)]
    return [{**row, "High-level domain": "Science"} for row in rows]


@pytest.fixture
def gpqa(tmp_path: Path) -> Path:
    """The twelve rows as their authors publish theirs, in CSV."""
    import csv

    path = tmp_path / "gpqa.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*HEADER, "High-level domain"])
        writer.writeheader()
        writer.writerows(gpqa_rows())
    return path


@pytest.fixture
def gpqa_recipe() -> Recipe:
    return msgspec.structs.replace(find_recipe("gpqa_diamond"), rows=len(QUESTIONS))


def test_gpqa_becomes_letters(gpqa: Path, gpqa_recipe: Recipe, tmp_path: Path) -> None:
    prepared = prepare(gpqa_recipe, str(gpqa), tmp_path / "out.parquet")
    assert (prepared.rows, prepared.checked) == (12, False)
    rows = rows_of(tmp_path / "out.parquet")
    for row, (question, right, *others) in zip(rows, QUESTIONS, strict=True):
        assert row["options"]["ABCD".index(row["answer"])] == right
        assert sorted(row["options"]) == sorted(text.strip() for text in (right, *others))
        assert row["problem"] == question, "a graph says the options"
        assert (row["grader"], row["subdomain"], row["domain"]) == ("letter", "Everything", "Science")
    assert rows[3]["problem_id"] == "gpqa_diamond-rec3"
    assert len({row["answer"] for row in rows}) == 4


def test_options_are_in_the_same_order_wherever_the_rows_come_from(gpqa: Path, gpqa_recipe: Recipe, write: Write, tmp_path: Path) -> None:
    whole = write("gpqa.json", {"rows": None}).with_name("gpqa.json")
    whole.write_text(json.dumps(gpqa_rows()))
    lines = write("gpqa.jsonl", gpqa_rows())
    digests = {prepare(gpqa_recipe, str(path), tmp_path / f"{path.suffix}.parquet").digest for path in (gpqa, whole, lines)}
    assert len(digests) == 1


def test_the_order_depends_on_seed_question_and_texts_alone() -> None:
    options = ("a", "b", "c", "d")
    assert shuffled(options, "Which?", 0) == shuffled(reversed(options), "Which?", 0)
    assert len({shuffled(options, "Which?", seed) for seed in range(200)}) == 24
    first = Counter(shuffled(options, f"Question {number}?", 0)[0] for number in range(2000))
    assert all(400 < count < 600 for count in first.values()), first
    assert shuffled(options, "Which?", 0) == ("a", "c", "b", "d"), "prepared files stay what they are"


def test_a_run_takes_the_options_and_asks_for_a_letter(gpqa: Path, gpqa_recipe: Recipe, root: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    prepare(gpqa_recipe, str(gpqa), output)
    first = next(iter(open_problems(output)))
    assert isinstance(first, Problem)
    assert (set(first.options), first.grader, len(first.answer or "")) == ({"Jupiter", "Saturn", "Neptune", "Mars"}, "letter", 1)
    solve(root, output, tmp_path / "run", limit=12)


def first_problem(path: Path, **columns: str) -> Problem | BadRow:
    return next(iter(open_problems(path, columns)))


@pytest.mark.parametrize(("value", "grader"), [("math", "math"), ("numeric", "numeric"), ("letter", "letter"), (None, None), ("", None)])
def test_a_row_may_name_its_grader(write: Write, value: Any, grader: str | None) -> None:
    problem = first_problem(write("p.jsonl", [{"problem": "x", "grader": value}]))
    assert isinstance(problem, Problem)
    assert problem.grader == grader


@pytest.mark.parametrize("value", ["maths", 1, ["math"]])
def test_a_grader_that_there_is_not(write: Write, value: Any) -> None:
    row = first_problem(write("p.jsonl", [{"problem": "x", "grader": value}]))
    assert isinstance(row, BadRow)
    assert row.what == f"`grader` is {value!r}, expected math, numeric or letter"


# Forms of files


def test_the_same_file_again_is_fine_and_another_is_not(write: Write, tmp_path: Path) -> None:
    one, other = write("one.jsonl", [{"q": "1 + 1?", "a": 2}]), write("other.jsonl", [{"q": "1 + 2?", "a": 3}])
    output = tmp_path / "new/folder/out.parquet"
    assert prepare(tiny(), str(one), output).written
    assert not prepare(tiny(), str(one), output).written
    assert wrong(tiny(), other, output, UsageError).endswith(
        "exists with different content; choose another file with --output, or add --overwrite"
    )
    assert prepare(tiny(), str(other), output, overwrite=True).written
    assert [row["answer"] for row in rows_of(output)] == ["3"]
    assert [path.name for path in output.parent.iterdir()] == ["out.parquet"]


@pytest.mark.parametrize("name", ["out.csv", "folder.parquet"])
def test_an_output_that_cannot_be(write: Write, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.parquet").mkdir()
    path = write("one.jsonl", [{"q": "x", "a": 2}])
    assert wrong(tiny(), path, tmp_path / name, UsageError) == f"{name}: expected the name of a file that ends in .parquet"


# Data that are not as promised


def test_another_number_of_rows_is_refused_and_taken_when_asked(write: Write, tmp_path: Path) -> None:
    path, output = write("p.jsonl", [{"q": "x", "a": 2}]), tmp_path / "out.parquet"
    differs = "it is not the file the recipe was made for (another version, or damaged); --allow-mismatch accepts it"
    sentence = f"p.jsonl: 1 row, expected 1,000: {differs}"
    assert wrong(tiny(rows=1000), path, output) == sentence
    prepared = prepare(tiny(rows=1000), str(path), output, allow_mismatch=True)
    assert (prepared.mismatch, prepared.written) == ("1 row, expected 1,000", True)


def test_another_digest_is_refused_and_both_are_named(write: Write, tmp_path: Path) -> None:
    path, output = write("p.jsonl", [{"q": "x", "a": 2}]), tmp_path / "out.parquet"
    digest = prepare(tiny(), str(path), output).digest
    assert prepare(tiny(digest=digest), str(path), output).checked
    assert f"digest {digest}, expected {'0' * 32}" in wrong(tiny(digest="0" * 32), path, output)


@pytest.mark.parametrize("change", [{"q": "y"}, {"a": 3}])
def test_the_digest_sees_every_problem_and_answer(write: Write, tmp_path: Path, change: dict[str, Any]) -> None:
    rows = [{"q": "x", "a": 2}, {"q": "z", "a": 2}]
    digests = {
        prepare(tiny(), str(write("p.jsonl", each)), tmp_path / "o.parquet", overwrite=True, allow_mismatch=True).digest
        for each in (rows, [rows[0] | change, rows[1]])
    }
    assert len(digests) == 2


BAD_ROWS: list[tuple[dict[str, Any], Any, str]] = [
    ({}, '{"q":"x","a":', "not JSON (Input data was truncated)"),
    ({}, {"qq": "x", "a": "1"}, "has no `q`; other rows have it"),
    ({}, {"q": " ", "a": "1"}, "`q` is empty; expected text"),
    ({}, {"q": "x", "a": ""}, "`a` is empty; every problem needs its correct answer"),
    ({"answer": "a[1]"}, {"q": "x", "a": ["1"]}, "`a[1]`: the array holds 1 values"),
    ({"answer": "a[0]"}, {"q": "x", "a": "1"}, "`a[0]`: expected an array before `[0]`, got text"),
    ({"answer": "a.b"}, {"q": "x", "a": {"c": 1}}, "has no `a.b`; known are `c`"),
    ({"gold": "after_hashes"}, {"q": "x", "a": "18"}, "`a` holds no `#### ANSWER`; the recipe takes the answer from there"),
    ({"gold": "boxed"}, {"q": "x", "a": "so 5"}, "`a` holds no `\\boxed{ANSWER}`; the recipe takes the answer from there"),
    ({"problem_prefix": "Say: "}, {"q": "Say: ", "a": "1"}, "`q` holds no problem, only what the recipe removes"),
    ({"problem_id": "id"}, {"q": "x", "a": "1", "id": None}, "`id` is empty; expected text"),
    ({"problem_id": "id"}, {"q": "x", "a": "1", "id": 1}, "`id` is the id of row 1 too, 'tiny-1'; ids must be unique"),
    ({"answer_marks": ["Answer:"]}, {"q": "x Answer:", "a": ""}, "`a` is empty; every problem needs its correct answer"),
]


@pytest.mark.parametrize(("more", "row", "what"), BAD_ROWS, ids=[what for *_, what in BAD_ROWS])
def test_a_wrong_row_is_named_and_nothing_is_written(write: Write, tmp_path: Path, more: dict[str, Any], row: Any, what: str) -> None:
    good = {"q": "1 + 1?", "a": "####2 \\boxed{2}", "id": 1}
    if "answer" in more:
        good["a"] = {"b": "2"} if "." in more["answer"] else ["1", "2"]
    lines = [json.dumps(good), row if isinstance(row, str) else json.dumps(row)]
    path = write("p.jsonl", "\n".join(lines) + "\n")
    assert wrong(tiny(**more), path, tmp_path / "out.parquet", force=True) == f"p.jsonl, row 2: {what}; nothing was written"


@pytest.mark.parametrize("name", ["p.jsonl", "p.csv"])
def test_a_column_that_is_not_there(write: Write, tmp_path: Path, name: str) -> None:
    rows = [{"question": "x", "a": "1"}]
    path = write(name, "question,a\nx,1\n" if name == "p.csv" else rows)
    expected = f"{name}, row 1: has no `questoin`; did you mean `question`?; nothing was written"
    assert wrong(tiny(problem="questoin"), path, tmp_path / "out.parquet") == expected


def test_more_wrong_rows_are_named_together(write: Write, tmp_path: Path) -> None:
    path = write("p.jsonl", [{"q": "x", "a": "" if number % 2 else "1"} for number in range(40)])
    assert wrong(tiny(), path, tmp_path / "out.parquet") == (
        "p.jsonl, row 2: `a` is empty; every problem needs its correct answer; "
        "also wrong: 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, ...; nothing was written"
    )


def test_an_option_that_is_right_twice(write: Write, gpqa_recipe: Recipe, tmp_path: Path) -> None:
    rows = gpqa_rows()
    rows[4]["Incorrect Answer 2"] = rows[4]["Correct Answer"] + " "
    what = "`Incorrect Answer 2` is the same as `Correct Answer`; only one option may be correct"
    assert what in wrong(gpqa_recipe, write("p.jsonl", rows), tmp_path / "out.parquet")


WRONG_FILES = [
    ("p.jsonl", "", "p.jsonl: holds no rows"),
    ("p.json", "[1, {}]", "p.json, row 1: not a JSON object; also wrong: 2; nothing was written"),
    ("p.json", '[{"q": "x"', "p.json: not a JSON document: "),
    ("p.csv", 'q,a\nx,1\n"y,2\n', "p.csv, row 2: a quote that is opened in it is never closed; nothing was written"),
]


@pytest.mark.parametrize(("name", "content", "sentence"), WRONG_FILES)
def test_a_wrong_file_has_its_sentence(write: Write, tmp_path: Path, name: str, content: str, sentence: str) -> None:
    assert wrong(tiny(), write(name, content), tmp_path / "out.parquet").startswith(sentence)


def test_only_leaves_rows_out_where_they_have_the_column(write: Write, tmp_path: Path) -> None:
    rows = [{"q": "x", "a": 1, "lang": "en"}, {"q": "y", "a": 2, "lang": "zh"}, {"q": "z", "a": 3}, {"q": "v", "a": [], "lang": None}]
    prepared = prepare(tiny(only={"lang": ["en"]}), str(write("p.jsonl", rows)), tmp_path / "out.parquet")
    assert (prepared.rows, prepared.left_out) == (2, 2)
    assert [row["problem_id"] for row in rows_of(tmp_path / "out.parquet")] == ["tiny-1", "tiny-3"]
    none = wrong(tiny(only={"lang": ["fr"]}), write("p.jsonl", rows[:1]), tmp_path / "other.parquet")
    assert none == "p.jsonl: holds no rows; the recipe's `only` skips 1"


def test_answers_are_taken_as_the_recipe_says(write: Write, tmp_path: Path) -> None:
    rows = [{"q": "x", "a": "We get \\boxed{1} or \\boxed{\\frac{1}{2}}."}, {"q": "y", "a": 27.0}, {"q": "z", "a": ["$3$", 5]}]
    prepare(tiny(), str(write("p.jsonl", rows)), tmp_path / "out.parquet")
    assert [row["answer"] for row in rows_of(tmp_path / "out.parquet")] == [rows[0]["a"], "27", "$3$, 5"]
    prepare(tiny(gold="boxed"), str(write("p.jsonl", rows[:1])), tmp_path / "boxed.parquet")
    assert [row["answer"] for row in rows_of(tmp_path / "boxed.parquet")] == ["1, \\frac{1}{2}"]


# The hub


def test_the_hub_without_its_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert wrong(find_recipe("gsm8k"), "hub", tmp_path / "out.parquet", UsageError) == (
        'hub: openai/gsm8k needs the package `datasets`, which is not installed: pip install "speculative-pipeline[data]"'
    )


def test_the_hub_through_its_library(monkeypatch: pytest.MonkeyPatch, write: Write, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    pytest.importorskip("datasets.load", reason="the extra `data` is not installed")
    (tmp_path / "published").mkdir()
    write("published/test.jsonl", [{"q": "1 + 1?", "a": "2"}, {"q": "2 + 2?", "a": "4"}])
    recipe = tiny(hub={"id": str(tmp_path / "published"), "split": "test"}, rows=3)
    assert "2 rows, expected 3" in wrong(recipe, "hub", tmp_path / "out.parquet")
    edition = tiny(hub={"id": str(tmp_path / "published"), "split": "test", "rows": 2}, rows=3, digest="0" * 32)
    prepared = prepare(edition, "hub", tmp_path / "out.parquet")
    assert (prepared.rows, prepared.checked) == (2, False)


def test_what_is_not_bundled_and_what_is_not_on_the_hub(tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    assert wrong(find_recipe("gsm8k"), None, output, UsageError) == (
        "gsm8k is not bundled; give the published file: --from PATH, or --from hub to download openai/gsm8k"
    )
    assert wrong(find_recipe("arith"), "hub", output, UsageError) == "--from hub: arith is not on the hub; give a file: --from PATH"


# Recipes


def test_every_recipe_is_whole() -> None:
    assert set(bundled_files("data set")) == {*PUBLISHED, *FIRST_500, "math-scot", "arith", "gpqa_diamond"}
    for name in bundled_files("data set"):
        recipe = find_recipe(name)
        assert recipe.rows
        assert recipe.license
        assert recipe.citation
        assert (recipe.hub is None) != (recipe.file is None) or name == "math-scot"  # which is on no hub
        assert (recipe.digest is None) == (name == "gpqa_diamond")


def test_paths() -> None:
    assert keys_of("final_answer[0]") == ("final_answer", 0)
    assert keys_of("Incorrect Answer 1") == ("Incorrect Answer 1",)
    assert keys_of("meta.parts[12].text") == ("meta", "parts", 12, "text")


GOOD = "name: mine\ntitle: Mine\nlicense: ours\ncitation: ours\nproblem: q\nanswer: a\ngrader: math\n"
CHOICES = "choices: {right: a, wrong: [b, c]}\n"
BAD_RECIPES = [
    (GOOD + "grade: math\n", "$: unknown key `grade`; did you mean `grader`?"),
    (GOOD + "hub: {id: x}\n", "$.hub: the key `split` is missing"),
    (GOOD.replace("license: ours\n", ""), "$: the key `license` is missing"),
    (GOOD.replace("grader: math", "grader: maths"), "$.grader: unknown value `maths`; did you mean `math`?"),
    (GOOD + "rows: 0\n", "$.rows: expected `int` >= 1, got 0"),
    (GOOD + "digest: abc\n", "$.digest: expected 32 hexadecimal digits, got 'abc'"),
    (GOOD.replace("name: mine", "name: other"), "$.name: expected `mine`, as the file is named"),
    (GOOD.replace("answer: a", "answer: a[b]"), "$.answer: 'a[b]' is not a path; expected a column, then .NAME or [INDEX]"),
    (GOOD.replace("answer: a\n", ""), "$.answer: expected either `answer` or `choices`, got neither"),
    (GOOD + CHOICES, "$.answer: expected either `answer` or `choices`, got both"),
    (GOOD.replace("answer: a\n", CHOICES), "$.grader: expected `letter`, as there are `choices`, got 'math'"),
    (GOOD + "keep: {answer: x}\n", "$.keep.answer: expected a name in lower-case letters, digits, - and _ that is not a column already"),
    (GOOD + "keep: {note: a..b}\n", "$.keep.note: 'a..b' is not a path"),
]


@pytest.mark.parametrize(("text", "what"), BAD_RECIPES, ids=[what for _, what in BAD_RECIPES])
def test_a_wrong_recipe_has_its_sentence(write: Write, text: str, what: str) -> None:
    path = write("mine.yaml", text)
    with pytest.raises(UsageError) as caught:
        find_recipe(str(path))
    sentence = str(caught.value)
    assert sentence.startswith(str(path))
    assert what in sentence


def test_a_recipe_of_ones_own(write: Write, tmp_path: Path) -> None:
    recipe = load_recipe(write("mine.yaml", GOOD + "hub: {id: me/mine, split: test}\n"))
    assert recipe.hub == Hub(id="me/mine", split="test")
    prepare(recipe, str(write("p.jsonl", [{"q": "x", "a": 2}])), tmp_path / "out.parquet")
    assert rows_of(tmp_path / "out.parquet")[0]["problem_id"] == "mine-1"


def test_a_name_that_no_recipe_has() -> None:
    with pytest.raises(UsageError, match=r"no data set is named `gsm8` and there is no such file; did you mean `gsm8k`\?$"):
        find_recipe("gsm8")
