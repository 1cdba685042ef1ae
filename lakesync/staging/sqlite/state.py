"""All rows and feed entries of a SQLite store: those in `state.db`, and those in memory that are not written to it yet.

The views and commits of the store (`sqlite.commit`) read and write through `State`. A *gateway* is one app's stream of
changes. A *feed entry* is a row's history under one bucket key (a bucket of the sync rules with the claims that may see
it): when it joined the bucket, left it, and last changed in it. These times are arrivals: the gateway's timestamps of
commits. A *move* is such a change of an entry.

Commits write to a *layer* in memory. Reads of rows search the layers and then the file. Reads of entries need SQL, so
they first write the layers' entries to the file's open transaction. `freeze` and `write_part` of the base class write
rows and entries in parts, so that no push waits for long; `commit` ends the transaction. The file then contains the
rows of one position in the log. Its entries may be those of a later position: a replay of the log from the rows'
position changes them in the same way again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from lakesync.model.types import RowKey
from lakesync.staging.encoded_feed import FeedRange, Reader
from lakesync.staging.records import Entry, Move, StoredRow
from lakesync.staging.sqlite.feed_range import MAX_BUCKETS, RangeBuckets, read_file_range
from lakesync.staging.sqlite.layered import LayeredFile


class State(LayeredFile):
    """Rows and entries, in memory or in the file. Only the store's owner thread calls its methods."""

    # -- rows ----------------------------------------------------------------------------------------------------

    def rows(self, gateway: str, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """Return the stored rows among `keys`; they must not be changed.

        Args:
            gateway: the gateway's id.
            keys: the rows' keys.
        """
        found: dict[RowKey, StoredRow] = {}
        missing: Collection[RowKey] = keys
        for rows in self._unwritten(gateway):
            here = {key: row for key in missing if (row := rows.get(key)) is not None}
            if len(here) == len(missing):
                return found | here
            if here:
                found |= here
                missing = [key for key in missing if key not in here]
        return found | self._rows.get(gateway, missing)

    def put(self, gateway: str, rows: Collection[StoredRow], moves: Collection[Move]) -> Collection[str]:
        """Store rows and changes of feed entries in the layer of the current job (the function that makes the commit).

        Args:
            gateway: the gateway's id.
            rows: the rows; each row key occurs once. The layer keeps the objects, so they must not be changed later.
            moves: changes of entries that do not follow from the rows.

        Returns:
            The bucket keys of all rows and moves.
        """
        return self._job_layer.put(gateway, rows, moves)

    def scan_rows(self, gateway: str, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Return rows in key order, after writing all layers to the file, which SQL then reads.

        Args:
            gateway: the gateway's id.
            after: the row key after which to continue; None for the first rows.
            limit: the most rows to return.
        """
        self.write_all()
        return self._rows.scan(gateway, after, limit)

    # -- entries -------------------------------------------------------------------------------------------------

    def entries_after(
        self, gateway: str, buckets: Collection[str], after: int, up_to: int, limit: int
    ) -> Iterator[Entry]:
        """Return entries ordered by `changed`, read only as far as needed; as `EntryFile.entries_after`."""
        self._write_all_entries()
        return self._entries.entries_after(gateway, buckets, after, up_to, limit)

    def read_range(
        self, gateway: str, buckets: Sequence[str], after: int, up_to: int, limit: int, reader: Reader
    ) -> FeedRange | None:
        """Return encoded rows of a range of the feed, for a client that pulls; see `View.read_range`.

        The result is None also if one of the range's rows is in memory only.
        """
        self._write_all_entries()
        # the file identifies bucket keys by numbers; one without a number has no entries
        shared = [number for bucket in buckets if (number := self._buckets.find(gateway, bucket)) is not None]
        if not shared or len(shared) >= MAX_BUCKETS:  # together with the reader's own key, at most MAX_BUCKETS are read
            return None
        numbers = RangeBuckets(shared, self._buckets.find(gateway, reader.own))
        unwritten = self._unwritten(gateway)
        feed_range, keys = read_file_range(self.sql, numbers, after, up_to, limit, reader, with_keys=bool(unwritten))
        return feed_range if all(rows.keys().isdisjoint(keys) for rows in unwritten) else None

    def entries_of(self, gateway: str, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
        """Return every entry of these rows under these bucket keys."""
        self._write_all_entries()
        return self._entries.entries_of(gateway, keys, buckets)

    def changed_after(self, gateway: str, buckets: Collection[str], after: int) -> bool:
        """Return whether any entry under these bucket keys has `changed > after`."""
        layers = self._layers
        for bucket in buckets:
            if any(layer.newest.get((gateway, bucket), after) > after for layer in layers):
                return True
            if self._entries.changed_after(gateway, bucket, after):
                return True
        return False

    def buckets(self, gateway: str, prefix: str) -> list[str]:
        """Return the bucket keys in use that start with `prefix`.

        Args:
            gateway: the gateway's id.
            prefix: the beginning of the keys; empty for all.
        """
        found = set(self._buckets.names(gateway, prefix))
        for layer in self._layers:
            found |= {name for of_gateway, name in layer.newest if of_gateway == gateway and name.startswith(prefix)}
        return sorted(found)
