"""Whether the app's tables are what the gateway says: a checksum a table, before and after all is asked for anew."""

from __future__ import annotations

import hashlib

import msgspec

from lakesync.client.replica import Replica

_encode = msgspec.json.Encoder().encode
_MASK = (1 << 64) - 1


class Checksum(msgspec.Struct, frozen=True):
    """What a table held at a moment, whatever the order of its rows."""

    rows: int
    value: int
    """The sum of eight bytes of BLAKE2 of each row."""


class TableCheck(msgspec.Struct, frozen=True):
    """A table before and after."""

    found: Checksum
    repaired: Checksum

    @property
    def differed(self) -> bool:
        """Whether it was not what the gateway says. A row that others changed meanwhile counts too."""
        return self.found != self.repaired


def checksums(replica: Replica) -> dict[str, Checksum]:
    """Of every table, without what the app has written and not committed."""
    return {table: _checksum(replica, table) for table in replica.tables()}


def take_care(replica: Replica) -> None:
    """Track again what is no longer tracked. A row that nobody knows becomes a new one: it may be the only copy."""
    store = replica.store
    replica.step(lambda _: store.track_again())
    replica.step(lambda _: store.adopt())
    replica.step(lambda _: store.forget_missing())
    replica.step(lambda _: store.check_tracked())  # remade tables are filled when all is compared, not before


def _checksum(replica: Replica, table: str) -> Checksum:
    names = ", ".join(["row_id", *(f'"{name}"' for name in replica.store.schemas[table].types)])
    rows = total = 0
    last = ""
    while found := replica.read(f'SELECT {names} FROM "{table}" WHERE row_id > ? ORDER BY row_id LIMIT 10000', (last,)):
        for row in found:
            total += int.from_bytes(hashlib.blake2b(_encode(row), digest_size=8).digest())
        rows += len(found)
        last = found[-1][0]
    return Checksum(rows, total & _MASK)
