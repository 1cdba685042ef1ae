"""Rows and pages that stay encoded as JSON on their way from the staging store to the response.

The *staging store* is the database that pushes are committed to. A *delta* is a change of some columns of one row. Its
*stamp* is (hlc, client id): the writer's timestamp and id. A client that lacks a row is sent it as an INSERT and, if
columns were written at different times, UPDATEs (`row_deltas`). Stores keep rows in this encoded form (`encode_row`).
The feed joins them to a *page*, the response to a pull: a `SyncPage` whose deltas are `EncodedDeltas`. The gateway
sends it without decoding (`encode_page`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload

from msgspec import Raw

from lakesync.model.delta import delta_id
from lakesync.model.merge import LiveDelta, RowState
from lakesync.model.types import ColumnValue, Op, RowDelta, Stamp, SyncPage
from lakesync.wire.json import decode_deltas, encode_deltas, encode_response

NO_STAMP: Stamp = (0, "")
"""A stamp that is less than every stamp of a delta."""


class EncodedDeltas(Sequence[RowDelta]):
    """Deltas as parts of a JSON array, decoded only when they are read."""

    def __init__(self, parts: list[bytes], count: int) -> None:
        """Store encoded deltas.

        Args:
            parts: JSON texts, each with one delta, or several separated by commas.
            count: the number of deltas in all parts.
        """
        self.parts = parts
        self._count = count
        self._decoded: list[RowDelta] | None = None

    def enclosed(self, start: bytes, end: bytes) -> bytes:
        """Return all parts, separated by commas, between two texts. Each part is copied only once: pages are large.

        Args:
            start: the text before the first delta, for example `[`.
            end: the text after the last one, for example `]`.
        """
        separated = [text for part in self.parts for text in (part, b",")]
        return b"".join([start, *separated[:-1], end])

    @property
    def size(self) -> int:
        """The bytes of all parts, without the commas between them."""
        return sum(map(len, self.parts))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> RowDelta: ...
    @overload
    def __getitem__(self, index: slice) -> list[RowDelta]: ...
    def __getitem__(self, index: int | slice) -> RowDelta | list[RowDelta]:
        return self._deltas()[index]

    def __iter__(self) -> Iterator[RowDelta]:
        return iter(self._deltas())

    def _deltas(self) -> list[RowDelta]:
        if self._decoded is None:  # part by part: decoding a large page at once would stop all other threads
            self._decoded = [delta for part in self.parts for delta in decode_deltas(b"[%b]" % part)]
        return self._decoded


def encode_page(page: SyncPage) -> bytes:
    """Encode the response to a pull, like `wire.json.encode_response`, without decoding `EncodedDeltas`."""
    if not isinstance(page.deltas, EncodedDeltas):
        return encode_response(page)
    more = b"true" if page.has_more else b"false"
    return page.deltas.enclosed(b'{"deltas":[', b'],"serverHlc":"%d","hasMore":%b}' % (page.server_hlc, more))


def encode_array(deltas: Sequence[RowDelta]) -> bytes:
    """Encode deltas as a JSON array, without decoding `EncodedDeltas`."""
    return deltas.enclosed(b"[", b"]") if isinstance(deltas, EncodedDeltas) else encode_deltas(deltas)


def encoded_size(deltas: Sequence[RowDelta]) -> int:
    """Return about how many bytes deltas add to a page in JSON."""
    return deltas.size if isinstance(deltas, EncodedDeltas) else len(encode_array(deltas))


class Group(NamedTuple):
    """The columns of a row that have the same stamp (hlc and client id of their write)."""

    stamp: Stamp
    columns: dict[str, Raw]
    """The values as JSON texts, by column."""
    original: str | None
    """The id of the delta whose columns are exactly these; None without one."""


def stamp_groups(live: Iterable[LiveDelta]) -> list[Group]:
    """Group a row's columns by stamp, oldest first.

    Args:
        live: the value of `RowState.live`: the deltas that wrote the current values, in the order of their stamps.
    """
    groups: list[Group] = []
    for delta in live:
        if groups and groups[-1].stamp == delta.stamp:
            groups[-1] = Group(delta.stamp, {**groups[-1].columns, **delta.columns}, None)
        else:
            # `whole`: every value that the delta wrote is current, so the group is that delta
            groups.append(Group(delta.stamp, delta.columns, delta.delta_id if delta.whole else None))
    return groups


def delta_of(op: Op, table: str, row_id: str, group: Group) -> RowDelta:
    """Return a group of a row as a delta, with the original delta's id if it has exactly its columns.

    Args:
        op: the delta's operation.
        table: the row's table.
        row_id: the row's id.
        group: the columns, as `stamp_groups` returns them.
    """
    hlc, client_id = group.stamp
    columns = tuple([ColumnValue(column, value) for column, value in group.columns.items()])
    identity = group.original or delta_id(client_id=client_id, hlc=hlc, table=table, row_id=row_id, columns=columns)
    return RowDelta(op, table, row_id, client_id, columns, hlc, identity)


def row_deltas(table: str, row_id: str, state: RowState, live: list[LiveDelta] | None = None) -> list[RowDelta]:
    """Return a row that exists as deltas: an INSERT with the oldest stamp, then UPDATEs in order of their stamps.

    Args:
        table: the row's table.
        row_id: the row's id.
        state: the row's merged state; its `visible` is true.
        live: `state.live`, if the caller has it already.
    """
    groups = stamp_groups(state.live if live is None else live)
    if not groups:  # no column is left, so the row, which exists, has an INSERT; `NO_STAMP` satisfies the type checker
        groups = [Group(state.inserted or NO_STAMP, {}, None)]
    return [delta_of("UPDATE" if index else "INSERT", table, row_id, group) for index, group in enumerate(groups)]


def encode_row(table: str, row_id: str, state: RowState, live: list[LiveDelta] | None = None) -> tuple[bytes, int]:
    """Encode an existing row's deltas (`row_deltas`) as a part of a JSON array: separated by commas, without brackets.

    Args:
        table: the row's table.
        row_id: the row's id.
        state: the row's merged state; its `visible` is true.
        live: `state.live`, if the caller has it already.

    Returns:
        The JSON, and the number of deltas in it.
    """
    deltas = row_deltas(table, row_id, state, live)
    return encode_deltas(deltas)[1:-1], len(deltas)
