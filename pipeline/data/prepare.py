"""Published data sets: one is read from the hub or a file as published, its problems leave as one Parquet file.

All rows are read and checked before a byte is written: the file holds the rows and the digest that are known, or is not written.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, structs

from pipeline.data.columns import as_text
from pipeline.data.files import rows_of
from pipeline.data.problems import Problem
from pipeline.data.reading import InputReading
from pipeline.errors import InputError, MissingExtra, UsageError, boundary, did_you_mean, reason
from pipeline.files import new_file
from pipeline.graph.bundled import ARITH

Row = Mapping[str, Any]
HUB = "hub"
"""In place of a path: download from the Hugging Face hub."""
ADDRESS = re.compile(r"(?:hf://)?([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+?))?(?::(\w[\w.-]*))?(?:/(\w[\w.-]*))?")
"""`hf://OWNER/NAME`, with `@REVISION`, `:CONFIG` and `/SPLIT`."""
OLYMPIAD = {
    "modality": ["Text-only"],
    "language": ["English"],
    "question_type": ["Open-ended"],
    "answer_type": ["Numerical", "Expression", "Tuple", "Interval", "Equation"],
}


def as_published(row: Row) -> Row:
    """Most data sets: nothing is changed."""
    return row


def math500(row: Row) -> Row:
    """Some versions begin every problem with an instruction, which a graph has itself."""
    return {**row, "problem": row["problem"].removeprefix("Return your final response within \\boxed{}.").strip()}


def gaokao2023en(row: Row) -> Row:
    """In two rows there is no answer, but the problem's text ends in it."""
    problem, _, answer = re.split("(answers:|Answer:)", row["question"])[-3:] if not row["answer"] else (row["question"], "", row["answer"])
    return {**row, "question": problem.strip(), "answer": answer}


def olympiadbench(row: Row) -> Row | None:
    """Problems of mathematics in English, text only and open-ended."""
    wanted = all(row.get(name) in (None, *accepted) for name, accepted in OLYMPIAD.items())
    return row if wanted else None


class Recipe(Struct, frozen=True):
    """A published data set, and what is known of its problems."""

    title: str
    grader: str
    """How answers are compared."""
    rows: int
    digest: str
    """Of all problems and answers; empty: unknown."""
    license: str
    hub: str = ""
    """Where it is on the hub, in the form of `ADDRESS`; empty: nowhere."""
    problem_id: str = ""
    """The column of ids; empty: rows are numbered."""
    source: str = ""
    """The column that says where a problem is from; empty: the title."""
    keep: Mapping[str, str] = {}
    """Further columns to keep, by their new names."""
    change: Callable[[Row], Row | None] = as_published
    """What a row is read as; None: it is left out."""
    first: int | None = None
    """Only so many problems."""
    hub_differs: bool = False
    """The hub has other rows than the file that papers use."""


MAA = "not stated; problems of the Mathematical Association of America"
COLLEGE = "each row has its own, kept as column `license`"
TOPICS = {"topic": "data_topic", "exercise": "question_number", "license": "license"}
LEVELS = {"subject": "subject", "level": "level"}
FIELDS = {"subject": "subfield", "answer_type": "answer_type", "unit": "unit", "tolerance": "error"}
DOMAINS = {"domain": "High-level domain", "subdomain": "Subdomain"}
GSM8K, COLLEGE_MATH = "openai/gsm8k:main/test", "di-zhang-fdu/College_Math_Test/test"
GAOKAO, EXAMS = "MARIO-Math-Reasoning/Gaokao2023-Math-En/train", "not stated; problems of exams and contests"
OLYMPIADBENCH = "Hothan/OlympiadBench:OE_TO_maths_en_COMP/train"
RECIPES = {
    "arith": Recipe("arith, test split", "numeric", 500, "d8789a0941396afed87e377ce54413a5", "Apache-2.0", "", "problem_id", "source"),
    "aime24": Recipe("AIME 2024", "math", 30, "f8303da4cbe3bed8a3bc319ea474d0db", MAA, "HuggingFaceH4/aime_2024/train", "id", "url"),
    "amc23": Recipe("AMC 2023", "math", 40, "eca8ff9354e42110dae49b17dc6c7a49", MAA, "math-ai/amc23/test", "id", "url"),
    "college_math": Recipe(
        "CollegeMath", "math", 2818, "d6b0d566de74c60df6944e92002c86ae", COLLEGE, COLLEGE_MATH, "", "data_source", TOPICS
    ),
    "gaokao2023en": Recipe(
        "GaoKao 2023 En", "math", 385, "d78ac8a401e0fe8af4c3463f2e931f69", EXAMS, GAOKAO, "", "source", {"exam": "sourcename"}, gaokao2023en
    ),
    "gpqa_diamond": Recipe(
        "GPQA Diamond", "letter", 198, "", "CC BY 4.0, behind a gate", "Idavidrein/gpqa:gpqa_diamond/train", "Record ID", "", DOMAINS
    ),
    "gsm8k": Recipe("GSM8K, test split", "numeric", 1319, "39bd62667f0545fc54369c504b06b5e4", "MIT", GSM8K),
    "math-scot": Recipe(
        "MATH, the 500 test problems of SCoT", "math", 500, "a6fb1e70eba4c6c12fafa3547dc14a1a", "MIT", "", "unique_id", "", LEVELS
    ),
    "math500": Recipe(
        "MATH-500", "math", 500, "80e542d2e8efced2ee3e69061608bbeb", "MIT", "HuggingFaceH4/MATH-500/test", "unique_id", "", LEVELS, math500
    ),
    "olympiadbench": Recipe(
        "OlympiadBench, mathematics in English, text only, open-ended",
        "math",
        675,
        "8ee5fa6ca3712625a555ef8a323b9ab0",
        "Apache-2.0",
        OLYMPIADBENCH,
        "id",
        "",
        FIELDS,
        olympiadbench,
        hub_differs=True,
    ),
}
FIRST_500 = {
    "college_math": "e37a695d34f8d89a7207b6bde11876ee",
    "gsm8k": "8877d4effe74bcc795e332c6c91ecf6e",
    "olympiadbench": "3365ccbde32b8030d3fa41841322c287",
}
"""The digest of the first 500 problems, on which SCoT reports."""
RECIPES |= {
    f"{name}-500": structs.replace(RECIPES[name], title=f"{RECIPES[name].title}, the first 500", rows=500, digest=digest, first=500)
    for name, digest in FIRST_500.items()
}
"""The data sets by name."""


class PreparedData(Struct, frozen=True, kw_only=True):
    """The outcome of preparing a data set."""

    name: str
    output: str
    origin: str
    rows: int
    digest: str
    mismatch: str | None
    """How rows or digest differ from those that are known; None where they do not."""


def prepare(name: str, origin: str | None, output: Path, *, overwrite: bool = False, allow_mismatch: bool = False) -> PreparedData:
    """Write the problems of a data set from `origin` (a path, `hub`, or None for bundled data) to `output`; raises `UsageError`.

    `allow_mismatch` writes although rows or digest are not the known ones, `overwrite` over another file. A wrong row is always an error.
    """
    if name not in RECIPES:
        raise UsageError(f"no data set is named `{name}`; {did_you_mean(name, RECIPES)}")
    recipe = RECIPES[name]
    if output.suffix != ".parquet" or output.is_dir():
        raise UsageError(f"{output}: expected the name of a file that ends in .parquet")
    if output.exists() and not overwrite:
        raise UsageError(f"{output}: exists already; choose another file with --output, or add --overwrite")
    where, rows = _problems(name, recipe, origin)
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(msgspec.json.encode((row["problem"], row["answer"])) + b"\n")
    mismatch = None if len(rows) == recipe.rows else f"{len(rows):,} rows, expected {recipe.rows:,}"
    if mismatch is None and recipe.digest not in ("", digest.hexdigest()):
        mismatch = f"digest {digest.hexdigest()}, expected {recipe.digest}"
    if mismatch and not allow_mismatch and not (recipe.hub_differs and origin == HUB):
        raise InputError(where, f"{mismatch}: it is another version of {name}, or damaged; --allow-mismatch accepts it")
    columns = dict.fromkeys(("problem_id", "problem", "answer", "options", "source", "grader", *recipe.keep), pa.string())
    schema = pa.schema(columns | {"options": pa.list_(pa.string())}, {"recipe": name, "title": recipe.title, "license": recipe.license})
    with boundary(UsageError, f"{output}: cannot be written", foreign=OSError):
        output.parent.mkdir(parents=True, exist_ok=True)
        with new_file(output) as draft:
            pq.write_table(pa.Table.from_pylist(rows, schema), draft, compression="zstd")
    return PreparedData(name=name, output=str(output), origin=where, rows=len(rows), digest=digest.hexdigest(), mismatch=mismatch)


def _problems(name: str, recipe: Recipe, origin: str | None) -> tuple[str, list[dict[str, Any]]]:
    """What the published data are called, and their problems as rows of the file; raises `InputError` for a wrong one."""
    if origin == HUB and recipe.hub:
        where, published = f"hf://{recipe.hub}", hub_data(f"hf://{recipe.hub}")
    elif origin == HUB or (origin is None and name != "arith"):
        remedy = f"or --from hub to download {recipe.hub}" if recipe.hub else "as it is on no hub"
        raise UsageError(f"{name}: give the published file, --from PATH, {remedy}")
    else:
        where = str(ARITH / "test.parquet") if origin is None else origin
        published = rows_of(Path(where))
    try:
        kept = [row for each in published if (row := recipe.change(each)) is not None][: recipe.first]
    except (KeyError, TypeError) as error:
        raise InputError(where, f"is not {name} as published: {reason(error)}") from error
    reading = InputReading(where, kept, {"problem_id": recipe.problem_id} if recipe.problem_id else {}, grader=recipe.grader)
    rows: list[dict[str, Any]] = []
    for (item, _), row in zip(reading, kept, strict=True):
        if not isinstance(item, Problem) or not item.answer:
            raise InputError(
                f"{where}, row {item.row}", f"{item.what if not isinstance(item, Problem) else 'has no answer'}; nothing was written"
            )
        own = item.problem_id if item.problem_id.startswith(f"{name}-") else f"{name}-{item.problem_id}"
        about = {
            "options": list(item.options),
            "source": as_text("source", row.get(recipe.source)) or recipe.title,
            "grader": recipe.grader,
        }
        more = {ours: as_text(ours, row.get(theirs)) for ours, theirs in recipe.keep.items()}
        rows.append({"problem_id": own, "problem": item.problem.strip(), "answer": item.answer, **about, **more})
    return where, rows


def hub_data(address: str) -> Any:
    """A data set of the hub, downloaded or from the cache of the library `datasets`: the split named, the only one, or `test`.

    Raises `MissingExtra` without the library, and `InputError` without the data.
    """
    if (found := ADDRESS.fullmatch(address)) is None:
        raise InputError(address, "expected hf://OWNER/NAME, optionally followed by @REVISION, :CONFIG and /SPLIT")
    name, revision, config, split = found.groups()
    try:
        library = import_module("datasets")
        load, splits_of = library.load_dataset, library.get_dataset_split_names
    except (ImportError, AttributeError) as error:  # AttributeError: where it is not installed, a folder `datasets` passes for it
        raise MissingExtra(address, "datasets", "data") from error
    try:
        splits = [split] if split else splits_of(name, config, revision=revision)
        if len(splits) == 1 or "test" in splits:
            return load(name, config, split=splits[0] if len(splits) == 1 else "test", revision=revision)
    except Exception as error:  # whatever its HTTP client, its file systems and its formats raise
        raise InputError(address, f"cannot be loaded: {reason(error).rstrip('.')}; or download it and give the file") from error
    raise InputError(address, f"has the splits {', '.join(splits)}; choose one: {address}/{splits[0]}")
