"""A connector's table in a notebook: by the columns of its schema, or as JSON if the source has no schema."""

import pytest
from pyspark.sql.datasource import InputPartition

from lakehouse.landing.connector_source import TableReader
from lakesync.connectors.base import ConnectorConfig, Page, SourceRow, Table
from lakesync.model.schema import Column, TableSchema


class Source:
    """A source with one row in its table."""

    def __init__(self, schema):
        self.tables = (Table("reports", schema=lambda: schema),)

    def changes(self, table, _cursor):
        yield Page(table, [SourceRow("r1", {"columns": 3, "title": "sales"})])

    def close(self):
        pass


def read(schema):
    reader = TableReader(lambda _: Source(schema), ConnectorConfig("shop", "store", "x", {}), "reports")
    (batch,) = reader.read(InputPartition(None))
    return batch.to_pylist()


@pytest.mark.parametrize(
    ("schema", "row"),
    [
        (None, {"row_id": "r1", "columns": '{"columns":3,"title":"sales"}'}),
        (TableSchema("reports", (Column("columns", "number"),)), {"row_id": "r1", "columns": 3.0}),
        (TableSchema("reports", (Column("columns", "json"),)), {"row_id": "r1", "columns": "3"}),
    ],
)
def test_a_column_named_columns_is_read_by_its_schema(schema, row):
    assert read(schema) == [row]
