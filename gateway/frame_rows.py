"""One checkpoint frame cut down to the rows that a client may see, mostly without looking into the others.

A row that a bucket shows has, for each filter by equality, one of a few values in that filter's column. So the frame is
searched for how these are spelled, and only rows in which one was found are decoded and held against the rules.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from google.protobuf.internal.encoder import _VarintBytes as varint  # type: ignore[attr-defined]

from lakesync.model.delta import jcs
from lakesync.model.errors import ValidationError
from lakesync.model.types import Claims
from lakesync.rules.evaluation import matches, operands_of
from lakesync.rules.model import Bucket, SyncRules
from lakesync.wire import protobuf
from lakesync.wire.lakesync_pb2 import RowDelta, SyncResponse

_DELTAS, _COLUMN, _VALUE = 0x0A, b"\x0a", b"\x12"
_INSERT = b"\x08\x01"
"""Begins the first delta of each row."""


def visible(message: bytes, rules: SyncRules, claims: Claims) -> bytes:
    """The frame, which is of one table, with the rows alone that the rules show to these claims; empty for none.

    What stays keeps its very bytes.

    Raises:
        ValidationError: it is no frame.
    """
    starts, tail = _layout(message)
    if not starts:
        return b""
    table = protobuf.parse(SyncResponse(), message[starts[0] : [*starts, tail][1]]).deltas[0].table
    buckets = [bucket for bucket in rules.buckets if not bucket.tables or table in bucket.tables]
    columns = {condition.column for bucket in buckets for condition in bucket.filters}
    kept = []
    for row in _candidates(message, starts, tail, _needles(buckets, claims)):
        page = protobuf.parse(SyncResponse(), row)
        if matches(rules, table, _merged(page.deltas, columns), claims):
            kept.append(row)
    return b"".join([*kept, message[tail:]]) if kept else b""


def _layout(message: bytes) -> tuple[list[int], int]:
    """Where each row begins, and where the last one ends."""
    starts: list[int] = []
    place, size = 0, len(message)
    while place < size and message[place] == _DELTAS:
        length = shift = 0
        head = place + 1
        while True:
            part = message[head] if head < size else 0
            head += 1
            length |= (part & 0x7F) << shift
            if part < 0x80:
                break
            shift += 7
        if not starts or message.startswith(_INSERT, head):
            starts.append(place)
        place = head + length
    return starts, place


def _candidates(message: bytes, starts: list[int], tail: int, needles: set[bytes] | None) -> Iterator[bytes]:
    """Rows that may be visible, in order: those in which one of the needles is, or with None all."""
    places: Iterable[int] = range(len(starts))
    if needles is not None:
        pattern = re.compile(b"|".join(map(re.escape, sorted(needles))) or b"(?!)")
        places = sorted({bisect_right(starts, found.start()) - 1 for found in pattern.finditer(message, 0, tail)})
    ends = [*starts[1:], tail]
    for place in places:
        yield message[starts[place] : ends[place]]


def _needles(buckets: Iterable[Bucket], claims: Claims) -> set[bytes] | None:
    """One of these is in every row that one of the buckets shows; None where it may show any row."""
    needles: set[bytes] = set()
    for bucket in buckets:
        found = _of_bucket(bucket, claims)
        if found is None:
            return None
        needles |= found
    return needles


def _of_bucket(bucket: Bucket, claims: Claims) -> set[bytes] | None:
    for condition in bucket.filters:
        if condition.op in ("eq", "in"):
            column = condition.column.encode()
            begin = _COLUMN + varint(len(column)) + column + _VALUE
            spelled = [each for text in operands_of(condition, claims) for each in _spellings(text)]
            return {begin + varint(len(value)) + value for value in spelled}
    return None


def _spellings(text: str) -> tuple[bytes, ...]:
    """The values whose text it is: a string, or what its own text spells."""
    try:
        return jcs(text).encode(), text.encode()
    except ValidationError:  # no Unicode: no value is that
        return ()


def _merged(deltas: Iterable[RowDelta], columns: set[str]) -> dict[str, Any]:
    """Values of a row's columns: of its deltas, which stand in order of stamp, each column is in one."""
    return {
        cell.column: msgspec.json.decode(cell.value)
        for delta in deltas
        for cell in delta.columns
        if cell.column in columns
    }
