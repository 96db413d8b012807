"""Published data sets: one is read from the hub or a file as published, its problems leave as one Parquet file, with all of its columns.

All rows are read before a byte is written: a wrong row is an error. Other rows than the known ones are said.
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
from msgspec import Struct

from pipeline.data.columns import ALIASES
from pipeline.data.files import rows_of
from pipeline.data.problems import Problem
from pipeline.data.reading import InputReading
from pipeline.errors import InputError, UsageError, boundary, did_you_mean, reason, require
from pipeline.files import new_file
from pipeline.graph.files import ARITH
from pipeline.graph.prompts import LETTERS

Row = Mapping[str, Any]
HUB = "hub"
"""In place of a path: download from the Hugging Face hub."""
ADDRESS = re.compile(r"(?:hf://)?([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+?))?(?::(\w[\w.-]*))?(?:/(\w[\w.-]*))?")
"""`hf://OWNER/NAME`, with `@REVISION`, `:CONFIG` and `/SPLIT`."""


def math500(row: Row) -> Row:
    """Some versions begin every problem with an instruction, which a graph has itself."""
    return {**row, "problem": row["problem"].removeprefix("Return your final response within \\boxed{}.")}


def gaokao2023en(row: Row) -> Row:
    """In two rows there is no answer, but the problem's text ends in it."""
    problem, _, answer = re.split("(answers:|Answer:)", row["question"])[-3:] if not row["answer"] else (row["question"], "", row["answer"])
    return {**row, "question": problem, "answer": answer}


def gpqa_diamond(row: Row) -> Row:
    """The right option comes first, which must not show: options are in the order of their hashes."""
    published = [row["Correct Answer"], *(row[f"Incorrect Answer {place}"] for place in (1, 2, 3))]
    right, *_ = texts = [text.strip() for text in published]
    texts.sort(key=lambda text: hashlib.blake2b(f"0\0{row['Question']}\0{text}".encode()).digest())
    return {**row, "options": texts, "answer": LETTERS[texts.index(right)]}


def olympiadbench(row: Row) -> Row | None:
    """Problems of mathematics in English, text only and open-ended."""
    wanted = {"modality": "Text-only", "language": "English", "question_type": "Open-ended"}
    kinds = (None, "Numerical", "Expression", "Tuple", "Interval", "Equation")
    return row if all(row.get(name) in (None, value) for name, value in wanted.items()) and row.get("answer_type") in kinds else None


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
    change: Callable[[Row], Row | None] = lambda row: row
    """What a row is read as; None: it is left out."""


MAA, EXAMS = "not stated; problems of the Mathematical Association of America", "not stated; problems of exams and contests"
OWN, GATED = "each row has its own, as column `license`", "CC BY 4.0, behind a gate"
AIME, AMC, GPQA = "HuggingFaceH4/aime_2024/train", "math-ai/amc23/test", "Idavidrein/gpqa:gpqa_diamond/train"
COLLEGE, GSM8K, MATH = "di-zhang-fdu/College_Math_Test/test", "openai/gsm8k:main/test", "HuggingFaceH4/MATH-500/test"
GAOKAO, OLYMPIAD = "MARIO-Math-Reasoning/Gaokao2023-Math-En/train", "Hothan/OlympiadBench:OE_TO_maths_en_COMP/train"
MATHS_IN_ENGLISH = "OlympiadBench, mathematics in English, text only, open-ended"
RECIPES = {
    "arith": Recipe("arith, test split", "numeric", 500, "d8789a0941396afed87e377ce54413a5", "Apache-2.0", "", "problem_id"),
    "aime24": Recipe("AIME 2024", "math", 30, "f8303da4cbe3bed8a3bc319ea474d0db", MAA, AIME, "id"),
    "amc23": Recipe("AMC 2023", "math", 40, "eca8ff9354e42110dae49b17dc6c7a49", MAA, AMC, "id"),
    "college_math": Recipe("CollegeMath", "math", 2818, "d6b0d566de74c60df6944e92002c86ae", OWN, COLLEGE),
    "gaokao2023en": Recipe("GaoKao 2023 En", "math", 385, "d78ac8a401e0fe8af4c3463f2e931f69", EXAMS, GAOKAO, "", gaokao2023en),
    "gpqa_diamond": Recipe("GPQA Diamond", "letter", 198, "", GATED, GPQA, "Record ID", gpqa_diamond),
    "gsm8k": Recipe("GSM8K, test split", "numeric", 1319, "39bd62667f0545fc54369c504b06b5e4", "MIT", GSM8K),
    "math-scot": Recipe("MATH, the 500 test problems of SCoT", "math", 500, "a6fb1e70eba4c6c12fafa3547dc14a1a", "MIT", "", "unique_id"),
    "math500": Recipe("MATH-500", "math", 500, "80e542d2e8efced2ee3e69061608bbeb", "MIT", MATH, "unique_id", math500),
    "olympiadbench": Recipe(MATHS_IN_ENGLISH, "math", 675, "8ee5fa6ca3712625a555ef8a323b9ab0", "Apache-2.0", OLYMPIAD, "id", olympiadbench),
}
"""The data sets by name."""


class PreparedData(Struct, frozen=True, kw_only=True):
    """The outcome of preparing a data set."""

    output: str
    rows: int
    digest: str
    mismatch: str | None
    """A sentence on how rows or digest differ from those that are known; None where they do not."""


def prepare(name: str, origin: str | None, output: Path) -> PreparedData:
    """Write the problems of a data set from `origin` (a path, `hub`, or None for bundled data) to `output`; raises `UsageError`."""
    if name not in RECIPES:
        raise UsageError(f"no data set is named `{name}`; {did_you_mean(name, RECIPES)}")
    if output.suffix != ".parquet":
        raise UsageError(f"{output}: expected the name of a file that ends in .parquet")
    recipe = RECIPES[name]
    where, rows = _problems(name, recipe, origin)
    text = b"".join(msgspec.json.encode((row["problem"], row["answer"])) + b"\n" for row in rows)
    digest = hashlib.blake2b(text, digest_size=16).hexdigest()
    found, known = (f"{count:,} rows with the digest {of}" for count, of in ((len(rows), digest), (recipe.rows, recipe.digest or digest)))
    differs = f"{where}: {found}, expected {known}: results are not comparable with the published ones"
    columns = dict.fromkeys(name for row in rows for name in row)
    schema = pa.schema({name: pa.list_(pa.string()) if name == "options" else pa.string() for name in columns}, {"license": recipe.license})
    with boundary(UsageError, f"{output}: cannot be written", foreign=OSError):
        output.parent.mkdir(parents=True, exist_ok=True)
        with new_file(output) as draft:
            pq.write_table(pa.Table.from_pylist(rows, schema), draft, compression="zstd")
    mismatch = None if found == known else differs
    return PreparedData(output=str(output), rows=len(rows), digest=digest, mismatch=mismatch)


def _problems(name: str, recipe: Recipe, origin: str | None) -> tuple[str, list[dict[str, Any]]]:
    """What the published data are called, and their problems as rows of the file; raises `InputError` for a wrong one."""
    if origin == HUB and recipe.hub:
        where, published = f"hf://{recipe.hub}", hub_data(f"hf://{recipe.hub}")
    elif origin == HUB or (origin is None and name != "arith"):
        remedy = f"or --from hub to download {recipe.hub}" if recipe.hub else "as it is on no hub"
        raise UsageError(f"{name}: give the published file, --from PATH, {remedy}")
    else:
        where = origin or str(ARITH / "test.parquet")
        published = rows_of(Path(where))
    try:
        kept = [row for each in published if (row := recipe.change(each)) is not None]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(where, f"is not {name} as published: {reason(error)}") from error
    reading = InputReading(where, kept, {"problem_id": recipe.problem_id} if recipe.problem_id else {}, grader=recipe.grader)
    rows: list[dict[str, Any]] = []
    for (item, _), row in zip(reading, kept, strict=True):
        if not isinstance(item, Problem) or not item.answer:
            raise InputError(f"{where}, row {item.row}", item.what if not isinstance(item, Problem) else "has no answer")
        own: dict[str, Any] = {
            "problem_id": f"{name}-{item.problem_id.removeprefix(f'{name}-')}",
            "problem": item.problem.strip(),
            "answer": item.answer,
            "options": list(item.options),
            "grader": recipe.grader,
        }
        for key, value in row.items():
            if key not in own and key.lower() not in ALIASES["problem"]:
                own[key] = value if isinstance(value, str | None) else msgspec.json.encode(value, enc_hook=str).decode()
        rows.append(own)
    return where, rows


def hub_data(address: str) -> Any:
    """A data set of the hub, downloaded or from the cache of the library `datasets`: the split named, the only one, or `test`.

    Raises `MissingExtra` without the library, and `InputError` without the data.
    """
    if (found := ADDRESS.fullmatch(address)) is None:
        raise InputError(address, "expected hf://OWNER/NAME, optionally followed by @REVISION, :CONFIG and /SPLIT")
    name, revision, config, split = found.groups()
    require(address, "data", "datasets")
    library = import_module("datasets")
    load, splits_of = library.load_dataset, library.get_dataset_split_names
    try:
        splits = [split] if split else splits_of(name, config, revision=revision)
        if len(splits) == 1 or "test" in splits:
            return load(name, config, split=splits[0] if len(splits) == 1 else "test", revision=revision)
    except Exception as error:  # whatever its HTTP client, its file systems and its formats raise
        raise InputError(address, f"cannot be loaded: {reason(error).rstrip('.')}; or download it and give the file") from error
    raise InputError(address, f"has the splits {', '.join(splits)}; choose one: {address}/{splits[0]}")
