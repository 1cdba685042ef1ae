"""Loads a checkpoint for a client's first sync: into a staging file first, then in one commit into the app's database.

`Exchange` calls `load_checkpoint`. A *checkpoint* is a snapshot of all rows that the client may see. The gateway sends
it in frames, which are protobuf messages with deltas (changes of some columns of a row). The app must not see a part of
a checkpoint, so the rows stay in a second SQLite file, next to the app's, until all have arrived.

A row is *bulk-writable* if its deltas are an INSERT and UPDATEs with values of the right types: then SQL copies it
without a merge. Such rows are written in groups: the rows of a group have the same table, and the same columns written
by each delta (its layout). In the staging file, each synced table has a staging table `rows_of_TABLE` with the row ids,
records (the timestamp and client of each delta) and values of these rows. Rows are staged in chunks of
`STAGED_TOGETHER` deltas. A chunk with any other row is stored as deltas in the table `rest`; the client's state machine
(`core`) merges them. It also merges the rows that have *edits*, which are changes of this client that the gateway has
not acknowledged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple

from lakesync.client.core import CheckpointEnd, CheckpointFrame, ClientCore, NoResponse
from lakesync.client.errors import DbError
from lakesync.client.sqlite.bulk_decoding import NotBulkWritableError, TableTypes
from lakesync.client.sqlite.row_groups import RowGroup, RowGroups, RowPart, execute_for_rows
from lakesync.client.sqlite.row_storage import LISTED_VALUES, STAGED_RECORD, value_list
from lakesync.client.sqlite.sql_values import from_sql
from lakesync.client.sqlite.stamps import Record, StampCodec
from lakesync.client.sqlite.sync_lock import first_sync_path, remove_database
from lakesync.client.status import Progress
from lakesync.client.sync.replica import Replica
from lakesync.client.transports.base import Checkpoint
from lakesync.model.types import ColumnValue, RowDelta, RowKey, SyncResponse, row_ids_by_table
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire import protobuf
from lakesync.wire.delta_fields import DeltaFields, decode_by_field, split_deltas
from lakesync.wire.json import decode_deltas, encode_deltas

STAGED_TOGETHER = 20_000
"""Number of deltas that one transaction writes to the staging file; a few more, so that no row is split."""

_STAGING_SCHEMA = "first_sync"
"""The name under which the staging file is attached to the app's database."""
_COPY_CACHE = -64000
"""`cache_size` of the app's database while rows are copied: 64,000 KiB. SQLite counts KiB as a negative number."""
_STAGING_PRAGMAS = (  # without durability: the file is deleted after a failure
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA cache_size = -48000",
)


class Loaded(NamedTuple):
    """What a checkpoint contained."""

    rows: int
    """Number of rows."""
    tables: set[str]
    """Tables with rows that were changed in the app's database."""


def load_checkpoint(replica: Replica, checkpoint: Checkpoint, on_progress: Callable[[Progress], None]) -> Loaded:
    """Load a checkpoint, and continue from its cursor. The app sees nothing of it until it is complete.

    Args:
        replica: the app's database, whose core has requested the checkpoint.
        checkpoint: the checkpoint's cursor and frames.
        on_progress: called after each frame.

    Raises:
        UnreachableError, ValidationError: the checkpoint is incomplete or cannot be decoded; nothing was changed.
        DbError: the staging file cannot be written, for example because the disk is full, or not be attached to the
            app's database; nothing was changed.
    """
    path = first_sync_path(replica.path)
    remove_database(path)
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            rows, highest_hlc = _stage(db, replica, checkpoint, on_progress)
        with _attach_staging_file(replica, path):
            # `step` runs it in one transaction of the app's database
            tables = replica.step(lambda core: _copy_to_app(replica, core, checkpoint.cursor, highest_hlc))
        return Loaded(rows, tables)
    except sqlite3.Error as error:
        if replica.core.has_pending_request:  # the core still waits for the checkpoint that it requested
            replica.receive(NoResponse("the checkpoint could not be stored"))
        raise DbError(f"a first sync cannot be loaded into {path} and copied from it now: {error}") from error
    finally:
        remove_database(path)


def _stage(
    db: sqlite3.Connection, replica: Replica, checkpoint: Checkpoint, on_progress: Callable[[Progress], None]
) -> tuple[int, int]:
    """Write all frames to the staging tables; return the number of rows and the highest hlc (a delta's timestamp)."""
    ((encoding,),) = replica.read("PRAGMA encoding")
    db.execute(f"PRAGMA encoding = '{encoding}'")  # SQLite attaches no file with another one
    for pragma in _STAGING_PRAGMAS:
        db.execute(pragma)
    types = replica.types()
    _create_tables(db, types)
    rows = size = highest_hlc = 0
    for frame in checkpoint.frames:
        deltas = split_deltas(frame)
        start = 0
        while start < len(deltas):
            end = _end_of_row(deltas, start + STAGED_TOGETHER)
            count, hlc = _stage_deltas(db, replica, types, deltas[start:end])
            rows, highest_hlc, start = rows + count, max(highest_hlc, hlc), end
        size += len(frame)
        on_progress(Progress(rows, size))
    return rows, highest_hlc


def _stage_deltas(
    db: sqlite3.Connection, replica: Replica, types: TableTypes, deltas: Sequence[bytes]
) -> tuple[int, int]:
    """Write encoded deltas to the staging tables; return the number of rows and the highest hlc."""
    try:
        groups = _group_rows(decode_by_field(deltas))
        ready = [(group, group.sql_columns(types), _encode_records(replica, group)) for group in groups]
    except NotBulkWritableError:
        decoded = protobuf.decode_deltas(deltas)
        db.execute("INSERT INTO rest (deltas) VALUES (?)", (encode_deltas(decoded),))
        return len({delta.key for delta in decoded}), max(delta.hlc for delta in decoded)
    db.execute("BEGIN")
    for group, columns, records in ready:
        _add_rows(db, group, columns, records)
    db.execute("COMMIT")
    return sum(len(group.row_ids) for group, _, _ in ready), groups.highest_hlc


def _encode_records(replica: Replica, group: RowGroup) -> list[Record]:
    """Return the rows' records as the app's database stores them, with numbers for client ids and column layouts.

    Numbers that the app's database lacks are created there immediately.
    """
    codec = replica.store.stamp_codec
    if codec.needs_new_numbers(group.layout, group.clients):
        return replica.step(lambda _: codec.encode_rows(group.layout, group.hlcs, group.clients))
    return codec.encode_rows(group.layout, group.hlcs, group.clients)


def _group_rows(fields: DeltaFields | None) -> RowGroups:
    """Return the rows of a frame in groups.

    Args:
        fields: the fields of the frame's deltas, each as one list; None if they could not be read by field. In the
            lists of names and values, an empty item ends the columns of each delta. `width` is the number of columns if
            every delta writes the same ones, otherwise None.

    Raises:
        NotBulkWritableError: the deltas are not rows of an INSERT and UPDATEs.
    """
    if fields is None:
        raise NotBulkWritableError
    groups = RowGroups()
    width, ids = fields.width, fields.row_ids
    are_inserts = set(fields.ops) == {pb.DELTA_OP_INSERT} and len(set(fields.tables)) == 1
    # If each delta is a row of its own with the same columns, whole lists are copied, which is much faster.
    if width is None or not are_inserts or any(map(eq, ids, ids[1:])):
        groups.add_parts(_parts_of(fields))
        return groups
    group = groups.get_or_create(fields.tables[0], (tuple(fields.names[:width]),))
    group.row_ids, group.hlcs, group.clients, group.values = ids, fields.hlcs, fields.clients, list(fields.values)
    del group.values[width :: width + 1]  # an empty value ends each delta's columns
    return groups


def _parts_of(fields: DeltaFields) -> Iterator[RowPart]:
    """Yield each delta as a part of its row. A row is an INSERT and the UPDATEs that follow it.

    Args:
        fields: the fields of a frame's deltas; the names of each delta's columns end with an empty name.

    Raises:
        NotBulkWritableError: a delta is neither an INSERT nor an UPDATE of the row before it.
    """
    ops, tables, row_ids, clients, hlcs, all_names, all_values = fields
    previous: tuple[str, str] | None = None
    start = 0
    for op, table, row_id, client, hlc in zip(ops, tables, row_ids, clients, hlcs, strict=True):
        if op != pb.DELTA_OP_INSERT and (op != pb.DELTA_OP_UPDATE or (table, row_id) != previous):
            raise NotBulkWritableError
        previous = (table, row_id)
        end = all_names.index("", start)
        yield table, row_id, hlc, client, tuple(all_names[start:end]), all_values[start:end]
        start = end + 1


def _end_of_row(deltas: Sequence[bytes], end: int) -> int:
    """Return the first index at or after `end` where a row ends."""
    while end < len(deltas) and _row_id_of(deltas[end]) == _row_id_of(deltas[end - 1]):
        end += 1
    return min(end, len(deltas))


def _row_id_of(delta: bytes) -> str:
    """Return the row id of a delta that is encoded as protobuf."""
    return protobuf.parse(pb.RowDelta(), delta).row_id


def _copy_to_app(replica: Replica, core: ClientCore, cursor: int, highest_hlc: int) -> set[str]:
    """Copy the staged rows to the app's tables; merge rows with edits and rows that are not bulk-writable.

    The caller runs it in one transaction.

    Returns:
        The tables with changed rows.
    """
    store, db = replica.store, replica.db
    _create_tables(db, replica.types(), f"{_STAGING_SCHEMA}.")  # another client of the file may have added columns
    # `copy_from` skips rows with edits, so the core merges them, and rows that are not bulk-writable, as deltas
    edited = [key for key in store.edit_table.edited_rows() if key[0] in store.schemas]
    merged: list[RowDelta] = []
    if edited:
        merged = _read_rows(db, edited, replica.types(), store.stamp_codec)
    tables = core.receive(CheckpointFrame(SyncResponse(tuple(merged), cursor))).tables
    for unmerged in _read_unmerged(db):
        tables |= core.receive(CheckpointFrame(SyncResponse(unmerged, cursor))).tables
    staging_tables = {table: f"{_STAGING_SCHEMA}.{_staging_table(table)}" for table in store.schemas}
    # the generation, which is stored with each row: the number of the full pull (a pull of all rows, which may begin
    # with a checkpoint) that this one belongs to
    tables |= store.copy_from(staging_tables, store.position().generation)
    return tables | core.receive(CheckpointEnd(cursor, highest_hlc)).tables


@contextmanager
def _attach_staging_file(replica: Replica, path: Path) -> Iterator[None]:
    """Attach the staging file to the app's database, with a larger cache."""
    db = replica.db
    ((cache_size,),) = db.execute("PRAGMA main.cache_size").fetchall()
    db.execute(f"ATTACH ? AS {_STAGING_SCHEMA}", (str(path),))
    try:
        db.execute(f"PRAGMA main.cache_size = {_COPY_CACHE}")  # SQLite sorts the rows within it
        yield
    finally:
        db.execute(f"PRAGMA main.cache_size = {cache_size}")
        db.execute(f"DETACH {_STAGING_SCHEMA}")


def _create_tables(db: sqlite3.Connection, tables: TableTypes, prefix: str = "") -> None:
    """Create the staging tables and columns that are missing.

    Args:
        db: a database.
        tables: the columns of each synced table.
        prefix: the name of the staging file in `db`, with a dot; empty if it is `db` itself.
    """
    for table, columns in tables.items():
        staging_table = _staging_table(table)
        names = "".join(f', "{name}"' for name in columns)
        db.execute(f"CREATE TABLE IF NOT EXISTS {prefix}{staging_table} (row_id, {STAGED_RECORD}{names})")
        existing = {name for _, name, *_ in db.execute(f"PRAGMA {prefix}table_info({staging_table})")}
        for name in columns:
            if name not in existing:
                db.execute(f'ALTER TABLE {prefix}{staging_table} ADD COLUMN "{name}"')
    db.execute(f"CREATE TABLE IF NOT EXISTS {prefix}rest (number INTEGER PRIMARY KEY, deltas BLOB NOT NULL)")


def _staging_table(table: str) -> str:
    """Return the quoted name of a table's staging table."""
    return f'"rows_of_{table}"'


def _add_rows(
    db: sqlite3.Connection, group: RowGroup, columns: Sequence[Sequence[Any]], records: Sequence[Record]
) -> None:
    """Add new rows to their staging table.

    Args:
        db: the database with the staging tables.
        group: the rows.
        columns: the values of each column of the group, as SQLite binds them.
        records: the rows' records, encoded with the numbers of the app's database.
    """
    names = "".join(f', "{name}"' for name in group.names)
    head = f"INSERT INTO {_staging_table(group.table)} (row_id, {STAGED_RECORD}{names})"
    execute_for_rows(db, head, f"(?, ?{', ?' * len(group.names)})", [group.row_ids, records, *columns])


def _read_unmerged(db: sqlite3.Connection) -> Iterator[tuple[RowDelta, ...]]:
    """Yield the deltas of the table `rest` in parts. The staging file is attached to `db`, the app's database."""
    for (number,) in db.execute(f"SELECT number FROM {_STAGING_SCHEMA}.rest ORDER BY number").fetchall():
        ((deltas,),) = db.execute(f"SELECT deltas FROM {_STAGING_SCHEMA}.rest WHERE number = ?", (number,))
        yield tuple(decode_deltas(deltas))


def _read_rows(
    db: sqlite3.Connection,
    keys: Collection[RowKey],
    types: TableTypes,
    stamp_codec: StampCodec,
) -> list[RowDelta]:
    """Return staged rows as the deltas that create them, the INSERT first, without delta ids.

    Args:
        db: the app's database, to which the staging file is attached.
        keys: the rows to read; those that have no staged row are skipped.
        types: the column types of each table.
        stamp_codec: decodes the records.
    """
    result: list[RowDelta] = []
    for table, row_ids in row_ids_by_table(keys).items():
        columns = types[table]
        selected = "".join(f', staged."{name}"' for name in columns)
        source = f"{_STAGING_SCHEMA}.{_staging_table(table)} staged WHERE row_id IN {LISTED_VALUES}"
        statement = f"SELECT row_id, {STAGED_RECORD}{selected} FROM {source}"
        for row_id, record, *cells in db.execute(statement, (value_list(row_ids),)):
            values = {name: from_sql(kind, cell) for (name, kind), cell in zip(columns.items(), cells, strict=True)}
            stamps = stamp_codec.decode(record)  # `parts`: hlc, client and columns of each delta, the INSERT too
            if stamps.inserted is not None:
                result.append(RowDelta("INSERT", table, row_id, stamps.inserted[1], (), stamps.inserted[0], ""))
            for hlc, client, part in stamps.parts:
                cells_of_part = tuple(ColumnValue(name, values[name]) for name in part)
                result.append(RowDelta("UPDATE", table, row_id, client, cells_of_part, hlc, ""))
    return result
