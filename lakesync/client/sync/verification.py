"""Verification: comparing an app's tables before and after all rows were pulled again.

`SyncCoordinator.verify` calls it. Pulling all rows again, while the app keeps its changes, is a *resync*. The replica
is the app's database with the client's state. Triggers on the app's tables record what the app writes, in a journal,
from which the next step of the replica makes edits (changes to push). The client also has a record of each row that the
gateway has.
"""

from __future__ import annotations

import hashlib

import msgspec

from lakesync.client.status import Checksum
from lakesync.client.sync.replica import Replica

_ROWS_PER_READ = 10_000
"""Rows that one query reads for a checksum, so that writers do not wait long."""
_MASK = (1 << 64) - 1
"""Keeps the low 64 bits of a sum."""
_encode = msgspec.json.Encoder().encode


def record_untracked_changes(replica: Replica) -> None:
    """Prepare a comparison: record what the app changed while the triggers were missing.

    These are rows that were written, and tables that were dropped and recreated, by which they lost their triggers. A
    row without a record is treated as an insert by the app, and will be pushed, because it may be the only copy.
    """
    store = replica.store
    # Create the triggers of tables that were dropped and recreated.
    replica.step(lambda _: store.track_recreated_tables())
    # Journal rows without a record as inserts; the next step records them as edits.
    replica.step(lambda _: store.journal_unknown_rows())
    # Forget rows that were deleted without the triggers, so that the resync inserts them again.
    replica.step(lambda _: store.forget_missing())
    # A sync pulls everything again if `has_recreated_tables_after_schema_change`, which is true only once. After this
    # call, the next sync does not, so that the comparison shows what a recreated table lacks.
    replica.step(lambda _: store.has_recreated_tables_after_schema_change())


def checksums(replica: Replica) -> dict[str, Checksum]:
    """Return the checksum of every table, without uncommitted writes."""
    return {table: _checksum(replica, table) for table in replica.tables()}


def _checksum(replica: Replica, table: str) -> Checksum:
    """Return a table's checksum. The table is read in parts, so that writers do not wait."""
    names = ", ".join(["row_id", *(f'"{table}"."{name}"' for name in replica.store.schemas[table].types)])
    count = total = 0
    last_id = ""
    query = f'SELECT {names} FROM "{table}" WHERE row_id > ? ORDER BY row_id LIMIT {_ROWS_PER_READ}'
    while rows := replica.read(query, (last_id,)):
        for row in rows:
            total += int.from_bytes(hashlib.blake2b(_encode(row), digest_size=8).digest())
        count += len(rows)
        last_id = rows[-1][0]
    return Checksum(count, total & _MASK)
