"""Sentences on stderr about what was left out of a run folder that is shown, or is missing there."""

from collections.abc import Iterable
from pathlib import Path

from pipeline.cli.main import print_notice
from pipeline.trace.inventory import flaws


def print_flaws(runs: Iterable[Path]) -> None:
    """Print a sentence for every file of the run folders `runs` that is missing, left out, or not as the run left it."""
    for run in runs:
        for sentence in flaws(run):
            print_notice(sentence)
