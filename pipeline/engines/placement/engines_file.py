"""Chosen engines as the text of an engines file. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.graph.yaml_file import written


def engines_text(engines: Mapping[str, Mapping[str, Any]], head: Sequence[str]) -> str:
    """An engines file with these fields by role, and `head` as its first comments."""
    lines = [f"# {' '.join(line.split())}" for line in head]
    for role, fields in engines.items():
        lines += [f"{role}:", *(f"  {name}: {written(value)}" for name, value in fields.items())]
    return "\n".join(lines) + "\n"
