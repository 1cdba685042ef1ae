"""`lakesync query`: SQL over the lake and over what is not in it yet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Json, settings

if TYPE_CHECKING:
    import pyarrow as pa

    from lakesync.analysis.as_of import AsOf
    from lakesync.config import Config

app = command_app()


@app.command(
    epilog=examples(
        ("lakesync query 'SELECT status, count(*) FROM orders GROUP BY ALL'", "now, with what is not flushed yet"),
        ("lakesync query 'FROM orders' --as-of 2026-11-20T18:00 --json", "what had arrived by then"),
        (
            "lakesync query \"SELECT hlc_time(arrival), op, columns FROM deltas WHERE table_name = 'orders'\"",
            "the history",
        ),
    )
)
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
    from lakesync.analysis.as_of import parse_as_of

    text = sys.stdin.read() if sql == "-" else sql
    config = settings(data)
    moment = parse_as_of(as_of) if as_of else None
    with output.working("asking the lake"):
        answer = _engine(engine)(config, text, moment)
    if as_json:
        for row in told(answer):
            output.record(row)
    else:
        _show(answer, rows)


def _engine(name: str) -> Callable[[Config, str, AsOf | None], pa.Table]:
    if name == "spark":
        from lakesync.cli.local import spark_query

        return spark_query.query
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
    import pyarrow.types as kinds

    right = [
        kinds.is_integer(field.type) or kinds.is_floating(field.type) or kinds.is_decimal(field.type)
        for field in answer.schema
    ]
    rows = ([_cell(value) for value in row.values()] for row in told(answer.slice(0, most)))
    output.table([field.name for field in answer.schema], rows, right)
    count = f"{answer.num_rows:,} row" + ("" if answer.num_rows == 1 else "s")
    more = f", the first {most} of them shown: --rows N or --json shows more" if answer.num_rows > most else ""
    output.note(f"{count}{more}")


def _cell(value: object) -> Any:
    from rich.text import Text

    if value is None:
        return Text("null", style="dim")
    return output.cell(value) if isinstance(value, dict | list | str) else Text(str(value))
