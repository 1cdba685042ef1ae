"""Checksums of the app's tables. Those before and after a full pull show which tables differed from the gateway's.

`SyncCoordinator.verify` calls this module, and makes the full pull in between, which repairs the tables.
"""

from __future__ import annotations

import hashlib

import msgspec

from lakesync.client.sync.replica import Replica

_encode = msgspec.json.Encoder().encode
_MASK = (1 << 64) - 1


class Checksum(msgspec.Struct, frozen=True):
    """A checksum of a table that does not depend on the order of its rows."""

    rows: int
    """Number of rows."""
    value: int
    """The sum of 8 bytes of BLAKE2 of each row, modulo 2^64."""


class TableCheck(msgspec.Struct, frozen=True):
    """A table's checksums before and after verification."""

    found: Checksum
    """Before the full pull."""
    repaired: Checksum
    """After the full pull."""

    @property
    def differed(self) -> bool:
        """Whether the table differed from the gateway's; a row that another client changed meanwhile counts too."""
        return self.found != self.repaired


def checksums(replica: Replica) -> dict[str, Checksum]:
    """Return the checksum of every table, without uncommitted writes."""
    return {table: _checksum(replica, table) for table in replica.tables()}


def record_untracked_changes(replica: Replica) -> None:
    """Prepare a comparison: find rows that were written, or tables that were recreated, without the client's triggers.

    The client has a record of every row that it knows. A row without a record is treated as an insert by the app, and
    will be pushed, because it may be the only copy.
    """
    store = replica.store
    replica.step(lambda _: store.track_remade_tables())
    replica.step(lambda _: store.journal_unknown_rows())
    replica.step(lambda _: store.forget_missing())
    replica.step(lambda _: store.check_tracked())  # recreated tables are filled after the comparison, not before


def _checksum(replica: Replica, table: str) -> Checksum:
    """Return a table's checksum. It is read in parts, so that writers do not wait."""
    names = ", ".join(["row_id", *(f'"{name}"' for name in replica.store.schemas[table].types)])
    count = total = 0
    last_id = ""
    query = f'SELECT {names} FROM "{table}" WHERE row_id > ? ORDER BY row_id LIMIT 10000'
    while rows := replica.read(query, (last_id,)):
        for row in rows:
            total += int.from_bytes(hashlib.blake2b(_encode(row), digest_size=8).digest())
        count += len(rows)
        last_id = rows[-1][0]
    return Checksum(count, total & _MASK)
