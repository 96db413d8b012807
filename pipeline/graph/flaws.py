"""All flaws of a graph at once: errors are collected where one part does not depend on another, and raised together."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.errors import GraphError, GraphErrors

MOST = 50
"""Most flaws that are told together."""


class Flaws:
    """The flaws found so far."""

    def __init__(self) -> None:
        self._found: list[GraphError] = []
        self._told: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, error: GraphError, *, whole: bool = False) -> None:
        """Note `error`, or each of them where it is several. `whole`: nothing more is noted at its place, which has no value to judge."""
        found = error.errors if isinstance(error, GraphErrors) else [error]
        self._found += [each for each in found if each.where not in self._told]
        self._told |= {each.where for each in found} if whole else set()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a `GraphError` of the body and continue after it."""
        try:
            yield
        except GraphError as error:
            self.add(error)

    def check(self, check: Callable[..., object], *arguments: object, **named: object) -> None:
        """Call `check`, and note the `GraphError` that it raises."""
        with self.noted():
            check(*arguments, **named)

    def raise_any(self) -> None:
        """Raise what was found: one flaw as it is, several as `GraphErrors`, nothing where there is none."""
        found = list({str(error): error for error in self._found}.values())[:MOST]
        if len(found) == 1:
            raise found[0]
        if found:
            raise GraphErrors(found)
