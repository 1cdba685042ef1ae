"""`lakesync query`: runs SQL over the lake's tables and the unflushed deltas, with DuckDB or Spark.

A delta is a change of a row, which a client pushes to a gateway (one app's stream of deltas). The lake gets deltas by a
flush; until then they are in the gateway's log. An arrival is the gateway's timestamp of a delta, an hlc the client's.

For `--engine spark` it runs `lakehouse.spark_query` in a child process, because the package `lakesync` does not import
Spark. The child reads a JSON request from stdin, and writes an Arrow stream, or a JSON error, to a pipe.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lakesync.cli import output
from lakesync.cli.commands import Data, Json, command_app, examples, load_settings
from lakesync.model.errors import (
    LakeSyncError,
    LakeUnavailableError,
    NotFoundError,
    StagingUnavailableError,
    StartupError,
    ValidationError,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from lakesync.analysis.as_of import AsOf
    from lakesync.config import Config

query_app = command_app()

_ERROR_CODE = 3
"""Exit code of `lakehouse.spark_query` after an expected error, which it reports as JSON."""
_STDERR = 2
"""The file descriptor of stderr."""
_CHILD_ERRORS: tuple[type[LakeSyncError], ...] = (
    ValidationError,
    NotFoundError,
    LakeUnavailableError,
    StagingUnavailableError,
)
"""The errors that `lakehouse.spark_query` reports, by their codes."""


@query_app.command(
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
    sql: Annotated[str, typer.Argument(help="The query; `-` reads stdin.")],
    as_of: Annotated[
        str | None,
        typer.Option(help="Query the past: a time (UTC by default), an arrival, or snapshot:ID; default: now."),
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
    point_in_time = parse_as_of(as_of) if as_of else None
    with output.spinner("querying"):
        # the whole result, although few rows may be shown: the number of all rows is printed
        result = _query_function(engine)(config, text, point_in_time)
    if as_json:
        for row in rows_of(result):
            output.print_json(row)
    else:
        _print_table(result, rows)


def rows_of(result: pa.Table) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a result as dictionaries; Arrow maps, which are lists of pairs, become dictionaries too.

    A column whose name an earlier one has gets a number: of `SELECT a.id, b.id`, the second is `id_1`.
    """
    distinct = result.rename_columns(_distinct_names(result.column_names))
    for batch in distinct.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist(maps_as_pydicts="lossy")


def _query_function(engine: str) -> Callable[[Config, str, AsOf | None], pa.Table]:
    """Return the function that runs a query: settings, SQL and point in time (None: now) to an Arrow table."""
    if engine == "spark":
        return _query_spark
    from lakesync.analysis.query import query as on_duckdb

    return on_duckdb


def _distinct_names(names: Sequence[str]) -> list[str]:
    """Return column names of which no two are equal."""
    result: list[str] = []
    for name in names:
        # A name with a number must not be another column's own name either.
        numbered = (f"{name}_{number}" for number in count(1))
        candidates = chain((name,), (each for each in numbered if each not in names))
        result.append(next(each for each in candidates if each not in result))
    return result


def _print_table(result: pa.Table, max_rows: int) -> None:
    """Print the first rows of a result as a table, and the number of all rows on stderr."""
    import pyarrow.types as kinds

    right = [
        kinds.is_integer(field.type) or kinds.is_floating(field.type) or kinds.is_decimal(field.type)
        for field in result.schema
    ]
    rows = ([_cell(value) for value in row.values()] for row in rows_of(result.slice(0, max_rows)))
    output.print_table(result.column_names, rows, right)
    more = f"; the first {max_rows} are shown, use --rows N or --json for more" if result.num_rows > max_rows else ""
    output.note(f"{output.count(result.num_rows, 'row')}{more}")


def _cell(value: object) -> Any:
    """Return a value as a cell; unlike `output.cell`, NULL is shown as `null` and numbers without separators."""
    from rich.text import Text

    if value is None:
        return Text("null", style="dim")
    return output.cell(value) if isinstance(value, dict | list | str) else Text(str(value))


def _query_spark(config: Config, sql: str, as_of: AsOf | None = None) -> pa.Table:
    """Run a query on the configured Spark, or on that of a `lakesync up` with the same data folder.

    Args:
        config: the configuration.
        sql: one query.
        as_of: the point in time to query; None for now, with unflushed deltas.

    Raises:
        ValidationError: the query is invalid.
        NotFoundError: a table or snapshot does not exist.
        LakeUnavailableError, StagingUnavailableError: Spark, the lake or the staging store cannot be read.
        StartupError: the platform is not installed.
    """
    import pyarrow as pa

    if importlib.util.find_spec("pyspark") is None:
        raise StartupError("--engine spark needs pyspark; run pip install 'lakesync[platform]'")
    request = {"sql": sql, "arrival": as_of.arrival if as_of else None, "snapshot": as_of.snapshot if as_of else None}
    exit_code, response = _run_child(json.dumps(request).encode(), _child_environment(config))
    if exit_code == _ERROR_CODE:
        failure = json.loads(response)
        error_class = next((each for each in _CHILD_ERRORS if each.code == failure["code"]), LakeSyncError)
        raise error_class(failure["error"])
    if exit_code:
        raise LakeUnavailableError("the process that queries Spark failed; its output is above")
    return pa.ipc.open_stream(response).read_all()


def _child_environment(config: Config) -> dict[str, str]:
    """Return the variables of the child process: the settings, and only the secrets that it uses."""
    from lakesync.cli.data_folder import with_running_services
    from lakesync.cli.up.services import environment_of

    changes = environment_of(("query",), with_running_services(config), os.environ)
    return {name: value for name, value in {**os.environ, **changes}.items() if value is not None}


def _run_child(request: bytes, variables: Mapping[str, str]) -> tuple[int, bytes]:
    """Run the child process and return its exit code and its response.

    The response has a pipe of its own, because libraries print on stdout, which goes to stderr here.

    Args:
        request: JSON for the child's stdin.
        variables: the child's environment variables.
    """
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as responses:  # noqa: PTH123 a file descriptor
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "lakehouse.spark_query", str(write_end)],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=_STDERR,
                pass_fds=(write_end,),
            )
        finally:
            os.close(write_end)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:  # a child that has ended reads nothing; its exit code says why
            process.stdin.write(request)
        response = responses.read()
        return process.wait(), response
