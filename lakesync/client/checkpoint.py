"""A first sync: a checkpoint is loaded into a database of its own, and taken over in one commit when it is whole."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lakesync.client import pile
from lakesync.client.cells import MisfitError, Types
from lakesync.client.core import CheckpointEnd, ClientCore, Frame, Lost
from lakesync.client.database import beside, remove
from lakesync.client.errors import DbError
from lakesync.client.groups import Group, Groups, Part
from lakesync.client.stamps import Record
from lakesync.client.transports.base import Checkpoint
from lakesync.model.types import SyncResponse
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire import protobuf
from lakesync.wire.frame_columns import Fields, by_field, split

if TYPE_CHECKING:
    from lakesync.client.replica import Replica

AT_ONCE = 20_000
"""Deltas written with one set of statements."""

_BESIDE = "fresh"
"""The name of the database of their own, where it is attached to the app's."""
_CACHE = -64000
"""Of the app's database, in KiB, while it takes rows over."""
_LOADING = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA cache_size = -48000",
)


class Progress(msgspec.Struct, frozen=True):
    """How much of a checkpoint has come."""

    rows: int
    bytes: int


class Loaded(NamedTuple):
    """What a checkpoint brought."""

    rows: int
    tables: set[str]


def load_checkpoint(replica: Replica, checkpoint: Checkpoint, progress: Callable[[Progress], None]) -> Loaded:
    """Load it, and have the client go on from it; until it is whole the app sees nothing of it.

    Raises:
        UnreachableError, ValidationError: it broke off or cannot be read; nothing was changed.
        DbError: there is no room for it; nothing was changed.
    """
    place = beside(replica.path)
    remove(place)
    try:
        with closing(sqlite3.connect(place, isolation_level=None)) as db:
            rows, highest = _load(db, replica, checkpoint, progress)
        with _attached(replica, place):
            tables = replica.step(lambda core: _take_over(replica, core, checkpoint.cursor, highest))
        return Loaded(rows, tables)
    except sqlite3.Error as error:
        if replica.waits_for_answer():
            replica.receive(Lost("there was no room for it"))
        raise DbError(f"{place}, in which a first sync is loaded, cannot be written now: {error}") from error
    finally:
        remove(place)


def _load(
    db: sqlite3.Connection, replica: Replica, checkpoint: Checkpoint, progress: Callable[[Progress], None]
) -> tuple[int, int]:
    for pragma in _LOADING:
        db.execute(pragma)
    types = replica.types()
    pile.make(db, types)
    rows = size = highest = 0
    for message in checkpoint.frames:
        deltas = split(message)
        start = 0
        while start < len(deltas):
            end = _end_of_rows(deltas, start + AT_ONCE)
            count, high = _add(db, replica, types, deltas[start:end])
            rows, highest, start = rows + count, max(highest, high), end
        size += len(message)
        progress(Progress(rows, size))
    return rows, highest


def _add(db: sqlite3.Connection, replica: Replica, types: Types, deltas: Sequence[bytes]) -> tuple[int, int]:
    """Pile up these deltas; how many rows they are, and the highest hlc."""
    try:
        groups = _grouped(by_field(deltas))
        ready = [(group, group.columns(types), _records(replica, group)) for group in groups]
    except MisfitError:
        some = protobuf.decode_deltas(deltas)
        pile.add_rest(db, some)
        return len({delta.key for delta in some}), max(delta.hlc for delta in some)
    db.execute("BEGIN")
    for group, columns, records in ready:
        pile.add(db, group, columns, records)
    db.execute("COMMIT")
    return sum(len(group.row_ids) for group, _, _ in ready), groups.highest


def _records(replica: Replica, group: Group) -> list[Record]:
    """Their numbers are those of the app's database: new ones are made there at once."""
    names = replica.store.names
    if names.lacks(group.layout, group.clients):
        return replica.step(lambda _: names.records(group.layout, group.hlcs, group.clients))
    return names.records(group.layout, group.hlcs, group.clients)


def _grouped(fields: Fields | None) -> Groups:
    """New rows, as a frame has them.

    Raises:
        MisfitError: they are something else.
    """
    if fields is None:
        raise MisfitError
    groups = Groups()
    width, ids = fields.width, fields.row_ids
    lone = set(fields.ops) == {pb.DELTA_OP_INSERT} and len(set(fields.tables)) == 1 and not any(map(eq, ids, ids[1:]))
    if width is None or not lone:
        groups.add(_parts(fields))
        return groups
    group = groups.group(fields.tables[0], (tuple(fields.names[:width]),))
    group.row_ids, group.hlcs, group.clients, group.values = ids, fields.hlcs, fields.clients, list(fields.values)
    del group.values[width :: width + 1]
    return groups


def _parts(fields: Fields) -> Iterator[Part]:
    ops, tables, row_ids, clients, hlcs, all_names, all_values = fields
    seen: tuple[str, str] | None = None
    start = 0
    for op, table, row_id, client, hlc in zip(ops, tables, row_ids, clients, hlcs, strict=True):
        if op != pb.DELTA_OP_INSERT and (op != pb.DELTA_OP_UPDATE or (table, row_id) != seen):
            raise MisfitError
        seen = (table, row_id)
        end = all_names.index("", start)
        yield table, row_id, hlc, client, tuple(all_names[start:end]), all_values[start:end]
        start = end + 1


def _end_of_rows(deltas: Sequence[bytes], end: int) -> int:
    """Where to cut at or after `end`: never within a row."""
    while end < len(deltas) and _row_of(deltas[end]) == _row_of(deltas[end - 1]):
        end += 1
    return min(end, len(deltas))


def _row_of(delta: bytes) -> str:
    return protobuf.parse(pb.RowDelta(), delta).row_id


def _take_over(replica: Replica, core: ClientCore, cursor: int, highest: int) -> set[str]:
    """Rows with edits are merged, and so are those that do not fit; all others are copied. In one transaction."""
    store, db = replica.store, replica.db
    edited = [key for key in store.edited() if key[0] in store.schemas]
    merged = tuple(pile.deltas_of(db, _BESIDE, edited, replica.types(), store.names)) if edited else ()
    tables = core.receive(Frame(SyncResponse(merged, cursor))).tables
    for some in pile.rest(db, _BESIDE):
        tables |= core.receive(Frame(SyncResponse(some, cursor))).tables
    tables |= store.copy_from(_BESIDE, store.position().generation)
    return tables | core.receive(CheckpointEnd(cursor, highest)).tables


@contextmanager
def _attached(replica: Replica, place: Path) -> Iterator[None]:
    db = replica.db
    ((kept,),) = db.execute("PRAGMA main.cache_size").fetchall()
    db.execute(f"ATTACH ? AS {_BESIDE}", (str(place),))
    try:
        db.execute(f"PRAGMA main.cache_size = {_CACHE}")  # rows are put in order within it
        yield
    finally:
        db.execute(f"PRAGMA main.cache_size = {kept}")
        db.execute(f"DETACH {_BESIDE}")
