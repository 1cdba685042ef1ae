"""`query`: runs a SQL query over the lake and the unflushed deltas on DuckDB. `lakesync query` calls it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import duckdb

from lakesync.analysis.catalogue import LakeReader
from lakesync.analysis.duckdb_tables import DuckDbTables
from lakesync.analysis.plans import Planner, explain_unknown_column
from lakesync.analysis.statement import parse_statement
from lakesync.analysis.unflushed import unflushed_table
from lakesync.model.errors import ValidationError

if TYPE_CHECKING:
    import pyarrow as pa

    from lakesync.analysis.as_of import AsOf
    from lakesync.config import Config

_UNKNOWN_COLUMN = re.compile(r"(?:Referenced column|does not have a column named|column) \"([^\"]+)\"")
"""DuckDB's messages about a column that does not exist."""


def query(config: Config, sql: str, as_of: AsOf | None = None) -> pa.Table:
    """Run a query over the state tables, by their names, and over the history, as `deltas`.

    Args:
        config: names the lake and the store.
        sql: a query in DuckDB's SQL.
        as_of: the point in time; None for now, including unflushed deltas.

    Returns:
        The result.

    Raises:
        ValidationError: the text is not a query, or DuckDB cannot run it.
        NotFoundError: a table does not exist, or nothing had arrived at the requested time.
        LakeUnavailableError: there is no catalogue.
        StagingUnavailableError: unflushed deltas cannot be read.
    """
    statement = parse_statement(sql)
    unflushed = unflushed_table(config)  # before the lake: a delta flushed in between is read twice, never missed
    with LakeReader(config) as lake:
        planner = Planner(lake, unflushed, as_of, statement.tables)
        tables = DuckDbTables(config.lake.catalog, planner, unflushed)
        try:
            return tables.run(statement)
        except duckdb.Error as error:
            unknown = _UNKNOWN_COLUMN.search(str(error))
            message = explain_unknown_column(unknown[1], tables.columns) if unknown is not None else None
            raise ValidationError(message or f"DuckDB cannot run this query: {str(error).strip()}") from error
        finally:
            tables.database.close()
