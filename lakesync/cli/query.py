"""`lakesync query`: SQL over the lake and over what is not in it yet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from lakesync.config import load

if TYPE_CHECKING:
    import pyarrow as pa

    from lakesync.analysis.moments import AsOf
    from lakesync.config import Config

Data = Annotated[Path | None, typer.Option("--data", help="The folder that keeps everything.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a row instead of a table.")]


def query(
    sql: Annotated[str, typer.Argument(help="The query; `-` reads it from stdin.", show_default=False)],
    as_of: Annotated[
        str | None,
        typer.Option(
            help="A time (UTC unless it says otherwise), an arrival, or snapshot:ID: what had arrived by then.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        Literal["duckdb", "spark"], typer.Option(help="duckdb needs no Java; spark is that of `lakesync up`.")
    ] = "duckdb",
    rows: Annotated[int, typer.Option(help="The most rows that a table shows.", min=1)] = 200,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Ask the lake: every synced table by its name, and the history as `deltas`, with what is not flushed yet.

    A table has its columns, and `_gateway`, `_row` (the row's id) and `_arrival` beside them; deleted rows are left
    out. `hlc_time(x)` reads an hlc or an arrival as a time.
    """
    from rich.console import Console

    from lakesync.analysis.moments import parse_as_of

    text = sys.stdin.read() if sql == "-" else sql
    config = load({"data_dir": data} if data else {})
    moment = parse_as_of(as_of) if as_of else None
    with Console(stderr=True).status("asking the lake"):
        answer = _engine(engine)(config, text, moment)
    if as_json:
        for row in told(answer):
            print(msgspec.json.encode(row, enc_hook=_spelled).decode())
    else:
        _show(answer, rows)


def _engine(name: str) -> Callable[[Config, str, AsOf | None], pa.Table]:
    if name == "spark":
        from lakesync.cli import query_spark

        return query_spark.query
    from lakesync.analysis.query import query as on_duckdb

    return on_duckdb


def told(answer: pa.Table) -> Iterator[Mapping[str, Any]]:
    """The rows as mappings, maps as mappings too."""
    import pyarrow as pa

    maps = [field.name for field in answer.schema if pa.types.is_map(field.type)]
    for batch in answer.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            for name in maps:
                row[name] = None if row[name] is None else dict(row[name])
            yield row


def _show(answer: pa.Table, most: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(soft_wrap=False)
    shown = Table(box=None, header_style="bold", pad_edge=False)
    import pyarrow.types as kinds

    for field in answer.schema:
        number = kinds.is_integer(field.type) or kinds.is_floating(field.type) or kinds.is_decimal(field.type)
        shown.add_column(Text(field.name), justify="right" if number else "left", overflow="fold")
    for row in told(answer.slice(0, most)):
        shown.add_row(*(_cell(value) for value in row.values()))
    console.print(shown)
    count = f"{answer.num_rows:,} row" + ("" if answer.num_rows == 1 else "s")
    more = f", the first {most} of them shown: --rows N or --json shows more" if answer.num_rows > most else ""
    print(f"{count}{more}", file=sys.stderr)


def _cell(value: object) -> Any:
    from rich.text import Text

    match value:
        case None:
            return Text("null", style="dim")
        case str():
            return Text(value)
        case dict() | list():
            return Text(msgspec.json.encode(value, enc_hook=_spelled).decode())
    return Text(str(value))


def _spelled(value: object) -> object:
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
    return str(value)
