"""The bundled graphs by name, and what a run of each may show."""

NAMES = (
    "target",
    "draft",
    "speculative-decoding",
    "speccot",
    "scot",
    "specreason",
    "best-of-n",
    "target-steps",
    "guided-draft",
    "gated",
    "routed",
    "triggered",
)
"""Those of the papers."""
OURS = {"self-consistency": "sim-2xh100", "rsd": "sim-4xh100-rsd"}
"""Those of no paper that the papers compare, with simulated engines for each."""


SETTINGS = {"gated": ("sure=-0.2",)}
"""Simulated drafts are less sure than those of the bundled pair, of which the graph's threshold is."""


SEEN = {
    "target": ({"generate"}, {"written"}),
    "speculative-decoding": ({"generate"}, {"written"}),
    "draft": ({"generate"}, {"written"}),
    "speccot": ({"generate", "draft", "choose", "answer"}, {"guidance", "accepted", "fallback"}),
    "scot": ({"generate", "draft", "choose", "answer"}, {"accepted", "fallback"}),
    "specreason": ({"generate", "draft", "score", "answer"}, {"accepted", "fallback"}),
    "rsd": ({"generate", "draft", "reward", "answer"}, {"accepted", "fallback"}),
    "best-of-n": ({"draft", "choose", "answer"}, {"accepted"}),
    "target-steps": ({"generate", "answer"}, {"written"}),
    "guided-draft": ({"generate", "answer"}, {"guidance", "written"}),
    "gated": ({"generate", "draft", "score", "answer"}, {"accepted", "fallback", "unverified"}),
    "routed": ({"generate", "draft", "answer"}, {"written", "unverified"}),
    "triggered": ({"generate", "draft", "answer"}, {"first_steps", "unverified"}),
    "self-consistency": ({"generate", "draft", "answer"}, {"accepted", "fallback"}),
}
"""Of each graph: kinds of calls, decisions of steps."""
