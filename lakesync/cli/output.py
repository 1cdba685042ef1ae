"""The output of commands: data on stdout, as a table or as one JSON object per line, everything else on stderr.

Without a terminal, nothing is coloured, animated or asked, and lines are as long as their data.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import msgspec
import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_NO_TERMINAL_WIDTH = 10_000


def record(value: Any) -> None:
    """Print a value as one line of JSON."""
    print(msgspec.json.encode(value, enc_hook=encode_other).decode())


def records(rows: Iterable[Mapping[str, Any]], *, as_json: bool, columns: Sequence[str] = (), none: str = "") -> None:
    """Print rows as one JSON object per line, or as a table.

    Args:
        rows: the rows.
        as_json: print JSON, with all keys.
        columns: the columns of the table, as `key` or `key=Heading`; empty: all keys.
        none: printed on stderr if there are no rows and no JSON is wanted.
    """
    if as_json:
        for row in rows:
            record(row)
        return
    found = list(rows)
    if not found:
        note(none)
        return
    keys = [name.partition("=")[0] for name in columns] or list(found[0])
    headings = [name.partition("=")[2] or name for name in columns] or keys
    numeric = [all(_is_number(row.get(key)) for row in found) for key in keys]
    table(headings, ([cell(row.get(key)) for key in keys] for row in found), right=numeric)


def table(headings: Sequence[str], rows: Iterable[Sequence[RenderableType]], right: Sequence[bool] = ()) -> None:
    """Print a table.

    Args:
        headings: one per column.
        rows: the cells, already rendered.
        right: whether each column is aligned to the right; missing entries mean left.
    """
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, header_style="bold", pad_edge=False)
    for index, heading in enumerate(headings):
        justify = "right" if index < len(right) and right[index] else "left"
        shown.add_column(Text(heading), justify=cast("Any", justify), overflow="fold")
    for row in rows:
        shown.add_row(*row)
    console().print(shown)


def fields(values: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one object: as a line of JSON, or a line for each field."""
    if as_json:
        record(values)
        return
    width = max(map(len, values), default=0)
    for name, value in values.items():
        shown = value if isinstance(value, str) else str(cell(value))
        print(f"{name.replace('_', ' '):<{width}}  {shown}")


def console() -> Console:
    """Return the console that tables are printed on."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _NO_TERMINAL_WIDTH, highlight=False, soft_wrap=False)


def note(text: str) -> None:
    """Print a message on stderr, unless it is empty."""
    if text:
        print(text, file=sys.stderr)


def spinner(text: str) -> AbstractContextManager[object]:
    """Return a context manager that shows a spinner with `text` while it is active, on a terminal only."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(text)


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation of an action that cannot be undone.

    Args:
        question: the question.
        yes: the `--yes` option; nothing is asked then.

    Raises:
        typer.Abort: the user declined.
        typer.BadParameter: there is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} There is no terminal to ask on; give --yes to confirm")
    if not typer.confirm(question, err=True):
        raise typer.Abort


def cell(value: object) -> RenderableType:
    """Return a value as a cell of a table."""
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
            return Text(msgspec.json.encode(value, enc_hook=encode_other).decode())
    return Text(str(value))


def utc_time(wall_ms: int | None) -> str | None:
    """Return a wall time in milliseconds as ISO 8601 in UTC; None for None."""
    if wall_ms is None:
        return None
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration(seconds: float | None) -> str | None:
    """Return a duration in its largest fitting unit, as `3 h`; None for None."""
    if seconds is None:
        return None
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def encode_other(value: object) -> object:
    """Return the JSON form of a value that JSON has no type for."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
