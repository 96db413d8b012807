"""The graphs of the papers by name, and what a run of each may show."""

NAMES = (
    "target",
    "draft",
    "speculative-decoding",
    "speccot",
    "speccot-decode",
    "scot",
    "specreason",
    "specreason-decode",
    "likelihood",
    "best-of-n",
    "target-steps",
    "guided-draft",
)


DECODE = {"speculative-decoding": "target", "speccot-decode": "speccot", "specreason-decode": "specreason"}
"""Graphs that differ from another in nothing but their engines."""


SEEN = {
    "target": ({"generate"}, {"written"}),
    "draft": ({"generate"}, {"written"}),
    "speccot": ({"generate", "draft", "choose", "answer"}, {"guidance", "accepted", "fallback"}),
    "scot": ({"generate", "draft", "choose", "answer"}, {"accepted", "fallback"}),
    "specreason": ({"generate", "draft", "score", "answer"}, {"accepted", "fallback"}),
    "likelihood": ({"generate", "draft", "likelihood", "answer"}, {"accepted", "fallback"}),
    "best-of-n": ({"draft", "choose", "answer"}, {"accepted"}),
    "target-steps": ({"generate", "answer"}, {"written"}),
    "guided-draft": ({"generate", "answer"}, {"guidance", "written"}),
}
"""Of each graph: kinds of calls, decisions of steps."""
