"""Tables for people: texts are wrapped, and where that is not enough rows become blocks, so that no name and no number is cut."""

from collections.abc import Iterable

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from pipeline.analysis.compare.cells import Table
from pipeline.cli.terminal.console import PlainConsole

ANY_WIDTH = 10_000
"""Columns of a terminal on which every table fits."""


def print_parts(parts: Iterable[str | Table], console: PlainConsole | None = None) -> None:
    """Print paragraphs and tables, each with its title above and its note below."""
    console = console or PlainConsole()
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
    """Print the columns and rows of a table: names on the left, numbers on the right."""
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(table.columns):
        number, style = place > 0 and _numeric(table, place), "bold" if place == 0 else ""
        shown.add_column(name, style=style, justify="right" if number else "left", no_wrap=number or place == 0, overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    wide = console.options.update(max_width=ANY_WIDTH)
    if console.measure(shown, options=wide).minimum <= console.width or len(table.columns) < 3:
        console.print(shown)
    else:
        _print_stacked(table, console)


def _numeric(table: Table, place: int) -> bool:
    return all(not row[place] or row[place][0] in "-+0123456789" for row in table.rows)


def _print_stacked(table: Table, console: PlainConsole) -> None:
    """Print a row of the table as several: its name, and below it a row for each other cell."""
    for row in table.rows:
        console.print(Text(f"{table.columns[0]}: {row[0]}", "bold"))
        cells = RichTable.grid(padding=(0, 2))
        cells.add_column()
        cells.add_column(overflow="fold")
        for name, cell in zip(table.columns[1:], row[1:], strict=True):
            cells.add_row(f"  {name}", cell)
        console.print(cells)
