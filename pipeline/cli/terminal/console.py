"""Tables and panels by rich that show untrusted text as it is: no markup, no emoji codes, no control characters."""

from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.text import sanitize

WIDTH = 110
"""Columns of output that does not go to a terminal."""


class PlainConsole(Console):
    """A rich console that sanitizes every string; rich passes whatever is printed or is in a cell or a title to `render_str`."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)
        if not self.is_terminal:
            self.width = WIDTH

    def print(self, *objects: Any, **settings: Any) -> None:
        """Off a terminal, as in a log file, no line is padded with blanks."""
        if self.is_terminal:
            super().print(*objects, **settings)
            return
        with self.capture() as captured:
            super().print(*objects, **settings)
        self.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))
        self.file.flush()

    def render_str(self, text: str, **options: Any) -> Text:
        """Control characters are shown as `\\uXXXX`."""
        return super().render_str(sanitize(text), **options)
