"""Tables by rich that show texts of models and files as they are: no markup, no emoji codes, no control characters."""

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pipeline.analysis.tables import Table
from pipeline.files import sanitize

WIDTH = 110
"""Columns of output that does not go to a terminal."""
ANY_WIDTH = 10_000
"""Columns of a terminal on which every table fits."""


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


def print_parts(parts: Iterable[str | Table]) -> None:
    """Print paragraphs and tables, each with its title above and its note below."""
    console = PlainConsole()
    for part in parts:
        if isinstance(part, str):
            console.print(Text(part))
        else:
            console.print(Text(part.title, "bold"))
            print_table(part, console)
            if part.note:
                console.print(Text(part.note, "dim"))
        console.print()


def print_table(table: Table, console: PlainConsole) -> None:
    """Print a table, names on the left, numbers on the right. Where it is too wide, rows become columns, or else blocks: nothing is cut."""
    wide = console.options.update(max_width=ANY_WIDTH)
    for each in (table, turned(table)):
        shown = _drawn(each)
        if len(table.columns) < 3 or console.measure(shown, options=wide).minimum <= console.width - 2:  # its edges
            console.print(shown)
            return
    for row in table.rows:
        console.print(Text(f"{table.columns[0]}: {row[0]}", "bold"))
        cells = RichTable.grid(padding=(0, 2))
        cells.add_column()
        cells.add_column(overflow="fold")
        for name, cell in zip(table.columns[1:], row[1:], strict=True):
            cells.add_row(f"  {name}", cell)
        console.print(cells)


def turned(table: Table) -> Table:
    """The same table with its rows as columns."""
    first, *others = zip(table.columns, *table.rows, strict=True)
    return Table(table.title, tuple(first), tuple(others))


def _drawn(table: Table) -> RichTable:
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(table.columns):
        number = place > 0 and all(not row[place] or row[place][0] in "-+0123456789" for row in table.rows)
        style = "bold" if place == 0 else ""
        shown.add_column(name, style=style, justify="right" if number else "left", no_wrap=number or place == 0, overflow="fold")
    for place, row in enumerate(table.rows):
        shown.add_row(*row, style="bold" if place in table.bold else "")
    return shown
