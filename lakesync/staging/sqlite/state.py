"""`state.db`: rows and feed entries, first in memory, then in the file, always behind the journal.

What commits write goes into a layer in memory. A reading of rows looks there first; a reading of entries has the
layer's entries written to the file's open transaction before. `freeze` and `write_on` write rows and entries bit by
bit, so that no push waits for long. `commit` ends the transaction: the file then holds the rows of one place in the
journal, and the entries of that place or of a later one, which a replay from there makes the same again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from lakesync.model.types import RowKey
from lakesync.staging.records import Entry, Move, StoredRow
from lakesync.staging.sqlite.layered import LayeredFile
from lakesync.staging.sqlite.state_file import Applied
from lakesync.staging.sqlite.stretch import MOST_BUCKETS, Numbered, read_stretch
from lakesync.staging.stretch import Reader, Stretch
from lakesync.staging.whole import WholeRow

__all__ = ["Applied", "State"]


class State(LayeredFile):
    """Rows and entries, wherever they are. All methods belong to the owner thread."""

    # -- rows ----------------------------------------------------------------------------------------------------

    def rows(self, gateway: str, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """The stored rows among `keys`, not to be changed."""
        found: dict[RowKey, StoredRow] = {}
        missing = keys
        for rows in self._unwritten(gateway):
            here = {key: row for key in missing if (row := rows.get(key)) is not None}
            if here:
                found |= here
                missing = [key for key in missing if key not in here]
        return found | self._rows.get(gateway, missing) if missing else found

    def put(self, gateway: str, rows: Collection[StoredRow], moves: Collection[Move]) -> Collection[str]:
        """Write rows, which must not be changed afterwards, and feed entries; the bucket keys of all of them."""
        return self._work.put(gateway, rows, moves)

    def scan_rows(self, gateway: str, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Rows in key order, after a key."""
        self.settle()
        return self._rows.scan(gateway, after, limit)

    # -- entries -------------------------------------------------------------------------------------------------

    def entries_after(
        self, gateway: str, buckets: Collection[str], since: int, until: int, limit: int
    ) -> Iterator[Entry]:
        """Entries in order of `changed`, read no further than asked for."""
        self._settle_entries()
        return self._entries.after(gateway, buckets, since, until, limit)

    def whole_rows(self, gateway: str, bucket: str, since: int, until: int, limit: int) -> list[WholeRow]:
        """Entries under one bucket in order of `changed`, with their rows."""
        self._settle_entries()
        found = self._entries.whole(gateway, bucket, since, until, limit)
        for rows in reversed(self._unwritten(gateway)):
            found = [entry if (row := rows.get(entry.key)) is None else entry.of_row(row) for entry in found]
        return found

    def stretch(
        self, gateway: str, buckets: Sequence[str], since: int, until: int, limit: int, reader: Reader
    ) -> Stretch | None:
        """A stretch of the feed as `View.stretch` has it; none where one of its rows is in memory alone."""
        self._settle_entries()
        shared = [number for bucket in buckets if (number := self._buckets.find(gateway, bucket)) is not None]
        if not shared or len(shared) >= MOST_BUCKETS:
            return None
        numbers = Numbered(shared, self._buckets.find(gateway, reader.own))
        unwritten = self._unwritten(gateway)
        stretch, keys = read_stretch(self.sql, numbers, since, until, limit, reader, with_keys=bool(unwritten))
        return stretch if all(rows.keys().isdisjoint(keys) for rows in unwritten) else None

    def entries_of(self, gateway: str, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
        """Every entry of these rows under these buckets."""
        self._settle_entries()
        return self._entries.of(gateway, keys, buckets)

    def changed_after(self, gateway: str, buckets: Collection[str], since: int) -> bool:
        """Whether any entry under `buckets` has `changed > since`."""
        layers = self._newest()
        for bucket in buckets:
            if any(newest.get((gateway, bucket), since) > since for newest in layers):
                return True
            if self._entries.changed_after(gateway, bucket, since):
                return True
        return False

    def buckets(self, gateway: str, prefix: str) -> list[str]:
        """The bucket keys in use that start with `prefix`."""
        found = set(self._buckets.names(gateway, prefix))
        for newest in self._newest():
            found |= {name for where, name in newest if where == gateway and name.startswith(prefix)}
        return sorted(found)

    def _newest(self) -> list[dict[tuple[str, str], int]]:
        """`Layer.newest` of each layer."""
        return [layer.newest for layer in (self._work, self._group, self._front, self._frozen) if layer is not None]
