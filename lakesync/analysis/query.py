"""A query from SQL to rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import duckdb

from lakesync.analysis.catalogue import Lake
from lakesync.analysis.plans import Plans, suggestion
from lakesync.analysis.statement import read_statement
from lakesync.analysis.tables import Tables
from lakesync.analysis.unflushed import unflushed
from lakesync.model.errors import ValidationError

if TYPE_CHECKING:
    import pyarrow as pa

    from lakesync.analysis.moments import AsOf
    from lakesync.config import Config


def query(config: Config, sql: str, as_of: AsOf | None = None) -> pa.Table:
    """Run a query over the state tables by their names and over the history as `deltas`, now or at a moment.

    Raises:
        ValidationError: the SQL is none, or cannot be run.
        NotFoundError: a table that it names is not there, or nothing was at that moment.
        LakeUnavailableError: there is no catalogue where the configuration says.
        StagingUnavailableError: what is not flushed yet cannot be read.
    """
    statement = read_statement(sql)
    waiting = unflushed(config)  # before the lake: what moves meanwhile is seen twice rather than never
    with Lake(config) as lake:
        plans = Plans(lake, waiting, as_of, statement.tables)
        tables = Tables(config.lake.catalog, plans, waiting)
        try:
            return tables.answer(statement)
        except duckdb.Error as error:
            unknown = _UNKNOWN_COLUMN.search(str(error))
            better = suggestion(unknown[1], tables.columns) if unknown is not None else None
            raise ValidationError(better or f"DuckDB cannot run this: {str(error).strip()}") from error
        finally:
            tables.database.close()


_UNKNOWN_COLUMN = re.compile(r"(?:Referenced column|does not have a column named|column) \"([^\"]+)\"")
"""What DuckDB says of a column that is not there."""
