"""A carrier's new device at the end of the run: its first sync is a checkpoint, then a pull."""

from __future__ import annotations

import io
from pathlib import Path

from examples.flights.client import SyncingClient
from examples.flights.replica import Replica
from examples.flights.schemas import GATEWAY
from lakesync.wire.frames import read_checkpoint
from lakesync.wire.protobuf import decode_response


def first_sync(url: str, secret: str, carrier: str, database: Path) -> SyncingClient:
    """Sync a new client of a carrier into a SQLite file, and return it; its rows are in `replica`.

    Raises:
        RefusedError: there is no checkpoint, or the gateway returns another error.
        sqlite3.IntegrityError: a row was sent as new twice.
    """
    database.unlink(missing_ok=True)
    client = SyncingClient(url, secret, f"new-device-of-{carrier}", {"carrier": carrier})
    client.replica = Replica(database)
    stream = client.connection.send("GET", f"/v1/sync/{GATEWAY}/checkpoint")
    client.cursor = int(client.connection.last_headers["X-Checkpoint-Hlc"])
    for message in read_checkpoint(io.BytesIO(stream)):
        deltas = decode_response(message).deltas
        client.pulled += len(deltas)
        client.replica.apply(
            {
                "op": delta.op,
                "table": delta.table,
                "rowId": delta.row_id,
                "columns": [{"column": cell.column, "value": cell.decoded()} for cell in delta.columns],
            }
            for delta in deltas
        )
    client.pull()
    return client
