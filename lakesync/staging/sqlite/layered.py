"""The layers over `state.db`, with the rows and feed entries that it does not contain yet, and their way to the file.

`log.db` has the journal: the committed changes of each gateway (one app's stream of changes). `state.db` has the
current rows, and is written later than the log.

A *job* is a function that the store's owner thread runs in a transaction of `log.db`; the jobs of one transaction are a
*group*. From newest to oldest, the layers have the writes of the current job, of earlier jobs in its group, and of
committed groups. The oldest is the *frozen layer*, which is being written to the file in parts. Rows are replaced,
never changed. So a job is rolled back by dropping its layer, and a group by dropping both of its layers.

A *feed entry* is a row's history under one bucket key (a bucket of the sync rules with the claims that may see it):
when it joined the bucket, left it, and last changed in it. Entries are needed more often than rows: a read of the feed
writes the layers' entries to the file first, while the rows stay in memory. An *explicit move* is a change of an entry
that does not follow from a changed row: the row joins or leaves the bucket. An *arrival* is the gateway's own timestamp
of a commit.

The file has one open transaction, which spans many groups. If a read needs rows or entries of an uncommitted group in
the file, they are written inside a savepoint, so that the group can still be rolled back alone. `GroupCommit` and
`WriteBehind` call the methods here; `State` adds the reads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from functools import partial

from lakesync.model.parts import parts
from lakesync.model.types import RowKey
from lakesync.staging.records import StoredRow
from lakesync.staging.sqlite.layer import Layer, RowChange
from lakesync.staging.sqlite.row_file import grouping_key
from lakesync.staging.sqlite.state_file import StateFile

_ROWS_PER_PART = 128
"""Number of rows in one part of the frozen layer. Jobs wait while a part is written, so it is small."""
_MOVES_PER_PART = 2048
"""Number of explicit moves in one part, which takes about as long as a part of rows."""
_GROUP_SAVEPOINT, _JOB_SAVEPOINT = "of_group", "of_job"
"""Names of the savepoints in which the current group, and its current job (`job`), write to the file."""


class LayeredFile(StateFile):
    """The file and the layers over it; the base class of `State`. Only the store's owner thread calls its methods.

    After the writes of a job, it calls `end_job` or `drop_job`; after those of a group, `publish` or `drop_group`. To
    write committed rows in parts, it calls `freeze`, then `write_part` until that returns True, then `commit`.
    """

    def _reset(self) -> None:
        """Clear all layers, when no transaction is open."""
        super()._reset()
        self._job_layer = Layer()
        """The writes of the current job."""
        self._group_layer = Layer()
        """The writes of earlier jobs of the current group."""
        self._committed_layer = Layer()
        """The writes of committed groups since the last `freeze`."""
        self._frozen_layer: Layer | None = None
        """The layer that is being written to the file; None while no layer is."""
        self._writing: Iterator[float] = iter(())
        """Writes a part of the frozen layer at each step, and yields how much is left."""
        self.frozen_left = 0.0
        """About how many parts of the frozen layer are not written yet."""
        self._savepoints: list[str] = []
        """Savepoints of writes to the file by the current group, and by its current job."""
        self.wrote_unfrozen = False
        """Whether more than the frozen layer was written since the last `freeze`."""

    # -- the journal's groups and jobs ---------------------------------------------------------------------------

    def end_job(self) -> None:
        """Add the writes of the current job to its group."""
        self._release(_JOB_SAVEPOINT)
        if self._job_layer:
            self._group_layer = self._group_layer.with_later(self._job_layer)
            self._job_layer = Layer()

    def drop_job(self) -> None:
        """Roll back the writes of the current job."""
        self._roll_back_to(_JOB_SAVEPOINT)
        self._job_layer = Layer()

    def publish(self) -> None:
        """Add the writes of the group, which `log.db` has committed, to the committed ones."""
        self.end_job()
        self._release(_GROUP_SAVEPOINT)
        if self._group_layer:
            self._committed_layer = self._committed_layer.with_later(self._group_layer)
            self._group_layer = Layer()

    def drop_group(self) -> None:
        """Roll back the writes of the group, which `log.db` has not committed."""
        self._roll_back_to(_GROUP_SAVEPOINT)
        self._job_layer, self._group_layer = Layer(), Layer()

    def _save(self, name: str) -> None:
        """Set a savepoint in the file's transaction, in that of the group, unless they are set."""
        self._begin()
        for each in (_GROUP_SAVEPOINT, name):
            if each not in self._savepoints:
                self.sql.execute(f"SAVEPOINT {each}")
                self._savepoints.append(each)

    def _release(self, name: str) -> None:
        """Release a savepoint and those after it, if it is set; their writes stay."""
        if name in self._savepoints:
            self._savepoints = self._savepoints[: self._savepoints.index(name)]
            self.sql.execute(f"RELEASE {name}")

    def _roll_back_to(self, name: str) -> None:
        """Roll back to a savepoint, if it is set."""
        if name in self._savepoints:
            self.sql.execute(f"ROLLBACK TO {name}")
            self._release(name)
            self._clear_caches()

    # -- from memory to the file ---------------------------------------------------------------------------------

    @property
    def unfrozen_rows(self) -> int:
        """Number of rows in memory that are not written, without the frozen layer."""
        return self._committed_layer.count

    @property
    def has_frozen_layer(self) -> bool:
        """Whether a frozen layer is being written."""
        return self._frozen_layer is not None

    @property
    def has_savepoints(self) -> bool:
        """Whether the current group has written to the file, in savepoints, so that the file must not be committed."""
        return bool(self._savepoints)

    def freeze(self) -> None:
        """Freeze the layer of committed groups, so that `write_part` writes it."""
        self._finish()
        self.wrote_unfrozen = False
        self._freeze()

    def _freeze(self) -> None:
        """Make the layer of committed groups the frozen one, and begin to write it."""
        self._frozen_layer, self._committed_layer = self._committed_layer, Layer()
        self.frozen_left = self._frozen_layer.count / _ROWS_PER_PART + self._frozen_layer.move_count / _MOVES_PER_PART
        self._writing = self._write_parts(self._frozen_layer)

    def write_part(self) -> bool:
        """Write a part of the frozen layer; return whether the layer is complete.

        Raises:
            sqlite3.Error: it cannot be written; `intact` is false afterwards.
        """
        try:
            for left in self._writing:
                self.frozen_left = left
                return False
        except BaseException:
            self._is_valid = False  # a part of the layer is written, so the rows are rebuilt from the log
            raise
        self._frozen_layer, self.frozen_left = None, 0.0
        return True

    def write_all(self) -> None:
        """Write all layers to the file; those of the current group in savepoints.

        Frozen and committed rows are written outside of them, so no savepoint may be set if there are such rows.
        """
        self._finish()
        if self._committed_layer:
            self._freeze()
            self._finish()
            self.wrote_unfrozen = True
        for name, layer in ((_GROUP_SAVEPOINT, self._group_layer), (_JOB_SAVEPOINT, self._job_layer)):
            if layer:
                self.wrote_unfrozen = True
                self._save(name)
                for _ in self._write_parts(layer):
                    pass

    def _write_all_entries(self) -> None:
        """Write all changes of entries to the file, so that SQL can read the feed; those of the group in savepoints."""
        for layer in (self._frozen_layer, self._committed_layer):
            if layer is not None and layer.has_entries:
                self._write_entries(layer.take_all_entries())
        for name, layer in ((_GROUP_SAVEPOINT, self._group_layer), (_JOB_SAVEPOINT, self._job_layer)):
            if layer.has_entries:
                self._save(name)
                self._write_entries(layer.take_all_entries())

    def _write_entries(
        self, taken: Mapping[str, list[RowChange]], row_numbers: Mapping[str, Mapping[RowKey, int]] | None = None
    ) -> None:
        """Write changes of entries that were taken from a layer.

        Args:
            taken: the changes, by gateway.
            row_numbers: by gateway, the number by which the file identifies each row, as far as the caller has them;
                None without any.

        Raises:
            sqlite3.Error: an entry cannot be written; `intact` is false afterwards.
        """
        self._begin()
        try:
            for gateway, changes in taken.items():
                numbers = (row_numbers or {}).get(gateway, {})
                unnumbered = dict.fromkeys(key for key, _, _ in changes if key not in numbers)  # in order of arrival
                if unnumbered:
                    numbers = {
                        **numbers,
                        **self._rows.make_numbers(gateway, unnumbered, partial(self._keys_of, gateway)),
                    }
                self._entries.put(gateway, [(numbers[key], bucket, change) for key, bucket, change in changes])
        except sqlite3.Error:
            self._is_valid = False
            raise

    def _finish(self) -> None:
        """Write the rest of the frozen layer."""
        while not self.write_part():
            pass

    def _write_parts(self, layer: Layer) -> Iterator[float]:
        """Write a layer to the file part by part: a generator that writes the next part at each step.

        It yields about how many parts are left.

        New rows get their numbers bucket key by bucket key, and within each in order of arrival. A pull reads rows in
        that order, so it reads few pages of the file.
        """
        self._begin()
        row_numbers: dict[str, dict[RowKey, int]] = {}
        rows_left, parts_of_moves = layer.count, layer.move_count / _MOVES_PER_PART
        for gateway, rows in layer.rows.items():
            numbers = row_numbers[gateway] = {}
            for part in parts(_in_grouping_order(rows), _ROWS_PER_PART):
                numbers |= zip([row.key for row in part], self._rows.put(gateway, part), strict=True)
                changes = layer.take_entries(gateway, part)
                self._entries.put(gateway, [(numbers[key], bucket, change) for key, bucket, change in changes])
                rows_left -= len(part)
                yield rows_left / _ROWS_PER_PART + parts_of_moves  # `take_entries` may have taken some of the moves
        while moves := layer.take_moves(_MOVES_PER_PART):  # to keys that rows have left, and to clients' own
            self._write_entries(moves, row_numbers)
            yield layer.move_count / _MOVES_PER_PART

    def _keys_of(self, gateway: str, key: RowKey) -> tuple[str, ...]:
        """Return the bucket keys of a row in memory; none if it is in no layer."""
        row = next((rows[key] for rows in self._unwritten(gateway) if key in rows), None)
        return () if row is None else row.keys

    @property
    def _layers(self) -> list[Layer]:
        """All layers, newest first."""
        layers = (self._job_layer, self._group_layer, self._committed_layer, self._frozen_layer)
        return [layer for layer in layers if layer is not None]

    def _unwritten(self, gateway: str) -> list[Mapping[RowKey, StoredRow]]:
        """Return the rows of each layer, newest first."""
        return [layer.rows[gateway] for layer in self._layers if gateway in layer.rows]


def _in_grouping_order(rows: Mapping[RowKey, StoredRow]) -> list[StoredRow]:
    """Sort rows by the bucket key beside whose rows they are stored (`grouping_key`); rows of one key stay in order."""
    in_order_of_arrival = list(rows.values())
    if len({row.keys for row in in_order_of_arrival}) == 1:
        return in_order_of_arrival
    return sorted(in_order_of_arrival, key=lambda row: grouping_key(row.keys))
