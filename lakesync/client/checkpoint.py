"""A first sync: a checkpoint is loaded into a database of its own, and taken over in one commit when it is whole."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lakesync.client.bulk import Groups, MisfitError, Part, Types, make_pile, pile, sort_out
from lakesync.client.core import CheckpointEnd, ClientCore, Frame
from lakesync.client.core.pages import apply_page
from lakesync.client.sqlite_rows import known_deltas
from lakesync.client.store_sqlite import SqliteClientStore
from lakesync.client.transports.base import Checkpoint
from lakesync.types import SyncResponse
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire import protobuf

if TYPE_CHECKING:
    from lakesync.client.replica import Replica

AT_ONCE = 20_000
"""Deltas written with one set of statements."""

_FRESH = 1
"""The generation of rows in the database of their own."""
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
    """
    place = replica.path.with_name(replica.path.name + "-lakesync-first")
    _remove(place)
    try:
        with closing(sqlite3.connect(place, isolation_level=None)) as db:
            rows, highest = _load(db, replica, checkpoint, progress)
        with _attached(replica, place):
            tables = replica.step(lambda core: _take_over(replica, core, place, checkpoint.cursor, highest))
        return Loaded(rows, tables)
    finally:
        _remove(place)


def _load(
    db: sqlite3.Connection, replica: Replica, checkpoint: Checkpoint, progress: Callable[[Progress], None]
) -> tuple[int, int]:
    for pragma in _LOADING:
        db.execute(pragma)
    store = SqliteClientStore(db, replica.store.schemas.values(), tracked=False)
    types = {table: schema.types for table, schema in store.schemas.items()}
    for table, columns in types.items():
        make_pile(db, table, columns)
    rows = size = highest = 0
    for message in checkpoint.frames:
        page = protobuf.parse(pb.SyncResponse(), message)
        deltas = page.deltas
        start = 0
        while start < len(deltas):
            end = _end_of_rows(deltas, start + AT_ONCE)
            db.execute("BEGIN")
            try:
                count, high = _write(db, types, _parts(deltas, start, end))
                db.execute("COMMIT")
            except MisfitError:
                db.execute("ROLLBACK")
                one = protobuf.decode_response(pb.SyncResponse(deltas=deltas[start:end]).SerializeToString())
                changes = apply_page(store, one.deltas, _FRESH)
                store.commit(changes)
                count, high = len(changes.rows), max(delta.hlc for delta in one.deltas)
            rows, highest, start = rows + count, max(highest, high), end
        size += len(message)
        progress(Progress(rows, size))
    return rows, highest


def _parts(deltas: Any, start: int, end: int) -> Iterator[Part]:
    shapes: dict[tuple[str, ...], tuple[str, ...]] = {}
    seen: tuple[str, str] | None = None
    for delta in deltas[start:end]:
        table, row_id = delta.table, delta.row_id
        if delta.op != pb.DELTA_OP_INSERT and (delta.op != pb.DELTA_OP_UPDATE or (table, row_id) != seen):
            raise MisfitError
        seen = (table, row_id)
        cells = [(cell.column, cell.value) for cell in delta.columns]
        names, values = zip(*cells, strict=True) if cells else ((), ())
        yield table, row_id, delta.hlc, delta.client_id, shapes.setdefault(names, names), values


def _write(db: sqlite3.Connection, types: Types, parts: Iterable[Part]) -> tuple[int, int]:
    groups = Groups()
    groups.add(parts)
    count = 0
    for group in groups:
        pile(db, group, group.columns(types))
        count += len(group.row_ids)
    return count, groups.highest


def _end_of_rows(deltas: Any, end: int) -> int:
    """Where to cut at or after `end`: never within a row."""
    while end < len(deltas) and deltas[end].row_id == deltas[end - 1].row_id:
        end += 1
    return min(end, len(deltas))


def _take_over(replica: Replica, core: ClientCore, place: Path, cursor: int, highest: int) -> set[str]:
    """Rows with edits are merged, one by one; all others are copied. In the core's one transaction."""
    store = replica.store
    edited = [key for key in store.edited() if key[0] in store.schemas]
    with closing(sqlite3.connect(place, isolation_level=None)) as db:
        sort_out(db, edited, _FRESH)
        found = SqliteClientStore(db, store.schemas.values(), tracked=False).known(edited)
    deltas = [delta for key, row in found.items() for delta in known_deltas(key, row)]
    merged = core.receive(Frame(SyncResponse(tuple(deltas), cursor)))
    copied = store.copy_from("fresh", store.position().generation)
    ended = core.receive(CheckpointEnd(cursor, highest))
    return merged.tables | ended.tables | copied


@contextmanager
def _attached(replica: Replica, place: Path) -> Iterator[None]:
    replica.db.execute("ATTACH ? AS fresh", (str(place),))
    try:
        yield
    finally:
        replica.db.execute("DETACH fresh")


def _remove(place: Path) -> None:
    for name in (place.name, f"{place.name}-journal"):
        place.with_name(name).unlink(missing_ok=True)
