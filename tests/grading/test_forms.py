"""Names and ratios decide what is compared with what, whatever the expressions are."""

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from pipeline.grading.forms import same_form

values = st.dictionaries(st.sampled_from(["x", "y", "z", "a", "b", "x_1", "x_2", "x_{10}"]), st.integers(-9, 9), min_size=2, max_size=4)


def right(answer: str, reference: str) -> bool:
    return same_form(answer, reference, lambda a, b: product(a) == product(b))


def product(text: str) -> int:
    """The value of whole numbers with the sign of a product between them."""
    return prod(int(factor.strip("()")) for factor in text.split(r"\cdot"))


@given(values, values, st.data())
def test_the_order_of_names_changes_no_verdict(said: dict[str, int], other: dict[str, int], data: st.DataObject) -> None:
    one, two = (", ".join(f"{name}={said[name]}" for name in data.draw(st.permutations(list(said)))) for _ in range(2))
    assert right(one, two)
    names = sorted(said, key=lambda name: (name[0], int(name[2:].strip("{}") or 0)))
    assert right(one, f"({', '.join(str(said[name]) for name in names)})")
    reference = ", ".join(f"{name}={value}" for name, value in other.items())
    assert right(one, reference) is right(two, reference) is (said == other)


@given(st.lists(st.integers(1, 60), min_size=2, max_size=4), st.integers(1, 9), st.integers(0, 3))
def test_ratios_are_proportional_in_their_order(terms: list[int], factor: int, turn: int) -> None:
    turned = terms[turn % len(terms) :] + terms[: turn % len(terms)]
    said, other, reference = (
        ":".join(map(str, each)) for each in ([factor * term for term in terms] + [factor], [*turned, 1], [*terms, 1])
    )
    assert right(said, reference)
    assert right(other, reference) is (turned == terms)
