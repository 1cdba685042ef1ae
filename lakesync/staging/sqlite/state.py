"""`state.db`: rows and feed entries, first in memory, then in the file, always behind the journal.

What commits write goes into a layer in memory. A reading of rows looks there first; a reading of entries has the
layer's entries written to the file's open transaction before. `freeze` and `write_on` write rows and entries bit by
bit, so that no push waits for long. `commit` ends the transaction: the file then holds the rows of one place in the
journal, and the entries of that place or of a later one, which a replay from there makes the same again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from lakesync.model.types import RowKey
from lakesync.staging.hot_rows import HotRow
from lakesync.staging.moves import Stays, told_at_birth
from lakesync.staging.records import Entry, Move, StoredRow
from lakesync.staging.sqlite import pending
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
        front, frozen = self._unwritten(gateway)
        found: dict[RowKey, StoredRow] = {}
        written = []
        for key in keys:
            hot = front.get(key) or frozen.get(key)
            if hot is not None:
                found[key] = hot.merged()
            else:
                written.append(key)
        return found | self._rows.get(gateway, written) if written else found

    def hot_rows(self, gateway: str, keys: Collection[RowKey]) -> dict[RowKey, HotRow]:
        """The stored rows among `keys`, not merged where they need not be."""
        front, frozen = (held.get for held in self._unwritten(gateway))
        found = {key: hot for key in keys if (hot := front(key)) is not None}
        if len(found) < len(keys):
            missing = [key for key in keys if key not in found] if found else list(keys)
            older = {key: hot for key in missing if (hot := frozen(key)) is not None}
            if older:
                found |= older
                missing = [key for key in missing if key not in older]
            found.update((key, HotRow.of(row)) for key, row in self._rows.get(gateway, missing).items())
        return found

    def put_rows(self, gateway: str, rows: Mapping[RowKey, HotRow], stays: Stays) -> None:
        """Write rows, and what they tell of moves; they must not be changed afterwards."""
        for row in rows.values():
            if row.born:
                row.rest()
        pending.put_rows(self._front, gateway, rows, self._undo)
        if stays:
            pending.put_stays(self._front, gateway, rows, stays, self._undo)

    def put_whole_rows(self, gateway: str, rows: Iterable[StoredRow]) -> None:
        """Write rows that somebody merged; what those in memory tell of moves is kept."""
        front = self._front.rows[gateway]
        hot: dict[RowKey, HotRow] = {}
        joins: list[Move] = []
        for row in rows:
            before = front.get(row.key)
            hot[row.key] = HotRow.of(row, before.stayed if before else 0)
            joins += told_at_birth(before, row.key) if before else ()
        pending.put_rows(self._front, gateway, hot, self._undo)
        self.put_moves(gateway, joins)

    def scan_rows(self, gateway: str, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Rows in key order, after a key."""
        self.settle()
        return self._rows.scan(gateway, after, limit)

    # -- entries -------------------------------------------------------------------------------------------------

    def put_moves(self, gateway: str, moves: Collection[Move]) -> None:
        """Write feed entries."""
        if moves:
            pending.put_moves(self._front, gateway, moves, self._undo)

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
        front, frozen = self._unwritten(gateway)
        if not front and not frozen:
            return found
        whole = []
        for entry in found:
            hot = front.get(entry.key) or frozen.get(entry.key)
            whole.append(entry if hot is None else entry.of_row(hot.merged()))
        return whole

    def stretch(
        self, gateway: str, buckets: Sequence[str], since: int, until: int, limit: int, reader: Reader
    ) -> Stretch | None:
        """A stretch of the feed as `View.stretch` has it; none where one of its rows is in memory alone."""
        self._settle_entries()
        shared = [number for bucket in buckets if (number := self._buckets.find(gateway, bucket)) is not None]
        if not shared or len(shared) >= MOST_BUCKETS:
            return None
        numbers = Numbered(shared, self._buckets.find(gateway, reader.own))
        front, frozen = self._unwritten(gateway)
        waits = bool(front or frozen)
        stretch, keys = read_stretch(self.sql, numbers, since, until, limit, reader, with_keys=waits)
        if waits and not (front.keys().isdisjoint(keys) and frozen.keys().isdisjoint(keys)):
            return None
        return stretch

    def entries_of(self, gateway: str, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
        """Every entry of these rows under these buckets."""
        self._settle_entries()
        return self._entries.of(gateway, keys, buckets)

    def changed_after(self, gateway: str, buckets: Collection[str], since: int) -> bool:
        """Whether any entry under `buckets` has `changed > since`."""
        layers = [layer.newest for layer in (self._front, self._frozen) if layer is not None]
        for bucket in buckets:
            if any((gateway, bucket) in layer and layer[gateway, bucket] > since for layer in layers):
                return True
            if self._entries.changed_after(gateway, bucket, since):
                return True
        return False

    def buckets(self, gateway: str, prefix: str) -> list[str]:
        """The bucket keys in use that start with `prefix`."""
        found = set(self._buckets.names(gateway, prefix))
        for layer in (self._front, self._frozen):
            if layer is not None:
                found |= {name for where, name in layer.newest if where == gateway and name.startswith(prefix)}
        return sorted(found)
