"""Executes erasures (permanent deletions of a row or a client) in a store.

It removes values from the log, from merged rows and client records, and then from free pages of the database files.
`SqliteStore` and `PostgresStore` inherit from `ErasingStore`, by `BaseStore`. The command `lakesync erase` and the data
pipeline call its methods, through the gateway if one owns the store. The pipeline erases in the lake, and then calls
`restore` and `confirm_erasure`.

An erasure is recorded durably before its first step, every step can be repeated, and a store completes interrupted
erasures when it opens. It covers the deltas (changes) of a row or client up to an *hlc*, the client's timestamp; pushes
of covered deltas are stored without their values. Its *arrival* is the gateway's newest timestamp of a commit at its
latest step. *Checkpoints* (snapshots of all rows, from which new clients start) from before that arrival may contain
erased values, and are no longer served.

- A *gateway* is one app's stream of changes. Its *log* has one row for each push. A *stamp* is an hlc with the id of
  the client that set it; in a merge, the greater stamp wins.
- The sync rules divide rows into *buckets*. A row's *entry* in the *feed* says when it joined a bucket, left it, and
  last changed there; that arrival is its position in the feed. A *move* is a change of an entry. Clients pull by it.
- A row stores its latest *writers*, the clients that pushed its deltas. Those that wrote up to the arrival
  `writers_floor` may be missing.
- A *client record* says what a client was sent. Its *epoch* identifies the store that wrote it; `LOST` says that the
  record was erased.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import structlog

from lakesync.model.crash_points import crash_point
from lakesync.model.errors import ConfigurationError, NotFoundError, StagingUnavailableError
from lakesync.model.hlc import start_of
from lakesync.model.types import RowDelta, RowKey
from lakesync.staging.erased_rows import delete_rows, remove_columns, restore_columns, stamps_of
from lakesync.staging.records import LOST, ClientRecord, Erasure
from lakesync.staging.store import Commit, TransactionStore
from lakesync.staging.store.pipeline import GatewayStore
from lakesync.staging.store.push import Replayer

log = structlog.get_logger(__name__)

T = TypeVar("T")

_ROWS_PER_COMMIT = 500
"""The most log rows or merged rows that one commit reads, so that pushes run in between."""


class ErasingStore(TransactionStore, GatewayStore):
    """Base class of stores: the methods that erase, by commits of the store. Every call can be repeated."""

    _replayer: Replayer | None = None
    """Writes the feed entries of changed rows, and applies DELETEs that are in the log. The store's `open` sets it: the
    store cannot import the engine, which knows the sync rules."""
    _one_at_a_time = threading.Lock()
    """Shared by all stores of the process, because an erasure is rare and rewrites whole files."""

    @abstractmethod
    def _now_ms(self) -> int:
        """Return the server's wall time in milliseconds since 1970."""

    @abstractmethod
    def _purge(self) -> None:
        """Remove deleted values from the database files: free pages, old row versions, the write-ahead log.

        Raises:
            StagingUnavailableError: another process reads the files; a repeat is safe.
        """

    def erase_row(self, gateway: str, table: str, row_id: str) -> Erasure:
        """Erase all values that a row ever had, and send a DELETE to the clients that have it. Returns when done.

        If the row was erased before and not written since, the earlier erasure is returned, so a repeat is cheap.

        Args:
            gateway: the gateway's id.
            table: the row's table.
            row_id: the row's id.

        Raises:
            NotFoundError: the gateway never had such a row.
            ConfigurationError: the store was opened without an engine; nothing is erased.
            StagingUnavailableError: the erasure is recorded but not complete; a repeat continues it.
        """

        def newest_hlc(commit: Commit) -> int:
            row = commit.rows([(table, row_id)]).get((table, row_id))
            if row is None:
                raise NotFoundError(
                    f"gateway {gateway!r} never had a row {row_id!r} in table {table!r}: check both names"
                )
            return max([hlc for hlc, _ in stamps_of(row)], default=0)

        return self._erase(gateway, newest_hlc, table=table, row_id=row_id)

    def erase_client(self, gateway: str, client_id: str, *, is_known: bool = False) -> Erasure:
        """Erase everything that a client ever wrote, and its record.

        Rows with values of this client only are deleted; other rows lose the client's columns. Returns when done. If
        the client was erased before and did nothing since, the earlier erasure is returned.

        Args:
            gateway: the gateway's id.
            client_id: the client's id.
            is_known: whether another shard of the gateway knows the client. Then a store that never saw it records the
                erasure too, so that it stores what the client wrote before and pushes later without values.

        Raises:
            NotFoundError: the gateway never had such a client.
            ConfigurationError: the store was opened without an engine; nothing is erased.
            StagingUnavailableError: the erasure is recorded but not complete; a repeat continues it.
        """

        def newest_hlc(commit: Commit) -> int:
            highest, record = commit.highest_hlc(client_id), commit.client(client_id)
            has_actions = commit.has_outcomes(client_id)
            if highest < 0 and record is None and not has_actions and not is_known:
                raise NotFoundError(f"gateway {gateway!r} never saw a client {client_id!r}: check both ids")
            # an erased client has a record with the epoch `LOST`; another epoch shows that it came back since
            is_active = (record is not None and record.epoch != LOST) or has_actions
            return max(highest, start_of(self._now_ms())) if is_active else highest

        return self._erase(gateway, newest_hlc, client_id=client_id)

    def erasures(self, gateway: str) -> list[Erasure]:
        """Return a gateway's erasures, the oldest first. The lake still has to execute those without `lake_ms`."""
        return self.read(gateway, lambda view: view.erasures()).result()

    def confirm_erasure(self, gateway: str, seq: int) -> None:
        """Record that the lake has executed an erasure.

        Args:
            gateway: the gateway's id.
            seq: the erasure's sequence number.

        Raises:
            NotFoundError: there is no such erasure.
        """

        def confirm(commit: Commit) -> None:
            erasure = _stored(commit, seq)
            if erasure.lake_ms is None:
                commit.put_erasure(msgspec.structs.replace(erasure, lake_ms=self._now_ms()))

        self.submit(gateway, confirm).result()

    def restore(self, gateway: str, seq: int, deltas: Sequence[RowDelta]) -> Erasure:
        """Merge older deltas of other clients, read from the lake, that erased deltas had overwritten.

        An erasure of a client removes columns, but not what other clients had written to them before. The pipeline
        finds these deltas in the lake.

        Args:
            gateway: the gateway's id.
            seq: the erasure's sequence number.
            deltas: the older deltas, from the lake.

        Returns:
            The erasure, with a new arrival: older checkpoints lack the restored values.

        Raises:
            NotFoundError: there is no such erasure.
            ConfigurationError: the store was opened without an engine.
        """
        replayer = self._required_replayer()

        def merge(commit: Commit) -> Erasure:
            commit.run_alone()  # the log does not have these changes, so they cannot be restored from it after a crash
            erasure = _stored(commit, seq)
            # the lake may not have executed other erasures yet, so their deltas still have values there
            erasures = commit.erasures()
            restore_columns(
                commit, replayer, [delta for delta in deltas if not any(each.covers(delta) for each in erasures)]
            )
            restored = msgspec.structs.replace(erasure, arrival=commit.next_arrivals(1)[-1])
            commit.put_erasure(restored)
            return restored

        return self.submit(gateway, merge).result()

    def _finish_erasures(self) -> None:
        """Complete the erasures that a crash interrupted, and purge the files once for all of them.

        One that cannot be completed now stays open: it must not keep the store from serving all gateways.
        """
        removed: list[Erasure] = []
        for erasure in [each for gateway in self.gateways() for each in self.erasures(gateway)]:
            if erasure.done_ms is None:
                try:
                    self._remove(erasure)
                except StagingUnavailableError as error:
                    _warn(erasure, error)
                else:
                    removed.append(erasure)
        try:
            if removed:
                self._purge()
            while removed:
                self._finish(removed[0])
                del removed[0]
        except StagingUnavailableError as error:
            for erasure in removed:
                _warn(erasure, error)

    def _erase(
        self,
        gateway: str,
        newest_hlc: Callable[[Commit], int],
        *,
        table: str | None = None,
        row_id: str | None = None,
        client_id: str | None = None,
    ) -> Erasure:
        """Record an erasure and execute it, or return an earlier one of the same row or client.

        Args:
            gateway: the gateway's id.
            newest_hlc: returns the newest hlc of the row's or client's deltas; raises NotFoundError without any.
                An earlier erasure with a higher hlc covers all of them, and is returned.
            table: the row's table; None for a client.
            row_id: the row's id; None for a client.
            client_id: the client's id; None for a row.
        """
        self._required_replayer()
        target = (table, row_id, client_id)

        def request(commit: Commit) -> Erasure:
            # The log loses the values next, so rows that were missing in a store after a crash could not be restored.
            # Clients that have such a row would not be sent its DELETE.
            commit.run_alone()
            latest = newest_hlc(commit)
            earlier = commit.erasures()
            for each in reversed(earlier):
                if (each.table, each.row_id, each.client_id) == target and (each.done_ms is None or latest <= each.hlc):
                    return each
            erasure = Erasure(
                gateway=gateway,
                seq=earlier[-1].seq + 1 if earlier else 1,
                table=table,
                row_id=row_id,
                client_id=client_id,
                hlc=max(start_of(self._now_ms()), latest + 1),  # above all of the target's deltas
                arrival=commit.arrival,
                requested_ms=self._now_ms(),
            )
            commit.put_erasure(erasure)
            return erasure

        requested = self.submit(gateway, request).result()
        crash_point("erasure.requested")
        with self._one_at_a_time:  # a call that was repeated after a timeout waits for the first one
            erasure = next(each for each in self.erasures(gateway) if each.seq == requested.seq)
            return erasure if erasure.done_ms is not None else self._execute(erasure)

    def _execute(self, erasure: Erasure) -> Erasure:
        """Run every step of an erasure, record that it is done, and return it.

        The steps are: remove the values from the log; delete the row, or the client's columns and record; purge the
        files. The log comes first, because rows that are lost in a crash are computed from it.

        Each step counts its deltas and rows in the commit that changes them, because a repeat after an interruption
        finds only the others.
        """
        self._remove(erasure)
        self._purge()
        crash_point("erasure.purged")
        return self._finish(erasure)

    def _remove(self, erasure: Erasure) -> None:
        """Run the steps of an erasure before the purge."""
        self._redact(erasure)
        crash_point("erasure.redacted")
        if erasure.client_id is None:

            def delete_row(commit: Commit) -> None:
                _count(commit, erasure, rows=delete_rows(commit, self._required_replayer(), erasure, [erasure.row]))

            self.submit(erasure.gateway, delete_row).result()
        else:
            self._remove_columns_of(erasure, erasure.client_id)
        crash_point("erasure.applied")

    def _finish(self, erasure: Erasure) -> Erasure:
        """Record that staging has executed an erasure, and return it."""

        def finish(commit: Commit) -> Erasure:
            stored = _stored(commit, erasure.seq)
            done = msgspec.structs.replace(stored, arrival=commit.arrival, done_ms=self._now_ms())
            commit.put_erasure(done)
            return done

        return self.submit(erasure.gateway, finish).result()

    def _redact(self, erasure: Erasure) -> None:
        """Remove the values of covered deltas from the log."""
        after: int | None = 0  # the log row after which to continue; None at the end of the log
        while after is not None:

            def redact_some(commit: Commit, start: int = after) -> int | None:
                end, redacted = commit.redact(start, _ROWS_PER_COMMIT, erasure.covers)
                _count(commit, erasure, deltas=redacted)
                return end

            after = self.submit(erasure.gateway, redact_some).result()

    def _remove_columns_of(self, erasure: Erasure, client_id: str) -> None:
        """Remove a client's columns from all rows, and its record."""
        replayer = self._required_replayer()
        after: RowKey | None = None  # the row after which to continue; None at first, and at the end
        more = True
        while more:

            def remove_some(commit: Commit, start: RowKey | None = after) -> RowKey | None:
                rows = [row.copy() for row in commit.scan_rows(start, _ROWS_PER_COMMIT)]
                _count(commit, erasure, rows=remove_columns(commit, replayer, erasure, client_id, rows))
                return rows[-1].key if rows else None

            after = self.submit(erasure.gateway, remove_some).result()
            more = after is not None

        def forget(commit: Commit) -> None:
            commit.forget_client(client_id)
            # the client may have an open WebSocket, over which it is sent broadcasts without a record
            commit.put_client(ClientRecord(client_id, epoch=LOST, last_seen_ms=0, gets_broadcasts=True))

        self.submit(erasure.gateway, forget).result()

    def _required_replayer(self) -> Replayer:
        """Return the store's replayer. Each method that erases calls it before its first step.

        Raises:
            ConfigurationError: the store was opened without an engine.
        """
        if self._replayer is None:
            raise ConfigurationError("this staging store was opened without an engine, so it cannot erase: pass one")
        return self._replayer


def _stored(commit: Commit, seq: int) -> Erasure:
    """Return the erasure with a sequence number; raises NotFoundError if no erasure has it."""
    erasure = next((each for each in commit.erasures() if each.seq == seq), None)
    if erasure is None:
        raise NotFoundError(f"gateway {commit.gateway!r} has no erasure {seq}")
    return erasure


def _warn(erasure: Erasure, error: StagingUnavailableError) -> None:
    """Log that an erasure could not be completed."""
    log.warning("erasure not completed", gateway=erasure.gateway, erasure=erasure.seq, reason=str(error))


def _count(commit: Commit, erasure: Erasure, *, deltas: int = 0, rows: int = 0) -> None:
    """Add deltas and rows to the counts of an erasure.

    Args:
        commit: the commit that redacts the deltas or changes the rows.
        erasure: the erasure.
        deltas: the number of deltas.
        rows: the number of rows.
    """
    if deltas or rows:
        stored = _stored(commit, erasure.seq)
        counts = {"deltas": stored.deltas + deltas, "row_count": stored.row_count + rows}
        commit.put_erasure(msgspec.structs.replace(stored, **counts))
