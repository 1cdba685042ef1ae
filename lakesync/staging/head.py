"""The head of one gateway's stream, and what each kind of commit makes of it: the arithmetic both stores share."""

from __future__ import annotations

import msgspec

from lakesync.model.hlc import start_of
from lakesync.staging.records import ARRIVAL_STEP, Backlog, Batch, GatewayConfig, LogEntry

MAIN_SHARD = "main"
"""The one shard of a gateway whose tables are not sharded."""


class Head(msgspec.Struct, frozen=True):
    """How far a gateway is. Written with every commit, so that nothing here is ever computed by a scan."""

    gateway: str
    epoch: int
    config: GatewayConfig
    arrival: int = 0
    """The highest arrival handed out in a commit that happened; 0 before the first."""
    shard: str = MAIN_SHARD
    last_seq: int = 0
    last_arrival: int = 0
    """Arrival of the newest log row."""
    flushed_seq: int = 0
    """The lake was read and holds everything up to here."""
    trimmed_seq: int = 0
    """Bodies up to here are gone."""
    deltas: int = 0
    """Deltas above `flushed_seq`."""
    bytes: int = 0
    """Stored bytes of bodies above `flushed_seq`."""
    flush_requested_ms: int | None = None
    flush_requested_seq: int = 0
    """`last_seq` when the flush was asked for."""

    def next_arrivals(self, count: int, wall_ms: int) -> tuple[Head, range]:
        """The next `count` arrivals: never below one handed out before, whatever the clock says.

        Args:
            wall_ms: the server's clock in milliseconds.
        """
        if count == 0:
            return self, range(0)
        first = max(self.arrival + ARRIVAL_STEP, start_of(wall_ms))
        arrivals = range(first, first + count * ARRIVAL_STEP, ARRIVAL_STEP)
        return msgspec.structs.replace(self, arrival=arrivals[-1]), arrivals

    def appended(self, arrival: int, deltas: int, size: int) -> Head:
        """After a log row of `deltas` deltas and a body of `size` bytes was added with `seq = last_seq + 1`."""
        return msgspec.structs.replace(
            self,
            last_seq=self.last_seq + 1,
            last_arrival=arrival,
            arrival=max(self.arrival, arrival),
            deltas=self.deltas + deltas,
            bytes=self.bytes + size,
        )

    @property
    def progress(self) -> tuple[int | None, ...]:
        """How far its shard is, in the order of the columns of table `shard`, from `last_seq` on."""
        return (
            self.last_seq,
            self.last_arrival,
            self.flushed_seq,
            self.trimmed_seq,
            self.deltas,
            self.bytes,
            self.flush_requested_ms,
            self.flush_requested_seq,
        )

    def restored(self, entry: LogEntry) -> Head:
        """After a log row was added that is in the lake, and without a body."""
        return msgspec.structs.replace(
            self,
            last_seq=entry.seq,
            last_arrival=entry.arrival,
            flushed_seq=entry.seq,
            trimmed_seq=entry.seq,
            arrival=max(self.arrival, entry.arrival),
        )

    def confirmed(self, batch: Batch) -> Head:
        """After `batch` was read back from the lake; serves a flush that was asked for up to its end."""
        served = self.flush_requested_ms is None or batch.to_seq >= self.flush_requested_seq
        return msgspec.structs.replace(
            self,
            flushed_seq=batch.to_seq,
            deltas=self.deltas - batch.deltas,
            bytes=self.bytes - batch.bytes,
            flush_requested_ms=None if served else self.flush_requested_ms,
        )

    def flush_requested(self, wall_ms: int) -> Head:
        """After a flush was asked for; where nothing waits there is nothing to serve."""
        if self.last_seq == self.flushed_seq or self.flush_requested_ms is not None:
            return self
        return msgspec.structs.replace(self, flush_requested_ms=wall_ms, flush_requested_seq=self.last_seq)

    def backlog(
        self,
        oldest_ms: int | None,
        flushed_ms: int | None = None,
        flushed_snapshot: int | None = None,
        uncut_rules: int | None = None,
        cut_arrival: int | None = None,
    ) -> Backlog:
        """What waits.

        Args:
            oldest_ms: the server's wall time of log row `flushed_seq + 1`.
            flushed_ms: that at which the batch up to `flushed_seq` was confirmed.
            flushed_snapshot: the lake's, in which it was read.
            uncut_rules: as `planning.uncut_rules` tells it.
            cut_arrival: of the newest published cut.
        """
        return Backlog(
            gateway=self.gateway,
            shard=self.shard,
            epoch=self.epoch,
            flushed_seq=self.flushed_seq,
            last_seq=self.last_seq,
            last_arrival=self.last_arrival,
            deltas=self.deltas,
            bytes=self.bytes,
            oldest_ms=oldest_ms,
            flush_requested_ms=self.flush_requested_ms,
            flushed_ms=flushed_ms,
            flushed_snapshot=flushed_snapshot,
            uncut_rules=uncut_rules,
            cut_arrival=cut_arrival,
        )


def new_config() -> GatewayConfig:
    """The configuration of a gateway that was told nothing yet."""
    return GatewayConfig(version=0, schemas={}, rules=None, rules_version=0)
