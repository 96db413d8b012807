"""Rules of runs that are made up."""

from pipeline.analysis.compare.rules import Rules
from pipeline.graph.prompts import DEFAULT_PROMPTS

RULES = Rules(
    thought_tokens=100,
    answer_tokens=50,
    closes=True,
    exits=(),
    sampling={"write": "temperature 0.6"},
    asked=(),
    prompts=DEFAULT_PROMPTS,
    engines={"target": {"backend": "torch", "model": "large"}},
)
