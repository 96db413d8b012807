"""Splits by problem: the text of a problem enters, its split leaves.

It goes by the text alone, whatever the problem's id and however its white space and capitals are: the same problem is in the same split in
every run.
"""

from hashlib import blake2b

from pipeline.training.examples import Split


def fingerprint(problem: str) -> int:
    """64 bits of a problem's text."""
    said = " ".join(problem.split()).casefold()
    return int.from_bytes(blake2b(said.encode(errors="replace"), digest_size=8).digest())


def problem_hash(problem: str) -> str:
    """The fingerprint of a problem's text as 16 hexadecimal digits."""
    return f"{fingerprint(problem):016x}"


def split_of(problem: str, validation: float) -> Split:
    """The split of a problem where about the share `validation` (0 to 1) of all problems is for validation."""
    return "validation" if fingerprint(problem) < validation * 2**64 else "train"
