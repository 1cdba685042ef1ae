"""The head of a gateway in one shard (a store for some tables): its counters, and how each kind of commit changes them.

The commits and pipelines of both stores (SQLite and Postgres) use it, so that sequence numbers, arrivals and backlog
are computed in one place. `HeadView` is a base class of their reads and commits: what these read from the head.

A *gateway* is one app's stream of changes. An *arrival* is its own timestamp of a commit: a hybrid logical clock (HLC),
whose high bits are the wall time in milliseconds. The *log* has one row for each push, numbered by `seq`. The pipeline
*flushes* log rows to the lake, confirms them after reading them back, and *trims* the log: deletes the *bodies* of log
rows, their encoded deltas (changes of rows).

The *sync rules* decide which rows a client may see, the *write scope* which it may push to. A *checkpoint* has all rows
as of one arrival, for new clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from lakesync.model.hlc import start_of
from lakesync.staging.records import ARRIVAL_STEP, Batch, GatewayConfig, LogEntry

MAIN_SHARD = "main"
"""The only shard of a gateway whose tables are not sharded."""


class Head(msgspec.Struct, frozen=True):
    """A gateway's counters in one shard. Every commit stores them, so that no counter needs a scan of the log."""

    gateway: str
    """The gateway's id."""
    epoch: int
    """Wall time in milliseconds when the gateway was created in its store; a rebuild from the lake creates it again."""
    config: GatewayConfig
    """The gateway's schemas, sync rules and write scope."""
    arrival: int = 0
    """The highest arrival of a commit; 0 before the first. A re-index takes arrivals too, without a log row."""
    shard: str = MAIN_SHARD
    """The shard's name."""
    last_seq: int = 0
    """Number of the newest log row; 0 before the first."""
    last_arrival: int = 0
    """Arrival of the newest log row; 0 before the first."""
    flushed_seq: int = 0
    """`seq` up to which all log rows are in the lake: it was read back and contains them."""
    trimmed_seq: int = 0
    """`seq` up to which the encoded deltas of log rows were deleted."""
    deltas: int = 0
    """Number of deltas in log rows above `flushed_seq`."""
    bytes: int = 0
    """Stored bytes of the encoded deltas in log rows above `flushed_seq`."""
    flush_requested_ms: int | None = None
    """Server wall time in milliseconds since 1970 of the first request for a flush that is not done; None without one.
    """
    flush_requested_seq: int = 0
    """`last_seq` when a flush was last requested."""

    def next_arrivals(self, count: int, wall_ms: int) -> tuple[Head, range]:
        """Return the head after `count` new arrivals, and those arrivals, which are above all earlier ones.

        Args:
            count: the number of arrivals.
            wall_ms: the server's wall time in milliseconds since 1970.
        """
        if count == 0:
            return self, range(0)
        first = max(self.arrival + ARRIVAL_STEP, start_of(wall_ms))
        arrivals = range(first, first + count * ARRIVAL_STEP, ARRIVAL_STEP)
        return msgspec.structs.replace(self, arrival=arrivals[-1]), arrivals

    def appended(self, arrival: int, deltas: int, size: int) -> Head:
        """Return the head after a push was added to the log with `seq = last_seq + 1`.

        Args:
            arrival: the push's arrival.
            deltas: number of its deltas.
            size: stored bytes of its body.
        """
        return msgspec.structs.replace(
            self,
            last_seq=self.last_seq + 1,
            last_arrival=arrival,
            arrival=max(self.arrival, arrival),
            deltas=self.deltas + deltas,
            bytes=self.bytes + size,
        )

    @property
    def counters(self) -> tuple[int | None, ...]:
        """The fields from `last_seq` on: the columns of table `shard`, which begins with gateway and shard."""
        return msgspec.structs.astuple(self)[self.__struct_fields__.index("last_seq") :]

    def restored(self, entry: LogEntry) -> Head:
        """Return the head after a rebuild added a log row that is in the lake already and has no body."""
        return msgspec.structs.replace(
            self,
            last_seq=entry.seq,
            last_arrival=entry.arrival,
            flushed_seq=entry.seq,
            trimmed_seq=entry.seq,
            arrival=max(self.arrival, entry.arrival),
        )

    def confirmed(self, batch: Batch) -> Head:
        """Return the head after a batch (the log rows that one flush copies) was read back from the lake.

        A requested flush is done once the batches contain everything that was unflushed at the request.
        """
        # whether no request is left: none was made, or this batch reaches what was the newest log row then
        served = self.flush_requested_ms is None or batch.to_seq >= self.flush_requested_seq
        return msgspec.structs.replace(
            self,
            flushed_seq=batch.to_seq,
            deltas=self.deltas - batch.deltas,
            bytes=self.bytes - batch.bytes,
            flush_requested_ms=None if served else self.flush_requested_ms,
        )

    def flush_requested(self, wall_ms: int) -> Head:
        """Return the head after a flush was requested.

        It is unchanged if nothing is unflushed. An earlier request that is not done yet is joined to this one: both are
        done together.

        Args:
            wall_ms: the server's wall time in milliseconds since 1970.
        """
        if self.last_seq == self.flushed_seq:
            return self
        requested_ms = wall_ms if self.flush_requested_ms is None else self.flush_requested_ms
        return msgspec.structs.replace(self, flush_requested_ms=requested_ms, flush_requested_seq=self.last_seq)


class HeadView(ABC):
    """The part of a `View` that reads the head; each store adds rows, entries and clients."""

    @property
    @abstractmethod
    def _head(self) -> Head:
        """The current head of the view's gateway."""

    @property
    def gateway(self) -> str:
        """The gateway's id."""
        return self._head.gateway

    @property
    def shard(self) -> str:
        """The name of the store's shard."""
        return self._head.shard

    @property
    def epoch(self) -> int:
        """The gateway's epoch in the store; see `Head.epoch`."""
        return self._head.epoch

    @property
    def arrival(self) -> int:
        """The newest arrival; see `GatewayView.arrival`."""
        return self._head.arrival

    @property
    def config(self) -> GatewayConfig:
        """The active schemas and rules."""
        return self._head.config

    @property
    def backlog_bytes(self) -> int:
        """Stored bytes of bodies that the lake has not confirmed."""
        return self._head.bytes
