"""What commands print: data to stdout, as a table or one JSON object a line; everything else to stderr.

Nothing is coloured, drawn or asked where there is no terminal, and lines are then as long as their data.
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
    """One JSON object on a line."""
    print(msgspec.json.encode(value, enc_hook=spelled).decode())


def records(rows: Iterable[Mapping[str, Any]], *, as_json: bool, columns: Sequence[str] = (), none: str = "") -> None:
    """Rows: one JSON object a line, or a table.

    Args:
        columns: those that the table shows, by key or `key=Heading`; none given: all.
        none: said on stderr where there is no row.
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
    """A table on stdout, whose cells are as they are."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, header_style="bold", pad_edge=False)
    for place, heading in enumerate(headings):
        justify = "right" if place < len(right) and right[place] else "left"
        shown.add_column(Text(heading), justify=cast("Any", justify), overflow="fold")
    for row in rows:
        shown.add_row(*row)
    console().print(shown)


def facts(values: Mapping[str, Any], *, as_json: bool) -> None:
    """One thing: a JSON object, or a line a field."""
    if as_json:
        record(values)
        return
    width = max(map(len, values), default=0)
    for name, value in values.items():
        shown = value if isinstance(value, str) else str(cell(value))
        print(f"{name.replace('_', ' '):<{width}}  {shown}")


def console() -> Console:
    """Where tables go."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _NO_TERMINAL_WIDTH, highlight=False, soft_wrap=False)


def note(text: str) -> None:
    """Say something that is no data."""
    if text:
        print(text, file=sys.stderr)


def working(text: str) -> AbstractContextManager[object]:
    """Show that something takes its time, where somebody looks."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(text)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before what cannot be undone.

    Raises:
        typer.Abort: the answer is no.
        typer.BadParameter: there is nobody to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} There is no terminal to ask at: give --yes")
    if not typer.confirm(question, err=True):
        raise typer.Abort


def cell(value: object) -> RenderableType:
    """A value in a table."""
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
            return Text(msgspec.json.encode(value, enc_hook=spelled).decode())
    return Text(str(value))


def moment(wall_ms: int | None) -> str | None:
    """A server's wall time, in UTC to the millisecond."""
    if wall_ms is None:
        return None
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ago(seconds: float | None) -> str | None:
    """A time span, as people say it."""
    if seconds is None:
        return None
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def spelled(value: object) -> object:
    """What JSON has no form for."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
