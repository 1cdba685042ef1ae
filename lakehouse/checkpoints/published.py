"""A published checkpoint against the snapshots that it was made of."""

from __future__ import annotations

import random
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as sf

from lakehouse.checkpoints.frames import FRAME_COLUMNS, stored_row
from lakehouse.file_systems import place
from lakehouse.side_by_side import side_by_side
from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import NAMES, LakeNames, at
from lakesync.exceptions import ValidationError
from lakesync.feed import render
from lakesync.wire.frames import read_checkpoint
from lakesync.wire.protobuf import decode_response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.staging.records import Cut, CutTable
    from lakesync.types import RowDelta

SAMPLE = 200
"""Rows of a table whose values are compared."""


class CheckpointDifference(msgspec.Struct, frozen=True):
    """What of a table's frames is not its snapshot."""

    gateway: str
    table: str
    what: str


@lake_errors
def unlike_cut(spark: SparkSession, cut: Cut, names: LakeNames = NAMES, *, seed: int = 0) -> list[CheckpointDifference]:
    """Where a cut's frames differ from the snapshots that it names; empty when they agree.

    Each table's rows are counted, its files' sizes summed, and the rows of one frame, `seed` says which, compared with
    what the snapshot has of them.

    Raises:
        LakeUnavailableError: Spark is gone.
    """

    def unlike(table: CutTable) -> list[str]:
        return list(_unlike_table(spark, cut, table, names, random.Random(seed)))  # noqa: S311 no secret

    found = side_by_side(spark, unlike, cut.tables)
    return [
        CheckpointDifference(cut.gateway, table.table, what)
        for table, differences in zip(cut.tables, found, strict=True)
        for what in differences
    ]


def _unlike_table(
    spark: SparkSession, cut: Cut, table: CutTable, names: LakeNames, chance: random.Random
) -> Iterator[str]:
    rows = at(spark, names.state(table.table), table.snapshot_id).where(
        (sf.col("_gateway") == cut.gateway) & ~sf.col("_gone")
    )
    count = rows.count()
    if count != table.rows:
        yield f"the snapshot {table.snapshot_id} has {count} visible rows, the frames {table.rows}"
    size = sum(_size(uri) for uri in table.frames)
    if size != table.bytes:
        yield f"the frames' files have {size} bytes, {table.bytes} were written"
    if table.frames:
        uri = chance.choice(table.frames)
        try:
            deltas = _first_frame(uri)
        except (OSError, ValidationError) as error:
            yield f"{uri} cannot be read: {error}"
        else:
            yield from _unlike_rows(rows, table.table, uri, deltas, chance)


def _unlike_rows(
    snapshot: DataFrame, table: str, uri: str, deltas: tuple[RowDelta, ...], chance: random.Random
) -> Iterator[str]:
    framed = {row: list(of_row) for row, of_row in groupby(deltas, key=lambda delta: delta.row_id)}
    sampled = chance.sample(sorted(framed), min(SAMPLE, len(framed)))
    held = {
        row["_row"]: render.insert(stored_row(table, row))
        for row in snapshot.where(sf.col("_row").isin(sampled)).select(*FRAME_COLUMNS).toArrow().to_pylist()
    }
    for row in sampled:
        if framed[row] != held.get(row):
            yield f"row {row!r} in {uri} is not the snapshot's"


def _size(uri: str) -> int:
    """0 where there is no such file."""
    file_system, path = place(uri)
    return file_system.get_file_info(path).size or 0


def _first_frame(uri: str) -> tuple[RowDelta, ...]:
    file_system, path = place(uri)
    with file_system.open_input_stream(path) as stream:
        return decode_response(next(read_checkpoint(stream))).deltas
