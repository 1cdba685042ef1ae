"""Defines the lake's Iceberg tables: names, columns and properties; creates them, and adds columns to state tables.

`deltas` has the history: all deltas (changes of one row) that gateways have accepted from clients. A state table has
the current rows of one synced table, merged from the history. All modules of `lakehouse` call this module; assets and
resources use the names. The tables of polled rows are defined in `lakehouse.landing.tables`.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Literal

import msgspec

from lakesync.model.crash_points import crash_point
from lakesync.model.errors import SchemaError
from lakesync.model.schema import RESERVED_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.model.schema import TableSchema

MARKS_PROPERTY = "lakesync.merged"
"""State table property: its marks, as JSON `{gateway: arrival}`. All deltas of the gateway up to this arrival (the
gateway's timestamp of receipt) are merged."""

REJECTED_PROPERTY = "lakesync.rejected"
"""State table property: number of its values in the table `rejected`; absent if there never was one."""

UNFILLED_PROPERTY = "lakesync.unfilled"
"""State table property: JSON array of added columns that are still null in rows which were merged before."""

SPARK_TYPES = {"string": "string", "number": "double", "boolean": "boolean", "json": "string", "null": "string"}
"""Schema type → Spark type of the typed column; the schema type itself is the column's comment."""

BUCKETS = 2
"""Number of buckets of a new state table, by row id. A task writes whole buckets. A growing table gets more
(`lakehouse.tables.writes`)."""

_DICTIONARY_BYTES = str(64 << 10)
"""Size from which Parquet stops to encode a column by a dictionary. For a column of ids, whose values are all
different, a larger dictionary would only cost look-ups."""

DELTAS_FIELDS = """
gateway string, shard string, epoch bigint, batch_id string, seq bigint,
ordinal int COMMENT 'place in its push', arrival bigint,
day date COMMENT 'UTC day of the arrival', table_name string, row_id string,
op string, client_id string, hlc bigint, delta_id string,
width int COMMENT 'columns it came with', columns map<string, string> COMMENT 'JCS text of each value'
"""
"""The history's columns, as Spark's SQL declares them.

`shard` names the staging store that the delta was pushed to, which has some of the tables; `epoch` identifies that
store's copy of the gateway's data, and `seq` is the push's number in its log. `arrival` is the gateway's timestamp of
the push, `hlc` the client's timestamp of the change. `width` is the number of columns that the delta was pushed
with, 0 after its erasure; see `STATE_FIELDS` for its use."""

_DELTAS_PROPERTIES = {
    "format-version": "2",
    # A flush's task has deltas of one gateway and a day or two: a file each, no shuffle before it.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.parquet.compression-level": "1",
    "write.parquet.row-group-size-bytes": str(16 << 20),
    "write.parquet.dict-size-bytes": _DICTIONARY_BYTES,
    # batches and arrivals are looked up by column bounds, which are cut at 16 characters by default
    "write.metadata.metrics.column.batch_id": "full",
    "write.metadata.metrics.column.gateway": "full",
    "write.metadata.metrics.column.table_name": "full",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "commit.retry.num-retries": "10",
}

STATE_FIELDS = """
_gateway string, _row string,
_cells map<string, struct<hlc: bigint, client_id: string, delta_id: string, width: int, value: string>>,
_tombstone struct<hlc: bigint, client_id: string>, _inserted struct<hlc: bigint, client_id: string>,
_gone boolean, _arrival bigint
"""
"""A state table's own columns, as Spark's SQL declares them; typed columns follow.

`_row` is the row id. `_cells` has all column values as JSON text, each with the delta that wrote it and that delta's
number of columns (`width`). A delta that still owns so many columns of the row is sent to clients with its own id; the
`width` also breaks ties between deltas. `_tombstone` is
the stamp (the client's timestamp and id) of the row's newest DELETE, `_inserted` that of its newest INSERT. `_gone`
says whether the row is deleted, and `_arrival` is the latest arrival of its deltas."""

_STATE_PROPERTIES = {
    "format-version": "2",
    # Tasks have whole buckets in order: nothing to shuffle or sort before a write.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    "write.delete.distribution-mode": "none",
    "write.delete.granularity": "file",
    "write.spark.fanout.enabled": "true",
    "write.parquet.compression-level": "1",
    # about 20,000 rows; of a row group without a wanted row only the ids are read
    "write.parquet.row-group-size-bytes": str(8 << 20),
    "write.parquet.dict-size-bytes": _DICTIONARY_BYTES,
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    "write.merge.isolation-level": "serializable",
    "write.update.isolation-level": "serializable",
    "write.delete.isolation-level": "serializable",
    "write.metadata.metrics.column._gateway": "full",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "commit.retry.num-retries": "10",
}


class LakeNames(msgspec.Struct, frozen=True):
    """The names of the lake's catalogue and namespaces, and of the tables in them."""

    catalogue: str = "lake"
    """Spark's name of the catalogue."""
    system: str = "lakesync"
    """Namespace of the history and of other tables of LakeSync."""
    tables: str = "tables"
    """Namespace of the state tables."""
    is_shared: bool = True
    """Whether `tables` is the namespace that gateways share; False for one that belongs to some gateways."""

    @property
    def deltas(self) -> str:
        """The full, quoted name of the history."""
        return self._of_system("deltas")

    @property
    def gateways(self) -> str:
        """The full, quoted name of the table with the configurations of gateways."""
        return self._of_system("gateways")

    @property
    def rejected(self) -> str:
        """The full, quoted name of the table of values that do not fit their columns."""
        return self._of_system("rejected")

    @property
    def landing(self) -> str:
        """The full, quoted name of the table of everything that polls have read from external systems."""
        return self._of_system("landing")

    @property
    def known(self) -> str:
        """The full, quoted name of the table of the polled rows' newest versions."""
        return self._of_system("known")

    def in_namespace(self, namespace: str) -> LakeNames:
        """Return the names with another namespace of state tables; `""` is the one that gateways share."""
        return msgspec.structs.replace(self, tables=namespace, is_shared=False) if namespace else self

    def _of_system(self, table: str) -> str:
        """Return the full, quoted name of a table of LakeSync."""
        return f"`{self.catalogue}`.`{self.system}`.`{table}`"

    def state(self, table: str) -> str:
        """Return a state table's full, quoted name."""
        return f"`{self.catalogue}`.`{self.tables}`.`{table}`"

    def qualified_name(self, table: str) -> str:
        """Return a state table's name for lists of all tables: with its namespace, unless that is the shared one."""
        return table if self.is_shared else f"{self.tables}.{table}"


NAMES = LakeNames()
"""The default names."""
_NAMESPACE_LOCK = threading.Lock()

Contract = Literal["evolve", "freeze", "discard"]
"""What happens to columns that are registered after the state table was created. `evolve` adds them, `freeze` rejects
the merge, `discard` does not add them, so that their values are only in `_cells`, which has all values of a row."""


class TableVersion(msgspec.Struct, frozen=True):
    """A table's current snapshot and properties."""

    snapshot_id: int | None
    """Id of the snapshot; None if nothing was ever written."""
    properties: dict[str, str]


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
    """Gateway → the arrival up to which its deltas are merged."""
    has_new_columns: bool
    """Whether columns were added by this merge, or by one that was killed, so that earlier rows have null in them."""
    ever_rejected: bool = False
    """Whether values of the table were ever written to the table `rejected`, because they did not fit their column."""


def read_version(spark: SparkSession, name: str) -> TableVersion:
    """Return a table's current snapshot and properties.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.

    Raises:
        pyiceberg.exceptions.NoSuchTableError: there is no such table.
    """
    from lakehouse.table_access import open_table  # imports pyarrow; the code location needs only names

    with open_table(spark, name) as table:
        return TableVersion(table.metadata.current_snapshot_id, table.properties)


def version_if_there(spark: SparkSession, name: str) -> TableVersion | None:
    """Return a table's current snapshot and properties; None if there is no such table.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.
    """
    from pyiceberg.exceptions import NoSuchTableError
    from sqlalchemy.exc import DBAPIError

    try:
        return read_version(spark, name)
    except NoSuchTableError:
        return None
    except DBAPIError:  # a new catalogue is empty until Spark first opens it
        return read_version(spark, name) if spark.catalog.tableExists(name) else None


def at_snapshot(spark: SparkSession, name: str, snapshot: int) -> DataFrame:
    """Return the rows of a table at one of its snapshots.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.
        snapshot: id of the snapshot.
    """
    return spark.read.option("versionAsOf", str(snapshot)).table(name)


def marks_of(version: TableVersion) -> dict[str, int]:
    """Return a state table's marks: gateway → the arrival up to which its deltas are merged; empty if it has none."""
    return json.loads(version.properties.get(MARKS_PROPERTY, "{}"))  # type: ignore[no-any-return]


def ensure_deltas(spark: SparkSession, names: LakeNames = NAMES) -> TableVersion:
    """Create the history table if it is missing, and return its current version.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
    """
    found = version_if_there(spark, names.deltas)
    if found is not None:
        _upgrade(spark, names.deltas, found, _DELTAS_PROPERTIES)
        return found
    # `_exists` raises if a name differs only in case, and returns True if another run has just created the table
    if not _exists(spark, names.catalogue, names.system, "deltas"):
        _ensure_namespace(spark, names.catalogue, names.system)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {names.deltas} ({DELTAS_FIELDS}) USING iceberg "
            f"PARTITIONED BY (bucket(4, gateway), day) TBLPROPERTIES ({property_list(_DELTAS_PROPERTIES)})"
        )
    return read_version(spark, names.deltas)


def ensure_gateways(spark: SparkSession, names: LakeNames = NAMES) -> TableVersion:
    """Create the table of the gateways' configurations if it is missing, and return its current version.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
    """
    found = version_if_there(spark, names.gateways)
    if found is not None:
        return found
    _ensure_namespace(spark, names.catalogue, names.system)
    spark.sql(f"CREATE TABLE IF NOT EXISTS {names.gateways} (gateway string) USING iceberg")
    return read_version(spark, names.gateways)


def ensure_state(
    spark: SparkSession, schema: TableSchema, names: LakeNames = NAMES, contract: Contract = "evolve"
) -> StateTable:
    """Create a state table, or add the schema's new columns to it as far as its contract allows.

    An existing column keeps its type, even if the schema has another one. Values that do not fit it are stored in
    `_cells` and in the table `rejected`. So no tenant's schema can stop the merge of a table that others share.

    Args:
        spark: an open Spark session.
        schema: the table's schema, joined from those of its gateways.
        names: catalogue and namespaces of the lake's tables.
        contract: what happens to columns that an existing state table lacks.

    Raises:
        SchemaError: the table's name differs from another table's only in case, or the table is frozen and the schema
            has further columns.
    """
    wanted: dict[str, str] = dict(schema.types)
    name = names.state(schema.table)
    version = version_if_there(spark, name)
    # `_exists`: see `ensure_deltas`
    if version is None and not _exists(spark, names.catalogue, names.tables, schema.table):
        typed = "".join(f", {_column(column, schema_type)}" for column, schema_type in wanted.items())
        _ensure_namespace(spark, names.catalogue, names.tables)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {name} ({STATE_FIELDS}{typed}) USING iceberg "
            f"PARTITIONED BY (bucket({BUCKETS}, _row)) TBLPROPERTIES ({property_list(_STATE_PROPERTIES)})"
        )
    elif version is not None:
        _upgrade(spark, name, version, _STATE_PROPERTIES)
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
    unfilled = json.loads(version.properties.get(UNFILLED_PROPERTY, "[]")) if version is not None else []
    if missing:
        if version is not None:  # before the columns are added, so that a killed run leaves a record
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
        marks_of(version),
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
    """Return typed column → schema type of a state table, in the order of the columns.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.
    """
    fields = spark.table(name).schema.fields
    return {field.name: str(field.metadata["comment"]) for field in fields if field.name not in RESERVED_COLUMNS}


def _ensure_namespace(spark: SparkSession, catalogue: str, namespace: str) -> None:
    """Create a namespace if it is missing. Only one thread does so at a time, because two at once would conflict."""
    with _NAMESPACE_LOCK:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS `{catalogue}`.`{namespace}`")


def _upgrade(spark: SparkSession, name: str, version: TableVersion, wanted: dict[str, str]) -> None:
    """Set the properties that a table lacks or has with other values: an earlier version of LakeSync created it."""
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


def property_list(properties: Mapping[str, str]) -> str:
    """Return table properties as Spark's SQL declares them."""
    return ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
