"""Speed-ups that papers print, taken apart: r = tokens x rate. Printed tokens and latencies enter, the table of the docs leaves.

As in `pipeline compare`: tokens are those of the target alone over those of the system, the rate is the system's tokens per second over the
target's. Nothing is measured here.
"""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from bench.figures import grid


class Printed(Struct, frozen=True):
    """Tokens and seconds per problem, as printed: of the target alone, then of the system."""

    data: str
    target_tokens: float
    target_s: float
    tokens: float
    seconds: float

    @property
    def factors(self) -> tuple[float, float, float]:
        """The speed-up, the part of it that is shorter text, and the part that is speed."""
        return (
            self.target_s / self.seconds,
            self.target_tokens / self.tokens,
            self.tokens / self.seconds / (self.target_tokens / self.target_s),
        )


QWQ, R1_32B = "QwQ-32B", "R1-Distill-Qwen-32B"
SPECCOT = {
    QWQ: (
        Printed("GSM8K", 2053.8, 33.5, 1023.3, 10.1),
        Printed("MATH-500", 3086.8, 50.8, 1495.9, 16.2),
        Printed("GaoKao", 4102.0, 68.0, 2316.5, 30.1),
        Printed("AMC23", 5885.8, 97.78, 3633.0, 48.6),
    ),
    R1_32B: (
        Printed("GSM8K", 574.3, 9.3, 239.1, 2.9),
        Printed("MATH-500", 1998.6, 32.6, 636.9, 7.8),
        Printed("GaoKao", 2833.4, 46.7, 1674.7, 24.0),
        Printed("AMC23", 4605.5, 76.2, 3031.6, 44.7),
    ),
}
"""SpecCoT, table 2, by target; the draft is R1-Distill-Qwen-1.5B."""
SCOT = (
    Printed("GSM8K", 302, 26.5, 45 + 265, 11.8),
    Printed("MATH", 2123, 225.1, 151 + 1855, 77.0),
    Printed("GaoKao", 3230, 369.5, 630 + 2767, 160.1),
    Printed("CollegeMath", 1051, 95.3, 110 + 1136, 43.7),
    Printed("Olympiad", 8431, 1092.2, 3553 + 4194, 575.7),
)
"""SCoT, table 1: thinking alone, the target's own tokens and those of the longest draft."""


def speed_ups(root: Path) -> str:
    """The table of the docs, and what it says."""
    rows = [(f"SpecCoT, {target}", each) for target, printed in SPECCOT.items() for each in printed]
    rows += [(f"SCoT, {R1_32B}", each) for each in SCOT]
    columns = ("system and target", "data", "r", "= tokens", "x rate")
    table = grid(columns, ((system, each.data, *(f"{factor:.2f}" for factor in each.factors)) for system, each in rows))
    more = sum(tokens > rate for _, tokens, rate in (each.factors for printed in SPECCOT.values() for each in printed))
    return (
        f"{table}\n\nWorked out from the tokens and latencies that SpecCoT's table 2 and SCoT's table 1 print. SCoT's are of its thinking "
        f"stage, where of parallel drafts the longest counts. In {more} of SpecCoT's 8 speed-ups shorter text is the greater factor; "
        "SCoT's text is about as long as the target's, so that its speed-up is speed."
    )


VIEWS: dict[str, Callable[[Path], str]] = {"speed-ups": speed_ups}
"""By the name between the markers."""
