"""Creates the lake's Iceberg tables, adds columns to state tables, and sets table properties.

`deltas` has the history: all deltas (changes of one row) that gateways (streams of changes, one for each app) have
accepted from clients. A state table has the current rows of one synced table, merged from the history, in *typed
columns* by the table's schema. A *contract* says what happens to columns that clients register later. Flushes, merges
and checks, which may be the first to need a table, call this module. `lakehouse.table_definitions` has the tables'
columns and properties.
"""

from __future__ import annotations

import json
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from lakehouse.table_access import TableVersion, read_version, version_if_there
from lakehouse.table_definitions import (
    BUCKETS,
    DELTAS_FIELDS,
    DELTAS_PROPERTIES,
    NAMES,
    REJECTED_PROPERTY,
    SPARK_TYPES,
    STATE_FIELDS,
    STATE_PROPERTIES,
    LakeNames,
)
from lakesync.analysis.catalogue import UNFILLED_PROPERTY, merge_marks, unfilled_columns
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import SchemaError
from lakesync.model.schema import RESERVED_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from lakesync.config.pipeline_sections import Contract
    from lakesync.model.schema import TableSchema

_NAMESPACE_LOCK = threading.Lock()
"""Held while a namespace is created."""


class StateTable(msgspec.Struct, frozen=True):
    """A state table after `ensure_state`, with the columns of its schema."""

    table: str
    """Name of the synced table."""
    name: str
    """Full, quoted name of the state table."""
    columns: tuple[tuple[str, str], ...]
    """Name and schema type of each typed column, also those of other gateways' schemas of the table."""
    snapshot_id: int | None
    """Id of the current snapshot; None if the table is empty."""
    marks: dict[str, int]
    """Gateway → the arrival (the gateway's timestamp of a push) up to which its deltas are merged."""
    has_new_columns: bool
    """Whether columns were added by this merge, or by a killed one, so that earlier rows have null in them."""
    ever_rejected: bool = False
    """Whether values of the table were ever written to the table `rejected`, because they did not fit their column."""


def ensure_deltas(spark: SparkSession, names: LakeNames = NAMES) -> TableVersion:
    """Create the history table if it is missing, and return its current version.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
    """
    version = version_if_there(spark, names.deltas)
    if version is not None:
        _upgrade(spark, names.deltas, version, DELTAS_PROPERTIES)
        return version
    create_table(spark, names.deltas, DELTAS_FIELDS, "bucket(4, gateway), day", DELTAS_PROPERTIES)
    return read_version(spark, names.deltas)


def ensure_gateways(spark: SparkSession, names: LakeNames) -> TableVersion:
    """Create the table of the gateways' configurations if it is missing, and return its current version.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
    """
    version = version_if_there(spark, names.gateways)
    if version is not None:
        return version
    create_table(spark, names.gateways, "gateway string")
    return read_version(spark, names.gateways)


def ensure_state(
    spark: SparkSession, schema: TableSchema, names: LakeNames, contract: Contract = "evolve"
) -> StateTable:
    """Create a state table, or add the schema's new columns to it as far as its contract allows.

    An existing column keeps its type, even if the schema has another one. Values that do not fit it are stored in
    `_cells` and in the table `rejected`. So no tenant's schema can stop the merge of a table that others share.

    Args:
        spark: an open Spark session.
        schema: the table's schema, joined from those of its gateways.
        names: catalogue and namespaces of the lake's tables.
        contract: what happens to columns that an existing state table lacks: `evolve` adds them, `freeze` raises
            SchemaError, `discard` leaves them out.

    Raises:
        SchemaError: the table's name differs from another table's only in case, or the table is frozen and the schema
            has further columns.
    """
    # gateways may spell a column differently, which the catalogue does not distinguish; the first spelling counts
    spellings: dict[str, str] = {}
    for column in schema.types:
        spellings.setdefault(column.lower(), column)
    wanted: dict[str, str] = {column: schema.types[column] for column in spellings.values()}
    name = names.state(schema.table)
    version = version_if_there(spark, name)
    if version is None:
        typed = "".join(f", {_column(column, schema_type)}" for column, schema_type in wanted.items())
        create_table(spark, name, f"{STATE_FIELDS}{typed}", f"bucket({BUCKETS}, _row)", STATE_PROPERTIES)
    else:
        _upgrade(spark, name, version, STATE_PROPERTIES)
    stored = typed_columns(spark, name)
    # a column whose name differs from a stored one's only in case is not added
    lower_names = {column.lower() for column in stored}
    missing = {column: schema_type for column, schema_type in wanted.items() if column.lower() not in lower_names}
    if missing and contract == "freeze":
        raise SchemaError(
            f"the schema of {schema.table} has the columns {', '.join(missing)}, which its state table lacks, and its "
            f"contract is freeze: in [tables.{schema.table}], evolve would add them and discard would ignore them"
        )
    if missing and contract == "discard":
        missing = {}
    unfilled = unfilled_columns(version.properties) if version is not None else []
    if missing:
        if version is not None:  # before the columns are added, so that after a killed run the next one fills them
            set_properties(spark, name, {UNFILLED_PROPERTY: json.dumps([*unfilled, *missing])})
        crash_point("tables.growing")  # tests kill the process here
        added = ", ".join(_column(column, schema_type) for column, schema_type in missing.items())
        spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({added})")
        crash_point("tables.grown")
        stored |= missing
    if version is None or missing:
        version = read_version(spark, name)
    return StateTable(
        schema.table,
        name,
        tuple(stored.items()),
        version.snapshot_id,
        merge_marks(version.properties),
        has_new_columns=bool(missing or unfilled),
        ever_rejected=REJECTED_PROPERTY in version.properties,
    )


def record_filled(spark: SparkSession, table: StateTable) -> None:
    """Record that all rows of a state table have the columns that were added.

    Args:
        spark: an open Spark session.
        table: the state table.
    """
    spark.sql(f"ALTER TABLE {table.name} UNSET TBLPROPERTIES IF EXISTS ('{UNFILLED_PROPERTY}')")


def set_properties(spark: SparkSession, name: str, properties: Mapping[str, str]) -> None:
    """Set properties of a table. Keys and values are parameters of the statement, because they may be tenants' ids.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.
        properties: property → value.
    """
    pairs = ", ".join(f":key{number} = :value{number}" for number in range(len(properties)))
    parameters = {
        f"{part}{number}": text
        for number, pair in enumerate(properties.items())
        for part, text in zip(("key", "value"), pair, strict=True)
    }
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({pairs})", args=parameters)


def typed_columns(spark: SparkSession, name: str) -> dict[str, str]:
    """Return typed column → schema type of a state table, in the order of the columns. The type is their comment.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.
    """
    fields = spark.table(name).schema.fields
    return {field.name: str(field.metadata["comment"]) for field in fields if field.name not in RESERVED_COLUMNS}


def create_table(
    spark: SparkSession,
    name: str,
    columns: str,
    partitions: str = "",
    properties: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Create an Iceberg table, unless another run has just created it, and its namespace if it is missing.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.
        columns: the columns, as Spark's SQL declares them.
        partitions: the partition fields, as Spark's SQL declares them; empty for none.
        properties: property → value.

    Raises:
        SchemaError: another table exists whose name differs only in case.
    """
    catalogue, namespace, table = name.replace("`", "").split(".")
    if _exists(spark, catalogue, namespace, table):
        return
    with _NAMESPACE_LOCK:  # two statements at once would conflict
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS `{catalogue}`.`{namespace}`")
    partitioned = f" PARTITIONED BY ({partitions})" if partitions else ""
    pairs = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    with_properties = f" TBLPROPERTIES ({pairs})" if pairs else ""
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg{partitioned}{with_properties}")


def _upgrade(spark: SparkSession, name: str, version: TableVersion, wanted: dict[str, str]) -> None:
    """Set the properties that a table lacks or has with other values, because an older LakeSync made it."""
    changed = {key: value for key, value in wanted.items() if version.properties.get(key) != value}
    changed.pop("format-version", None)  # not among the properties
    if changed:
        set_properties(spark, name, changed)


def _exists(spark: SparkSession, catalogue: str, namespace: str, table: str) -> bool:
    """Return whether a table exists.

    Raises:
        SchemaError: another table exists whose name differs only in case.
    """
    namespaces = {row["namespace"] for row in spark.sql(f"SHOW NAMESPACES IN `{catalogue}`").collect()}
    if namespace not in namespaces:
        return False
    names = {row["tableName"] for row in spark.sql(f"SHOW TABLES IN `{catalogue}`.`{namespace}`").collect()}
    if table in names:
        return True
    for other in names:
        if other.lower() == table.lower():
            raise SchemaError(
                f"the name of the table {table!r} differs from the lake's table {other!r} only in case, which the "
                "catalogue does not distinguish; give it another name"
            )
    return False


def _column(name: str, schema_type: str) -> str:
    """Return a typed column as Spark's SQL declares it."""
    return f"`{name}` {SPARK_TYPES[schema_type]} COMMENT '{schema_type}'"
