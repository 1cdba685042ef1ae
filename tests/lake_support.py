"""Deltas and state rows in the lake's form, for the tests of the lake."""

from datetime import UTC, datetime, time

import msgspec
import pyarrow as pa

from lakehouse.history.decoding import DELTAS_ARROW, decode_log
from lakehouse.table_creation import ensure_deltas
from lakehouse.tables.verification import stored_row
from lakesync.model.hlc import encode
from lakesync.staging.log_reader import LogRange, LogRow
from lakesync.wire.log import encode_body


def history(spark, pushes, gateway="g"):
    """A DataFrame of `deltas` rows: a log row for each `(arrival, deltas)`, decoded like a flush."""
    log = [LogRow(seq, arrival, encode_body(deltas)) for seq, (arrival, deltas) in enumerate(pushes, 1) if deltas]
    log_range = LogRange(gateway, "main", 1, 1, len(pushes))
    return spark.createDataFrame(pa.Table.from_batches(decode_log(log, log_range, "batch"), DELTAS_ARROW))


def states(frame):
    """`{(gateway, row id): RowState}` of a DataFrame of state rows."""
    rows = frame.select("_gateway", "_row", "_cells", "_tombstone", "_inserted", "_gone", "_arrival").toArrow()
    found = {}
    for row in rows.to_pylist():
        state = stored_row("t", row).state
        assert row["_gone"] == (not state.visible), row
        assert (row["_gateway"], row["_row"]) not in found, row
        found[row["_gateway"], row["_row"]] = state
    return found


def arrivals(day, count, start=0):
    """`count` arrivals of a UTC day, one per second from its `start`-th second."""
    first = int(datetime.combine(day, time(), UTC).timestamp()) + start
    return [encode((first + second) * 1000, 0) for second in range(count)]


def fill(spark, names, pushes, gateway="g"):
    """Write pushes, `(arrival, deltas)`, into `deltas`; the table is created first."""
    ensure_deltas(spark, names)
    history(spark, pushes, gateway).writeTo(names.deltas).append()


def held(store, gateway, arrival):
    """A cut point at a given arrival."""
    return msgspec.structs.replace(store.cut_point(gateway), arrival=arrival)
