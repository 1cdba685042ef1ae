"""Deltas and state rows in the lake's form, for the tests of the lake."""

import pyarrow as pa

from assets.transforms.decode import decode_batches
from assets.transforms.frames import stored_row
from lakesync.wire.log import encode_body

LOG_FIELDS = ("gateway", "shard", "epoch", "seq", "arrival", "client_id", "body")


def history(spark, pushes, gateway="g"):
    """A DataFrame of `deltas` rows: a log row for each `(arrival, deltas)`, decoded as a flush does it."""
    log = [
        (gateway, "main", 1, seq, arrival, deltas[0].client_id, encode_body(deltas))
        for seq, (arrival, deltas) in enumerate(pushes, 1)
        if deltas
    ]
    columns = [list(column) for column in zip(*log, strict=True)] or [[] for _ in LOG_FIELDS]
    batch = pa.RecordBatch.from_pydict(dict(zip(LOG_FIELDS, columns, strict=True)))
    return spark.createDataFrame(pa.Table.from_batches(list(decode_batches([batch], "batch"))))


def states(frame):
    """`{(gateway, row id): RowState}` of a DataFrame of state rows."""
    rows = frame.select("_gateway", "_row_id", "_cells", "_tombstone", "_inserted", "_deleted", "_arrival").toArrow()
    found = {}
    for row in rows.to_pylist():
        state = stored_row("t", row).state
        assert row["_deleted"] == (not state.visible), row
        assert (row["_gateway"], row["_row_id"]) not in found, row
        found[row["_gateway"], row["_row_id"]] = state
    return found
