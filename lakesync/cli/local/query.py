"""`lakesync query`: runs SQL over the lake and the unflushed deltas."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Json, load_settings

if TYPE_CHECKING:
    import pyarrow as pa

    from lakesync.analysis.as_of import AsOf
    from lakesync.config import Config

app = command_app()


@app.command(
    epilog=examples(
        ("lakesync query 'SELECT status, count(*) FROM orders GROUP BY ALL'", "now, with unflushed deltas"),
        ("lakesync query 'FROM orders' --as-of 2026-11-20T18:00 --json", "the rows at a time"),
        (
            "lakesync query \"SELECT hlc_time(arrival), op, columns FROM deltas WHERE table_name = 'orders'\"",
            "the history of a table",
        ),
    )
)
def query(
    sql: Annotated[str, typer.Argument(help="The query; `-` reads stdin.", show_default=False)],
    as_of: Annotated[
        str | None,
        typer.Option(
            help="Query the past: a time (UTC by default), an arrival, or snapshot:ID; default: now.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        Literal["duckdb", "spark"], typer.Option(help="duckdb runs here; spark uses the Spark of `lakesync up`.")
    ] = "duckdb",
    rows: Annotated[int, typer.Option(help="Rows to print at most.", min=1)] = 200,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Run a SQL query over the lake and the unflushed deltas.

    Every synced table has its name, and the history of all deltas is `deltas`. A table has its own columns and
    `_gateway`, `_row` (the row id) and `_arrival`; deleted rows are left out. `hlc_time(x)` converts an hlc or arrival
    to a time.
    """
    from lakesync.analysis.as_of import parse_as_of

    text = sys.stdin.read() if sql == "-" else sql
    config = load_settings(data)
    point = parse_as_of(as_of) if as_of else None
    with output.spinner("querying"):
        answer = _engine(engine)(config, text, point)
    if as_json:
        for row in rows_of(answer):
            output.record(row)
    else:
        _show(answer, rows)


def _engine(name: str) -> Callable[[Config, str, AsOf | None], pa.Table]:
    if name == "spark":
        from lakesync.cli.local import spark_query

        return spark_query.query
    from lakesync.analysis.query import query as on_duckdb

    return on_duckdb


def rows_of(answer: pa.Table) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a result as dictionaries, with maps as dictionaries too."""
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
    rows = ([_cell(value) for value in row.values()] for row in rows_of(answer.slice(0, most)))
    output.table([field.name for field in answer.schema], rows, right)
    count = f"{answer.num_rows:,} row" + ("" if answer.num_rows == 1 else "s")
    more = f"; the first {most} are shown, use --rows N or --json for more" if answer.num_rows > most else ""
    output.note(f"{count}{more}")


def _cell(value: object) -> Any:
    from rich.text import Text

    if value is None:
        return Text("null", style="dim")
    return output.cell(value) if isinstance(value, dict | list | str) else Text(str(value))
