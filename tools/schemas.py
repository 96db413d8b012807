"""Write the JSON Schemas of the files that a user writes to `graphs/schemas/`, for editors: python tools/schemas.py"""

from pathlib import Path
from typing import Any, get_args

import msgspec

from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.graph.schema import FileName, json_schema, struct_schema
from pipeline.sweep.study_file import StudySpec

FOLDER = Path(__file__).parent.parent / "graphs/schemas"


def schemas() -> dict[str, dict[str, Any]]:
    """The schema of every kind of file, by its name."""
    found = {file: json_schema(file, stage_specs(), engine_specs()) for file in get_args(FileName)}
    return found | {"study": struct_schema(StudySpec, "study file")}


if __name__ == "__main__":
    for name, schema in schemas().items():
        (FOLDER / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n")
