"""A client's own encoding of deltas, which shares no code with the gateway."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from examples.flights.story import Write

_json = msgspec.json.Encoder(order="sorted")


def delta_id(write: Write) -> str:
    """Return the SHA-256 of the canonical JSON of the delta's content, without its op.

    Compact JSON with sorted keys is the canonical form (RFC 8785) for the values of this data set.
    """
    return hashlib.sha256(_json.encode(_identity(write))).hexdigest()


def push_body(client: str, writes: Sequence[Write]) -> bytes:
    """Return the JSON body of a push."""
    deltas = [{**_identity(write), "op": write.op, "deltaId": delta_id(write)} for write in writes]
    return _json.encode({"clientId": client, "deltas": deltas, "lastSeenHlc": "0"})


def _identity(write: Write) -> dict[str, object]:
    return {
        "clientId": write.client,
        "columns": [{"column": name, "value": value} for name, value in write.columns.items()],
        "hlc": str(write.hlc),
        "rowId": write.row_id,
        "table": write.table,
    }
