"""The sentences of an explanation, for operators."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from lakesync.engine.explanation import ExplainedBucket, ExplainedClient, ExplainedFilter, Explanation
from lakesync.model.hlc import wall_of
from lakesync.model.types import RowKey
from lakesync.staging.erasing import ERASER

_NOT_PUSHED = (
    "its writer did not send it yet, or was refused: db.pending() there lists what waits and what was refused; what "
    "it does not list was not committed, is in a table without a schema there, or went to another gateway"
)
_IF_STILL_MISSING = (
    "if the client lacks it all the same: the table must be among its schemas, db.pending() may hold a newer change of "
    "its own, and db.verify() asks for everything anew"
)


def reasons_of(explanation: Explanation, key: RowKey) -> Iterator[str]:
    """Yield the reasons of an explanation, the most important first.

    Args:
        explanation: complete except for its reasons.
        key: the row's.
    """
    named = f"row {key[1]!r} of table {key[0]!r}"
    if not explanation.row.exists:
        yield f"nothing of {named} was ever accepted by this gateway"
        yield _NOT_PUSHED
        return
    yield from _verdict(explanation, named)
    if explanation.buckets and explanation.client.claims_from == "client id":
        yield "its claims are not known here, so the rules were asked with its id alone: give those of its token"
    yield from _row(explanation, named)
    if explanation.row.visible and not explanation.buckets:
        yield "there are no buckets: everyone sees every row"
    elif explanation.row.visible:
        for bucket in explanation.buckets:
            yield from _bucket(bucket, key[0])
    yield from _client(explanation.client)
    if explanation.verdict == "delivered":
        yield _IF_STILL_MISSING
    if set(explanation.row.bucket_keys) != set(explanation.row.keys_by_rules):
        yield "the row is stored under other bucket keys than the rules give it: a change of rules is being worked in"


def _verdict(explanation: Explanation, named: str) -> Iterator[str]:
    if explanation.verdict == "waiting":
        brings = ", ".join(explanation.next_pull)
        yield f"the client's next pull from the cursor that it was last sent brings {brings} of {named}"
    elif explanation.verdict == "delivered":
        yield f"the client was sent all that it may see of {named}, or wrote it itself; nothing waits for it"
    elif explanation.verdict == "hidden":
        yield f"no bucket shows {named} to this client, and it holds nothing of it"
    else:
        yield _deleted(explanation, named)
    if explanation.unconfirmed:
        yield (
            f"it was sent {', '.join(explanation.unconfirmed)} of the row lately; whether it took it is known when it "
            "next asks: with the cursor from before, it is sent it again"
        )


def _row(explanation: Explanation, named: str) -> Iterator[str]:
    row, client_id = explanation.row, explanation.client.client_id
    if not row.visible and explanation.verdict != "deleted":
        yield _deleted(explanation, named)
    if explanation.erased_ms is not None and row.tombstone_client_id != ERASER:
        yield f"what {named} held was erased for good at {moment(explanation.erased_ms)}"
    if row.client_wrote_ms is None:
        return
    wrote = f"the client wrote to it itself, last at {moment(row.client_wrote_ms)}"
    if row.visible and all(column.client_id != client_id for column in row.columns):
        yield f"{wrote}: nothing of that stands, for newer values took its place"
    elif row.visible and explanation.verdict == "delivered":
        yield (
            f"{wrote}: what is its own is not sent back to it, so a second database under the same client id, or one "
            "that was put back from a backup, may lack it"
        )


def _deleted(explanation: Explanation, named: str) -> str:
    row = explanation.row
    if row.tombstone_hlc is None:
        return f"{named} is not visible to anyone: no INSERT of it came, and no column of it has a value"
    if row.tombstone_client_id == ERASER:
        return (
            f"{named} was erased for good at {moment(wall_of(row.tombstone_hlc))}: what is stamped no later than that "
            "is taken without what it says"
        )
    return (
        f"{named} is deleted, by client {row.tombstone_client_id!r} at {moment(wall_of(row.tombstone_hlc))} "
        "of its clock: what is stamped no later than that stays dead"
    )


def _bucket(bucket: ExplainedBucket, table: str) -> Iterator[str]:
    if not bucket.covers_table:
        yield f"bucket {bucket.bucket!r} is not about table {table!r}"
        return
    if bucket.shows:
        yield f"bucket {bucket.bucket!r} shows it"
    for each in bucket.filters:
        if not each.holds:
            yield f"bucket {bucket.bucket!r} does not show it: {_fails(each)}"


def _fails(each: ExplainedFilter) -> str:
    claim = each.value.removeprefix("jwt:") if each.value.startswith("jwt:") else None
    if claim is not None and not each.operands:
        return f"the client has no claim {claim!r}, as a text or a list of texts"
    if each.found is None:
        return f"the row has no column {each.column!r}"
    several = each.op in ("eq", "in", "neq")
    wanted = " or ".join(map(repr, each.operands if several else each.operands[:1]))
    of = f", the client's claim {claim!r}" if claim is not None else ""
    if not several and len(each.operands) > 1:
        of += ", of which the first counts"
    return f"column {each.column!r} is {each.found!r}, which is not {each.op} {wanted}{of}"


def _client(client: ExplainedClient) -> Iterator[str]:
    if not client.known:
        yield f"client {client.client_id!r} was never seen, or its record is gone: its first pull brings everything"
        return
    if not client.current:
        yield "what was known of the client is gone, erased or lost with the store: its next pull begins again"
    elif client.mid_pages:
        yield "the client is in the middle of a walk: it was sent a page with more to come"
    if client.followed_elsewhere:
        yield "it follows, or did, over a WebSocket of another process, which may have told it more than is known here"
    if client.last_seen_ms:
        yield f"the client was last handed something, or wrote something, at {moment(client.last_seen_ms)}"
    if client.claims_from == "record":
        yield "its claims are those of its last pull that the rules read; give claims to try others"


def moment(ms: int) -> str:
    """Return a wall time as ISO 8601 in UTC, with milliseconds.

    Args:
        ms: milliseconds since 1970.
    """
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
