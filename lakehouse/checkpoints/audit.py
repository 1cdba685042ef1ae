"""Compares a published checkpoint's files with the Iceberg snapshots of state tables from which they were made.

A gateway is one app's stream of deltas (changes of rows). A *checkpoint* is all its rows as of one arrival (the
gateway's timestamp of a push), from which new clients start. Its files have the visible rows as frames, protobuf
messages of deltas, one file for each task that wrote a part of a table. A *state table* has the current rows of one
synced table. The check of the asset `checkpoint` (`assets.lake_checks`) calls `checkpoint_differences`.
"""

from __future__ import annotations

import random
from hashlib import sha256
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as sf

from lakehouse.data_files import parse_uri
from lakehouse.faults import Fault
from lakehouse.spark_errors import brief, is_lost, is_unanswered, lake_errors
from lakehouse.table_access import at_snapshot
from lakehouse.table_definitions import LakeNames
from lakehouse.tables.verification import ROW_COLUMNS, stored_row
from lakehouse.task_runner import in_tasks, in_threads
from lakesync.adapters.digests import ARRIVALS_PER_DAY
from lakesync.feed import render
from lakesync.model.errors import ValidationError
from lakesync.model.types import SyncResponse
from lakesync.wire.frames import read_checkpoint
from lakesync.wire.protobuf import decode_response, encode_response

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.model.types import RowDelta
    from lakesync.staging.records import Checkpoint, CheckpointTable

_SENT = pa.schema([("row_id", pa.string()), ("sent", pa.binary()), ("fault", pa.string())])
"""Columns of the rows that tasks make from frames. A row has either the id of a row in the frames and a checksum of the
deltas that a client is sent of it, or the fault of a file."""
_SAME = "same"
"""Verdict on a row that is equal in the snapshot and in the frames."""
SAMPLE = 200
"""Number of rows of a table whose values are compared."""


class CheckpointDifference(Fault, frozen=True):
    """A difference between a table's frames and its snapshot, of one or more rows."""

    table: str
    what: str
    """Description of the difference, for an operator."""
    day: str = ""
    """UTC day of arrival of the rows' newest deltas, `YYYY-MM-DD`; empty if the snapshot does not have the rows."""


@lake_errors
def checkpoint_differences(
    spark: SparkSession, checkpoint: Checkpoint, names: LakeNames, *, seed: int = 0, all_rows: bool = False
) -> list[CheckpointDifference]:
    """Return the differences between a checkpoint's frames and its snapshots; empty if they are equal.

    It compares each table's number of rows and bytes of files, and the rows of one frame, or of all frames.

    Args:
        spark: an open Spark session.
        checkpoint: a published checkpoint.
        names: catalogue and namespaces of the lake's tables.
        seed: chooses the frame and the rows to compare.
        all_rows: True to compare every row of every frame.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """

    def differences_of(table: CheckpointTable) -> list[CheckpointDifference]:
        rows = at_snapshot(spark, names.state(table.table), table.snapshot_id).where(
            (sf.col("_gateway") == checkpoint.gateway) & ~sf.col("_gone")
        )
        try:
            if all_rows:
                return list(_differences_of_all_rows(spark, checkpoint, table, rows))
            return list(_differences_of_sample(checkpoint, table, rows, random.Random(seed)))  # noqa: S311 no secret
        except Exception as error:
            if is_lost(error) or is_unanswered(error):
                raise
            return [_difference(checkpoint, table, f"the snapshot {table.snapshot_id} cannot be read: {brief(error)}")]

    by_table = in_threads(spark, differences_of, checkpoint.tables)
    return [difference for differences in by_table for difference in differences]


def _differences_of_sample(
    checkpoint: Checkpoint, table: CheckpointTable, rows: DataFrame, rng: random.Random
) -> Iterator[CheckpointDifference]:
    """Yield the differences of the totals, and of a sample of rows in the first frame of one file."""
    yield from _differences_of_totals(checkpoint, table, rows.count())
    if table.frames:
        uri = rng.choice(table.frames)
        try:
            deltas = _first_frame(uri)
        except (OSError, ValidationError) as error:
            yield _difference(checkpoint, table, f"{uri} cannot be read: {error}")
        else:
            for what in _differences_of_rows(rows, table.table, uri, deltas, rng):
                yield _difference(checkpoint, table, what)


def _differences_of_all_rows(
    spark: SparkSession, checkpoint: Checkpoint, table: CheckpointTable, rows: DataFrame
) -> Iterator[CheckpointDifference]:
    """Yield the differences of all rows of a table, found by checksums of the deltas that a client is sent.

    Spark joins the checksums of the snapshot's rows (`stored`) with those of the frames' rows (`sent`), by row id. Each
    row gets a verdict, and one query counts the rows by day and verdict.
    """

    def checksums_of_snapshot(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            states = [stored_row(table.table, row) for row in batch.to_pylist()]
            columns = ([row.row_id for row in states], [row.arrival for row in states])
            sums = [_checksum(render.insert(row)) for row in states]
            yield pa.record_batch([*map(pa.array, columns), pa.array(sums, pa.binary())], ["row_id", "arrival", "sum"])

    def checksums_of_file(number: int) -> Iterator[pa.RecordBatch]:
        for sent in _rows_of_file(table.frames[number], checkpoint.arrival):
            yield pa.RecordBatch.from_pylist(sent, _SENT)

    stored = rows.select(*ROW_COLUMNS).mapInArrow(checksums_of_snapshot, "row_id string, arrival bigint, sum binary")
    sent = (
        in_tasks(spark, len(table.frames), checksums_of_file, _SENT)
        .groupBy("row_id")
        .agg(sf.max("sent").alias("sent"), sf.count("*").alias("copies"), sf.collect_set("fault").alias("faults"))
    )
    verdict = (  # null `sum`: the snapshot does not have the row; null `sent`: the frames do not have it
        sf.when(sf.col("sum").isNull(), "surplus")
        .when(sf.col("sent").isNull(), "missing")
        .when(sf.col("copies") > 1, "there more than once")
        .when(sf.col("sum") != sf.col("sent"), "altered")
        .otherwise(_SAME)
    )
    day = f"cast(date_add(DATE'1970-01-01', cast(arrival div {ARRIVALS_PER_DAY} as int)) as string)"
    counted = (
        stored.join(sent, "row_id", "full_outer")
        .withColumns({"verdict": verdict, "day": sf.expr(day)})
        .groupBy("day", "verdict")
        .agg(
            sf.count("row_id").alias("rows"),
            sf.min("row_id").alias("example"),
            sf.flatten(sf.collect_set("faults")).alias("faults"),
            sf.count("sum").alias("stored"),
        )
        .collect()
    )
    yield from _differences_of_totals(checkpoint, table, sum(row["stored"] for row in counted))
    for row in sorted(counted, key=lambda each: (each["day"] or "", each["verdict"])):
        for fault in row["faults"]:
            yield _difference(checkpoint, table, fault)
        if row["verdict"] != _SAME and row["rows"]:
            what = f"{row['rows']} rows of the frames are {row['verdict']}, such as {row['example']!r}"
            yield _difference(checkpoint, table, what, row["day"] or "")


def _difference(checkpoint: Checkpoint, table: CheckpointTable, what: str, day: str = "") -> CheckpointDifference:
    """Return a difference of one of the checkpoint's tables."""
    return CheckpointDifference(checkpoint.gateway, table.table, what, day)


def _differences_of_totals(
    checkpoint: Checkpoint, table: CheckpointTable, count: int
) -> Iterator[CheckpointDifference]:
    """Yield the differences between the snapshot's and the frames' numbers of rows, and of the files' sizes."""
    if count != table.rows:
        what = f"the snapshot {table.snapshot_id} has {count} visible rows, the frames {table.rows}"
        yield _difference(checkpoint, table, what)
    size = sum(_size(uri) for uri in table.frames)
    if size != table.bytes:
        yield _difference(checkpoint, table, f"the frames' files have {size} bytes, {table.bytes} were written")


def _rows_of_file(uri: str, arrival: int) -> Iterator[list[dict[str, str | bytes]]]:
    """Yield, for each frame of a file, its rows in the columns `_SENT`; also a row with the fault of a wrong file."""
    file_system, path = parse_uri(uri)
    try:
        with file_system.open_input_stream(path) as stream:
            for message in read_checkpoint(stream):
                response = decode_response(message)
                sent: list[dict[str, str | bytes]] = [
                    {"row_id": row_id, "sent": _checksum(list(deltas))}
                    for row_id, deltas in groupby(response.deltas, key=lambda delta: delta.row_id)
                ]
                if response.server_hlc > arrival:  # frames that were linked have that of an earlier checkpoint
                    sent.append({"fault": f"{uri} has frames of arrival {response.server_hlc}"})
                yield sent
    except (OSError, ValidationError) as error:
        yield [{"fault": f"{uri} cannot be read: {error}"}]


def _checksum(deltas: list[RowDelta]) -> bytes:
    """Return a checksum of deltas as a checkpoint encodes them."""
    return sha256(encode_response(SyncResponse(tuple(deltas), 0))).digest()[:16]


def _differences_of_rows(
    snapshot: DataFrame, table: str, uri: str, deltas: tuple[RowDelta, ...], rng: random.Random
) -> Iterator[str]:
    """Yield the differences of a sample of the rows in a frame."""
    deltas_in_frame = {row: list(of_row) for row, of_row in groupby(deltas, key=lambda delta: delta.row_id)}
    sampled = rng.sample(sorted(deltas_in_frame), min(SAMPLE, len(deltas_in_frame)))
    stored = {
        row["_row"]: render.insert(stored_row(table, row))
        for row in snapshot.where(sf.col("_row").isin(sampled)).select(*ROW_COLUMNS).toArrow().to_pylist()
    }
    for row in sampled:
        if deltas_in_frame[row] != stored.get(row):
            yield f"row {row!r} in {uri} is not the snapshot's"


def _size(uri: str) -> int:
    """Return a file's size in bytes; 0 if there is no such file."""
    file_system, path = parse_uri(uri)
    return file_system.get_file_info(path).size or 0


def _first_frame(uri: str) -> tuple[RowDelta, ...]:
    """Return the deltas of the first frame in a file."""
    file_system, path = parse_uri(uri)
    with file_system.open_input_stream(path) as stream:
        return decode_response(next(read_checkpoint(stream))).deltas
