"""Data files of Iceberg tables that tasks write by themselves, and what a commit has to know of them.

Spark's own writer takes rows: Arrow's columns made into rows and back into Parquet's columns cost it several times as
much as writing them does here.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.file_systems import on_s3, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.types import IcebergType

WRITTEN = pa.schema(
    [
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("partition", pa.string()),
        ("footer", pa.binary()),
    ]
)
"""What a task tells of a file: its Parquet footer, and its partition as the folder is called."""

WRITTEN_SCHEMA = "path string, rows bigint, bytes bigint, partition string, footer binary"

BUCKET_ROWS = "lakesync.bucket-rows"
"""In the footer of a file of the history whose row groups are one bucket's each: JSON, the rows of each bucket of a
state table. A group of no rows is not written."""

_FIELD_ID = "PARQUET:field_id"
_PATH, _POS = 2147483546, 2147483545  # reserved by Iceberg

DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {_FIELD_ID: str(_PATH)}),
        pa.field("pos", pa.int64(), False, {_FIELD_ID: str(_POS)}),
    ]
)
"""Of a file of deleted rows' places, in order of both."""

_COMPRESSION, _LEVEL = "zstd", 1
_IN_MAP = ".key_value."
_ALL_METRICS = {"write.metadata.metrics.default": "full"}
_UNIQUE = frozenset(("delta_id", "row_id", "_row", "hlc", "seq", "ordinal", "value", "_arrival"))


class Layout(NamedTuple):
    """How files of a table are written; goes to the tasks."""

    schema: pa.Schema
    """With the ids of Iceberg's fields."""
    folder: str
    coded: tuple[str, ...] = ()
    """Leaves of which a dictionary is made: not where nearly each value is another, as then plain ones take less."""
    bounded: tuple[str, ...] | None = None
    """Leaves of which the least and the greatest value are noted; None: of all. Nobody looks for what is in a map, and
    ids that are hashes are everywhere between the two."""

    @classmethod
    def of(cls, table: Table) -> Layout:
        """That of a table as it is now."""
        from pyiceberg.io.pyarrow import parquet_path_to_id_mapping

        fields = [
            pa.field(each.name, _arrow(each.field_type), not each.required, {_FIELD_ID: str(each.field_id)})
            for each in table.schema().fields
        ]
        leaves = parquet_path_to_id_mapping(table.schema())
        coded = tuple(leaf for leaf in leaves if leaf.rpartition(".")[2] not in _UNIQUE)
        bounded = tuple(leaf for leaf in leaves if _is_bounded(leaf))
        return cls(pa.schema(fields), f"{table.location()}/data", coded, bounded)


def write_data_file(
    layout: Layout, partition: str, groups: Iterable[pa.Table], properties: Mapping[str, str] | None = None
) -> pa.RecordBatch:
    """Write one file; a row of `WRITTEN` about it.

    It belongs to the table once it is committed; until then it is an orphan, which maintenance removes.

    Args:
        layout: of the table.
        partition: as the folder is called, `field=value/field=value`.
        groups: rows in the columns of the table, each group a row group of its own.
        properties: kept in the file's footer.
    """
    uri = f"{layout.folder}/{partition}/{uuid.uuid4()}.parquet"
    file_system, path = place_of(uri)
    if not on_s3(uri):
        file_system.create_dir(path.rpartition("/")[0], recursive=True)
    footers: list[pq.FileMetaData] = []
    rows = 0
    with (
        file_system.open_output_stream(path) as stream,
        pq.ParquetWriter(
            stream,
            layout.schema,
            compression=_COMPRESSION,
            compression_level=_LEVEL,
            use_dictionary=list(layout.coded),
            write_statistics=list(layout.bounded) if layout.bounded is not None else True,
            metadata_collector=footers,
        ) as writer,
    ):
        for group in groups:
            writer.write_table(group.select(layout.schema.names), row_group_size=max(1, group.num_rows))
            rows += group.num_rows
        if properties:
            writer.add_key_value_metadata(dict(properties))
    footer = pa.BufferOutputStream()
    footers[0].write_metadata_file(footer)
    size = file_system.get_file_info(path).size
    told = [[uri], [rows], [size], [partition], [footer.getvalue().to_pybytes()]]
    return pa.record_batch([pa.array(each, field.type) for each, field in zip(told, WRITTEN, strict=True)], WRITTEN)


def data_files(
    table: Table, written: pa.Table, partition_of: Callable[[str], tuple[object, ...]], *, deletes: bool = False
) -> list[DataFile]:
    """What tasks wrote as a commit takes it.

    Args:
        table: as it was when its layout was made.
        written: rows of `WRITTEN`.
        partition_of: a partition's values, from the name of its folder.
        deletes: whether these are files of `DELETES`, rather than of the table's rows.
    """
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema, properties = (_deletes_schema(), _ALL_METRICS) if deletes else (table.schema(), table.properties)
    plan = compute_statistics_plan(schema, dict(properties))
    places = parquet_path_to_id_mapping(schema)
    unbounded = {field for leaf, field in places.items() if not _is_bounded(leaf)}
    nothing = MetricsMode(MetricModeTypes.NONE)
    plan = {field: replace(each, mode=nothing) if field in unbounded else each for field, each in plan.items()}
    found = []
    for row in written.to_pylist():
        footer = pq.read_metadata(pa.BufferReader(row["footer"]))
        statistics = data_file_statistics_from_parquet_metadata(footer, plan, places)
        found.append(
            DataFile.from_args(
                content=DataFileContent.POSITION_DELETES if deletes else DataFileContent.DATA,
                file_path=row["path"],
                file_format=FileFormat.PARQUET,
                partition=Record(*partition_of(row["partition"])),
                file_size_in_bytes=row["bytes"],
                sort_order_id=None,
                spec_id=table.metadata.default_spec_id,
                equality_ids=None,
                key_metadata=None,
                **statistics.to_serialized_dict(),
            )
        )
    return found


def _is_bounded(leaf: str) -> bool:
    return _IN_MAP not in leaf and leaf != "delta_id"


def _deletes_schema() -> Schema:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType

    path = NestedField(_PATH, "file_path", StringType(), required=True)
    return Schema(path, NestedField(_POS, "pos", LongType(), required=True))


def _arrow(kind: IcebergType) -> pa.DataType:
    """The Arrow type with the ids of what is inside of it."""
    from pyiceberg import types as ice

    if isinstance(kind, ice.StructType):
        return pa.struct(
            [
                pa.field(each.name, _arrow(each.field_type), not each.required, {_FIELD_ID: str(each.field_id)})
                for each in kind.fields
            ]
        )
    if isinstance(kind, ice.MapType):
        key = pa.field("key", _arrow(kind.key_type), False, {_FIELD_ID: str(kind.key_id)})
        value = pa.field("value", _arrow(kind.value_type), not kind.value_required, {_FIELD_ID: str(kind.value_id)})
        return pa.map_(key, value)
    assert isinstance(kind, ice.PrimitiveType)
    return {
        ice.StringType: pa.string(),
        ice.LongType: pa.int64(),
        ice.IntegerType: pa.int32(),
        ice.DoubleType: pa.float64(),
        ice.BooleanType: pa.bool_(),
        ice.DateType: pa.date32(),
    }[type(kind)]
