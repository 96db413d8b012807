"""Variants of an engines file: other values for some keys of its roles, such as token-level speculation, taken out of the file's document
and applied where a setting names one. Pure.
"""

from collections.abc import Sequence
from typing import Any

from pipeline.errors import GraphError, did_you_mean
from pipeline.graph.document import Document, WrittenAt
from pipeline.graph.yaml_file import Keys

VARIANT = "variant="
"""How a setting begins that applies a variant of the engines file."""
VARIANTS = "variants"
"""The key of an engines file that is no role: other values for some keys of its roles, by the name of the variant and the role."""
Variants = dict[str, list[tuple[Keys, Any, WrittenAt]]]
"""By the name of the variant the keys that it writes, from the role on, each with its value and where that is written."""


def take_variants(engines: Document) -> Variants:
    """Take the variants out of an engines file; a flaw for each that is not made of values by role."""
    said = engines.mapping((VARIANTS,)) if engines.at((VARIANTS,)) else None
    found: Variants = {}
    for name, roles in (said or {}).items():
        of_roles = roles if isinstance(roles, dict) else {}
        if not of_roles or not all(values and isinstance(values, dict) for values in of_roles.values()):
            engines.flaw((VARIANTS, name), "expected values by role, such as target: {speculative_config: {method: ngram}}")
            continue
        for role in of_roles.keys() - (engines.values.keys() - {VARIANTS}):
            engines.flaw((VARIANTS, name, role), f"there is no such role; {did_you_mean(str(role), engines.values.keys() - {VARIANTS})}")
        found[str(name)] = [
            ((role, key), value, engines.origin((VARIANTS, name, role, key)))
            for role, values in of_roles.items()
            for key, value in values.items()
        ]
    engines.values.pop(VARIANTS, None)
    return found


def check_one(settings: Sequence[str]) -> None:
    """Raise `GraphError` where several of `settings` name variants: their values would mix."""
    named = list(dict.fromkeys(each for each in settings if each.startswith(VARIANT)))
    if len(named) > 1:
        raise GraphError(f"--set {named[1]}", f"--set {named[0]} names another variant, and a run has one; drop one of them")


def apply_variant(setting: str, document: Document, engines: Keys, variants: Variants) -> None:
    """Write the values of a variant into the roles at `engines`; raises `GraphError` where there is none of its name."""
    name = setting.removeprefix(VARIANT)
    if name not in variants:
        known = did_you_mean(name, variants) if variants else "its engines file has none"
        raise GraphError(f"--set {setting}", f"there is no such variant; {known}")
    for keys, value, origin in variants[name]:
        document.put((*engines, *keys), value, origin)
