"""What a validation found out, as numbers: the outcome of every example enters, figures leave. Pure."""

import math
from typing import Any, TypeAlias

from numpy.typing import NDArray

Outcomes: TypeAlias = NDArray[Any]
"""A row for each example."""
LOSS, MASS, RIGHT, CLASS, CHANCE = range(5)
"""Columns of the outcomes of a choice: its loss, the probability of all options together, 1 where the likeliest option is right, the class
of the example, and how probably an option that is drawn at random is right."""
SCORED, CLASS_1, CLASS_2 = 0, 1, 2
"""Classes of examples (SCoT 4.4): those without an option that rejects all, such as scores; those of which some option other than that is
right; those of which none other is."""
NLL, TOKENS = range(2)
"""Columns of the outcomes of a reply: minus the log probability of its completion, and how many tokens that has."""


def select_figures(outcomes: Outcomes) -> dict[str, float]:
    """Loss, probability mass on the options and accuracy, by class as in SCoT 4.4, each next to what chance would reach.

    Class 1 is chosen well where a right option is the likeliest of all options, class 2 where the one that rejects all is.
    """
    figures = {"loss": outcomes[:, LOSS].mean(), "mass": outcomes[:, MASS].mean()}
    figures |= {"accuracy": outcomes[:, RIGHT].mean(), "chance": outcomes[:, CHANCE].mean()}
    for number in (CLASS_1, CLASS_2):
        of_class = outcomes[outcomes[:, CLASS] == number]
        if len(of_class):
            name = f"class_{number}"
            figures |= {f"{name}_accuracy": of_class[:, RIGHT].mean(), f"{name}_chance": of_class[:, CHANCE].mean()}
            figures[f"{name}_examples"] = len(of_class)
    return {name: float(value) for name, value in figures.items()}


def draft_figures(outcomes: Outcomes) -> dict[str, float]:
    """The mean loss of a token, natural logarithm, and its exponential, the perplexity."""
    loss = float(outcomes[:, NLL].sum() / outcomes[:, TOKENS].sum())
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
