"""What waits in memory for `state.db`: layers of rows and entry changes, and their way into the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from functools import partial

from lakesync.model.types import RowKey
from lakesync.staging.hot_rows import HotRow
from lakesync.staging.sqlite import bulk
from lakesync.staging.sqlite.numbers import home_of
from lakesync.staging.sqlite.pending import Changes, Layer, Rows
from lakesync.staging.sqlite.state_file import StateFile
from lakesync.staging.sqlite.undo import Undo

_BIT = 128
"""Rows that are written at a time."""


class LayeredFile(StateFile):
    """The file, a layer that is being written to it bit by bit, where there is one, and a newer layer above both."""

    def _forget(self) -> None:
        """Nothing is in memory, nothing in an open transaction."""
        super()._forget()
        self._front = Layer()
        self._frozen: Layer | None = None
        self._writing: Iterator[None] = iter(())
        self.left = 0
        """About how many rows and entries of what is frozen are not written yet."""
        self._undo = Undo()
        self._guards = 0
        self.settled = False
        """More was written since the last `freeze` than what was frozen."""

    # -- the journal's groups and works --------------------------------------------------------------------------

    def mark(self) -> int:
        """Begin a work."""
        return self._undo.mark()

    def take_back(self, mark: int) -> None:
        """Take back what was done since the mark; 0 is the beginning of the group."""
        self._undo.take_back(mark)

    def keep(self) -> None:
        """Keep what the group did."""
        self._undo.forget()
        if self._guards:
            self._guards = 0
            self.sql.execute("RELEASE guard_1")

    # -- from memory to the file ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Rows in memory that are to be written, at most; apart from what is frozen."""
        return self._front.count

    @property
    def frozen(self) -> bool:
        """Whether a layer is being written bit by bit."""
        return self._frozen is not None

    @property
    def guarded(self) -> bool:
        """Whether the group has written to the file what is taken back with it."""
        return self._guards > 0

    def freeze(self) -> None:
        """Set apart what is in memory now, for `write_on`."""
        self._finish()
        self.settled = False
        self._frozen, self._front = self._front, Layer()
        self.left = 2 * self._frozen.count
        self._writing = self._written(self._frozen)

    def write_on(self) -> bool:
        """Write a bit of what was frozen; whether that was all.

        Raises:
            sqlite3.Error: it cannot be written; the state is not intact any more.
        """
        try:
            for _ in self._writing:
                return False
        except BaseException:  # whatever it was, what is left of the layer will not be written
            self._whole = False
            raise
        self._frozen = None
        return True

    def settle(self) -> None:
        """Write everything that is in memory; in a group, so that it can be taken back."""
        self._finish()
        if not self._front:
            return
        layer = self._front
        if self._undo.mark() > 0:
            self._guard(layer)
        self._frozen, self._front = layer, Layer()
        self._writing = self._written(layer)
        self._finish()
        self.settled = True

    def _settle_entries(self) -> None:
        """Write the entry changes that are in memory; in a group, so that they can be taken back."""
        frozen, front = self._frozen, self._front
        if frozen is not None and frozen.changes:
            if frozen.rows_written:
                self._finish()
            else:
                self._write_entries(frozen)
        if front.changes:
            if self._undo.mark() > 0:
                self._guard(front)
            self._write_entries(front)

    def _write_entries(self, layer: Layer) -> None:
        self._begin()
        try:
            for _ in self._written_entries(layer.take_changes(), layer.rows, {}):
                pass
        except sqlite3.Error:
            self._whole = False
            raise

    def _finish(self) -> None:
        while not self.write_on():
            pass

    def _guard(self, layer: Layer) -> None:
        """Have what is written from here on taken back with the work, and what was in memory be there again."""
        self._begin()
        changes = layer.changes
        self._guards += 1
        self.sql.execute(f"SAVEPOINT guard_{self._guards}")

        def restore() -> None:
            self.sql.execute(f"ROLLBACK TO guard_{self._guards}")
            self.sql.execute(f"RELEASE guard_{self._guards}")
            self._guards -= 1
            self._front = layer
            layer.changes = changes
            self._mistrust()

        self._undo.add(restore)

    def _written(self, layer: Layer) -> Iterator[None]:
        """Write a layer, rows first; stops after each bit.

        New rows get their numbers bucket by bucket, and in each as they came, which is how a page reads them. Those
        that are what their INSERT made of them are written with their entries.
        """
        self._begin()
        numbers: dict[str, dict[RowKey, int]] = {}
        joined: dict[str, int] = {}
        for gateway, waiting in layer.rows.items():
            of_rows = numbers[gateway] = {}
            joined[gateway] = 0
            moved = layer.changes.moved(gateway)
            for part in bulk.parts(_by_home(waiting), _BIT):
                told = layer.changes.told.get(gateway, {})  # a reading may have had the entries written
                joins = []
                for (key, hot), number in zip(part, self._rows.put(gateway, part), strict=True):
                    if hot.birth and key in told and key not in moved:
                        joins.append((hot.keys, number, hot.born))
                    else:
                        of_rows[key] = number
                self._entries.write_joins(gateway, joins)
                joined[gateway] += len(joins)
                self.left -= len(part) + len(joins)
                yield
        layer.rows_written = True
        yield from self._written_entries(layer.changes.without_births(layer.rows, joined), layer.rows, numbers)

    def _written_entries(
        self, changes: Changes, rows: Rows, numbers: Mapping[str, Mapping[RowKey, int]]
    ) -> Iterator[None]:
        folded = changes.folded(rows)
        self.left = sum(map(len, folded.values()))
        for gateway, of_entries in folded.items():
            known = numbers.get(gateway, {})
            for written in self._entries.write(gateway, of_entries, known, partial(self._keys_of, gateway)):
                self.left -= written
                yield

    def _keys_of(self, gateway: str, key: RowKey) -> tuple[str, ...]:
        """The bucket keys of a row in memory."""
        hot = next((held[key] for held in self._unwritten(gateway) if key in held), None)
        return () if hot is None else hot.keys

    def _unwritten(self, gateway: str) -> tuple[dict[RowKey, HotRow], dict[RowKey, HotRow]]:
        """The rows in memory that the file may not hold: the newer layer, then the older one."""
        frozen = self._frozen.rows.get(gateway, {}) if self._frozen is not None else {}
        return self._front.rows.get(gateway, {}), frozen  # a layer that is being written must not grow


def _by_home(rows: Mapping[RowKey, HotRow]) -> list[tuple[RowKey, HotRow]]:
    """Rows that are to stand together beside each other, otherwise as they came."""
    as_they_came = list(rows.items())
    if len({hot.keys for _, hot in as_they_came}) == 1:
        return as_they_came
    return sorted(as_they_came, key=lambda row: home_of(row[1].keys))
