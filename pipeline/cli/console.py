"""Tables by rich that show texts of models and files as they are: no markup, no emoji codes, no control characters."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column
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
    """Print a table, names on the left, numbers on the right. Where it is too wide, rows become columns, or else the other columns follow
    below, each time after the first one: nothing is cut."""
    for part in _parts(table, console):
        console.print(_drawn(part))


def _fits(table: Table, console: PlainConsole) -> bool:
    wide = console.options.update(max_width=ANY_WIDTH)
    return len(table.columns) < 3 or console.measure(_drawn(table), options=wide).minimum <= console.width - 2  # its edges


def _parts(table: Table, console: PlainConsole) -> Iterator[Table]:
    """What fits: the table, the same with its rows as columns, or as few parts as possible, each with the first column."""
    first, *columns = zip(table.columns, *table.rows, strict=True)
    whole = (table, Table(table.title, first, tuple(columns)))
    if (fit := next((each for each in whole if _fits(each, console)), None)) is not None:
        yield fit
        return
    while columns:
        parts = (_beside(table, first, columns[:count]) for count in range(1, len(columns) + 1))
        *_, widest = takewhile(lambda part: _fits(part, console), parts)
        yield widest
        columns = columns[len(widest.columns) - 1 :]


def _beside(table: Table, first: tuple[str, ...], columns: Sequence[tuple[str, ...]]) -> Table:
    names, *rows = zip(first, *columns, strict=True)
    return Table(table.title, names, tuple(rows), bold=table.bold)


def _drawn(table: Table) -> RichTable:
    """The table in which the widest column of texts alone wraps."""
    shown = RichTable(*(Column(name, overflow="fold") for name in table.columns), box=box.SIMPLE_HEAD, pad_edge=False)
    columns = list(zip(table.columns, *table.rows, strict=True))
    widths = [max(cell_len(line) for cell in cells for line in cell.splitlines() or [""]) for cells in columns]
    numbers = [place for place, (_, *cells) in enumerate(columns) if place and all(not cell or cell[0] in "-+0123456789" for cell in cells)]
    wrapped = max((place for place in range(1, len(columns)) if place not in numbers), key=widths.__getitem__, default=0)
    for place, width in enumerate(widths):
        whole = not place or place != wrapped
        column = shown.columns[place]
        column.justify, column.style = "right" if place in numbers else "left", "" if place else "bold"
        column.no_wrap, column.min_width = whole, width if whole else None
    for place, row in enumerate(table.rows):
        shown.add_row(*row, style="bold" if place in table.bold else "")
    return shown
