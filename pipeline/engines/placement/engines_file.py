"""Chosen engines as the text of an engines file. Pure."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.graph.yaml_file import written

_WIDTH = 118


def engines_text(engines: Mapping[str, Mapping[str, Any]], head: Sequence[str]) -> str:
    """An engines file with these fields by role, and `head` as its first comments."""
    lines = [f"# {part}" for line in head for part in textwrap.wrap(line, _WIDTH, break_on_hyphens=False)]
    for role, fields in engines.items():
        lines += [f"{role}:", *(f"  {name}: {written(value)}" for name, value in fields.items())]
    return "\n".join(lines) + "\n"
