"""The output of all commands: data on stdout, as a table or as one JSON object per line, everything else on stderr.

All commands print with these functions. Without a terminal, as in a pipe, output has no colours and no spinner, lines
are not wrapped, and nothing is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import msgspec
import typer

from lakesync.model.hlc import iso_time

if TYPE_CHECKING:
    from rich.console import RenderableType

_NO_TERMINAL_WIDTH = 10_000
"""Width of tables without a terminal, so that rich does not wrap their lines."""
_UNWRAPPED_CELL = 40
"""Characters of cells that are not wrapped on a terminal, such as times and ids."""
_WRAPPED_CELL = 20
"""Characters of a line to which longer cells are wrapped at most."""


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    print(msgspec.json.encode(value, enc_hook=_encode_other).decode())


def print_line(text: str, value: Any, *, as_json: bool) -> None:
    """Print a line of text, or with `as_json` a value as JSON in its place."""
    if as_json:
        print_json(value)
    else:
        print(text)


def print_rows(
    rows: Iterable[Mapping[str, Any]], *, as_json: bool, columns: Sequence[str] = (), if_empty: str = ""
) -> None:
    """Print rows as one JSON object per line, or as a table.

    Args:
        rows: the rows, each a mapping from keys to values.
        as_json: whether to print JSON, with all keys.
        columns: the columns of the table, as `key` or `key=Heading`; empty: all keys.
        if_empty: message on stderr if there are no rows, unless JSON is printed; empty: no message.
    """
    if as_json:
        for row in rows:
            print_json(row)
        return
    all_rows = list(rows)
    if not all_rows:
        note(if_empty)
        return
    keys = [name.partition("=")[0] for name in columns] or list(all_rows[0])
    headings = [name.partition("=")[2] or name for name in columns] or keys
    numeric = [all(_is_number(row.get(key)) for row in all_rows) for key in keys]
    print_table(headings, ([cell(row.get(key)) for key in keys] for row in all_rows), right=numeric)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[RenderableType]], right: Sequence[bool] = ()) -> None:
    """Print a table.

    Args:
        headings: the heading of each column.
        rows: the cells of each row, as `cell` returns them.
        right: whether each column is aligned to the right; missing entries mean left.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rich_table = Table(box=None, header_style="bold", pad_edge=False)
    all_rows = list(rows)
    width = 0
    for index, heading in enumerate(headings):
        justify = "right" if index < len(right) and right[index] else "left"
        longest = max(cell_len(text) for text in (heading, *(str(row[index]) for row in all_rows)))
        is_short = longest <= _UNWRAPPED_CELL
        rich_table.add_column(Text(heading), justify=cast("Any", justify), overflow="fold", no_wrap=is_short)
        width += 2 + (longest if is_short else _WRAPPED_CELL)
    for row in all_rows:
        rich_table.add_row(*row)
    terminal_width = Console().width if sys.stdout.isatty() else _NO_TERMINAL_WIDTH
    console = Console(width=max(terminal_width, width), height=len(all_rows), highlight=False)  # may exceed a terminal
    with console.capture() as capture:
        console.print(rich_table)
    for line in capture.get().splitlines():
        print(line.rstrip())  # without the spaces that make all cells of the last column equally wide


def print_fields(values: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one object.

    Args:
        values: the object's fields.
        as_json: whether to print a line of JSON; otherwise a line for each field, with spaces for underscores in names.
    """
    if as_json:
        print_json(values)
        return
    width = max(map(len, values), default=0)
    for name, value in values.items():
        text = value if isinstance(value, str) else str(cell(value))
        print(f"{name.replace('_', ' '):<{width}}  {text}")


def note(text: str) -> None:
    """Print a message on stderr, unless it is empty."""
    if text:
        print(text, file=sys.stderr)


@contextmanager
def spinner(text: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner with `text`, on a terminal only, and yield a function that replaces the text."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update


def confirm(question: str, *, assume_yes: bool) -> None:
    """Ask for confirmation of an action that cannot be undone.

    Args:
        question: the question, with a question mark.
        assume_yes: whether the user gave `--yes`; nothing is asked then.

    Raises:
        typer.Abort: the user declined.
        typer.BadParameter: there is no terminal to ask on.
    """
    if assume_yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} There is no terminal to ask on; give --yes to confirm")
    if not typer.confirm(question, err=True):
        raise typer.Abort


def cell(value: object) -> RenderableType:
    """Return a value as a cell of a table: None as `-`, booleans as yes or no, objects and lists as JSON."""
    from rich.text import Text

    match value:
        case None:
            return Text("-", style="dim")
        case bool():
            return Text("yes" if value else "no")
        case str():
            return Text(value)
        case int():
            return Text(f"{value:,}")
        case dict() | list() | tuple():
            return Text(msgspec.json.encode(value, enc_hook=_encode_other).decode())
    return Text(str(value))


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as `1 row` or `2,000 rows`.

    Args:
        number: the number.
        noun: the noun's singular.
        plural: its plural; empty: the singular with an `s`.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def utc_time(wall_ms: int | None) -> str | None:
    """Return a wall time in milliseconds since 1970 as ISO 8601 in UTC; None for None."""
    return None if wall_ms is None else iso_time(wall_ms)


def duration(seconds: float | None) -> str | None:
    """Return a duration as text, such as `3 h`; None for None.

    The unit is the largest of which there are at least two; below two minutes, it is seconds.
    """
    if seconds is None:
        return None
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def _encode_other(value: object) -> object:
    """Return the JSON form of a value that JSON has no type for; msgspec calls it while it encodes."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
