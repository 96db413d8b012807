"""Tables on a terminal: as wide as their text where that fits, else one row below the other, so that no number is cut."""

from collections.abc import Iterable

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from pipeline.analysis.compare.cells import Table
from pipeline.cli.terminal.console import PlainConsole


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
        shown.add_column(name, style="bold" if place == 0 else "", justify="right" if place and _numeric(table, place) else "left")
    for row in table.rows:
        shown.add_row(*row)
    if console.measure(shown).maximum <= console.width or len(table.columns) < 3:
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
