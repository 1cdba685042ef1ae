"""Defines the lake's Iceberg tables: names, columns and properties.

`deltas` has the history: all deltas (changes of one row) that gateways (streams of deltas, one for each app) have
accepted from clients. A state table has the current rows of one synced table, merged from the history.
`lakehouse.table_creation` creates the tables. `lakehouse`, assets and resources use the names. The tables of polled
rows are defined in `lakehouse.landing.tables`.
"""

from __future__ import annotations

import msgspec

REJECTED_PROPERTY = "lakesync.rejected"
"""State table property: number of its values in the table `rejected`; absent if there never was one."""

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

DELTAS_PROPERTIES = {
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
    "write.metadata.metrics.column.shard": "full",  # maintenance joins the files of one shard
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "commit.retry.num-retries": "10",
}
"""Table properties of the history."""

STATE_FIELDS = """
_gateway string, _row string,
_cells map<string, struct<hlc: bigint, client_id: string, delta_id: string, width: int, value: string>>,
_tombstone struct<hlc: bigint, client_id: string>, _inserted struct<hlc: bigint, client_id: string>,
_gone boolean, _arrival bigint
"""
"""A state table's own columns, as Spark's SQL declares them; typed columns follow.

`_row` is the row id. `_cells` has all column values as JSON text, each with the delta that wrote it and that delta's
number of columns (`width`). A delta that still owns so many columns of the row is sent to clients with its own id; the
`width` also breaks ties between deltas. `_tombstone` is the stamp (the client's timestamp and id) of the row's newest
DELETE, `_inserted` that of its newest INSERT, null if a DELETE is newer. `_gone` says whether the row is deleted, and
`_arrival` is the latest arrival of its deltas."""

STATE_PROPERTIES = {
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
"""Table properties of a state table."""


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

    def state(self, table: str) -> str:
        """Return a state table's full, quoted name."""
        return f"`{self.catalogue}`.`{self.tables}`.`{table}`"

    def qualified_name(self, table: str) -> str:
        """Return a state table's name for lists of all tables: with its namespace, unless that is the shared one."""
        return table if self.is_shared else f"{self.tables}.{table}"

    def _of_system(self, table: str) -> str:
        """Return the full, quoted name of a table of LakeSync."""
        return f"`{self.catalogue}`.`{self.system}`.`{table}`"


NAMES = LakeNames()
"""The default names."""
