"""The gateways that a state table with the contract `freeze` excludes."""

from types import SimpleNamespace

from pyspark.sql.types import StringType, StructType

from lakehouse.table_definitions import NAMES
from lakehouse.tables.merging import gateways_with_new_columns
from lakesync.model.schema import Column, TableSchema


def test_columns_whose_names_differ_only_in_case_are_not_new():
    stored = StructType().add("_row", StringType()).add("Title", StringType(), metadata={"comment": "string"})
    spark = SimpleNamespace(table=lambda _: SimpleNamespace(schema=stored))
    columns = {"same": ["title"], "more": ["Title", "note"], "unregistered": None}

    def gateway_config(gateway):
        names = columns[gateway]
        if names is None:
            return SimpleNamespace(schemas={})
        schema = TableSchema("notes", columns=tuple(Column(name, "string") for name in names))
        return SimpleNamespace(schemas={"notes": SimpleNamespace(schema=schema)})

    store = SimpleNamespace(gateway_config=gateway_config)
    assert gateways_with_new_columns(spark, store, columns, "notes", NAMES) == {"more"}
