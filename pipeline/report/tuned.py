"""The page about a tuned graph: its outcome enters, HTML leaves."""

from pipeline.analysis.compare.brief import SIMULATED
from pipeline.analysis.tuned import Tuned
from pipeline.analysis.tuned_tables import KNOWN, choice_of, table_of
from pipeline.report.figures.tuned import curve
from pipeline.report.page import Figure, Section, page

NAME = "tune.html"
NOTE = (
    "Points: runs, with the interval of their loss against the target alone (line; dotted: the wanted loss). Rings: predicted from "
    "the recorded run; their bars reach from every chain that leaves the recorded path wrong to every such chain right."
)


def tuned_page(found: Tuned) -> str:
    """The HTML of the curve and its table."""
    section = Section(
        title="Accuracy against speed",
        notices=[SIMULATED] if found.simulated else [],
        text=[*choice_of(found), KNOWN],
        figures=[Figure("Settings", curve(found), NOTE)],
        tables=[table_of(found)],
    )
    return page(f"{found.graph}, tuned", [section])
