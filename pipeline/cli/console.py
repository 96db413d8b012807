"""Tables and panels by rich, with text of others as text: no markup, no emoji codes, no control characters."""

from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.text import sanitize

WIDTH = 110
"""Where there is no terminal that says its own."""


class PlainConsole(Console):
    """Every string that is printed, or stands in a cell or a title, comes through `render_str`."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)
        if not self.is_terminal:
            self.width = WIDTH

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(sanitize(text), **options)
