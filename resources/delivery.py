"""From what landed to a gateway: the deltas that follow, in chunks, at the gateway's pace."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehouse.spark_errors import lake_errors
from lakesync.crash import crash_point
from lakesync.exceptions import BackpressureError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import date

    import pyarrow as pa

    from lakehouse.landing.reading import LandedTables
    from lakesync.connectors.source import Table
    from resources.intake import Intake

_WAIT_SECONDS = 5.0


@dataclass(frozen=True)
class Pace:
    """How deltas go into a gateway."""

    chunk: int = 500
    """Deltas in one push."""
    budget_bytes: int = 16 << 20
    """Bytes of deltas held at once."""
    patience_s: float = 1_800.0
    """Seconds that the gateway may have it wait without taking anything."""


@dataclass
class Delivered:
    """What became of a table's landings."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    pushes: int = 0
    waited_s: float = 0.0
    """Seconds that the gateway had it wait."""

    @property
    def deltas(self) -> int:
        """All of them."""
        return self.inserted + self.updated + self.deleted


class Delivery:
    """One connector's deltas on their way into its gateway."""

    def __init__(
        self,
        landing: LandedTables,
        intake: Intake,
        gateway: str,
        request_flush: Callable[[], object],
        pace: Pace | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Args: request_flush: has the gateway's log carried to the lake, so that it takes more."""
        self._landing = landing
        self._intake = intake
        self._gateway = gateway
        self._request_flush = request_flush
        self._pace = pace or Pace()
        self._sleep = sleep

    @lake_errors
    def deliver(self, table: Table) -> Delivered:
        """Push what landed of a table since its mark, and move the mark. Cut short, it is made good by the next.

        Raises:
            BackpressureError: the gateway took nothing for as long as it is waited for.
            LakeUnavailableError: Spark is gone.
            LakeSyncError: the gateway refuses a delta.
        """
        done = Delivered()
        if self._landing.is_due(table.name):
            self._prepare(table)
        for deltas, page in self._landing.deltas(table.name, self._pace.budget_bytes):
            self._push(deltas, done)
            crash_point("delivery.pushed")
            self._landing.told(table.name, page)
            crash_point("delivery.noted")
        if done.pushes:
            self._landing.settle(table.name)
        return done

    @lake_errors
    def replay(self, table: Table, days: Sequence[date]) -> Delivered:
        """Push the deltas of landings of these days again, which changes nothing where the gateway has them.

        Raises:
            As `deliver`.
        """
        done = Delivered()
        self._prepare(table)
        for deltas in self._landing.history(table.name, days, self._pace.budget_bytes):
            self._push(deltas, done)
        return done

    def _prepare(self, table: Table) -> None:
        if (schema := table.schema()) is not None:
            self._intake.ensure_schema(self._gateway, schema)

    def _push(self, made: pa.Table, done: Delivered) -> None:
        for op, count in _counted(made):
            match op:
                case "INSERT":
                    done.inserted += count
                case "UPDATE":
                    done.updated += count
                case _:
                    done.deleted += count
        for body in self._bodies(made):
            done.waited_s += self._take(body)
            done.pushes += 1
            crash_point("delivery.chunk")

    def _bodies(self, made: pa.Table) -> Iterator[bytes]:
        head = b'{"clientId":"' + self._landing.client_id.encode() + b'","deltas":['
        for start in range(0, made.num_rows, self._pace.chunk):
            texts = made["delta"].slice(start, self._pace.chunk).to_pylist()
            yield head + ",".join(texts).encode() + b"]}"

    def _take(self, body: bytes) -> float:
        """Push, for as long as the gateway has it wait; the seconds that it did."""
        waited, asked = 0.0, 0.0
        while True:
            try:
                self._intake.push(self._gateway, body)
                return waited
            except BackpressureError as error:
                if waited >= self._pace.patience_s:
                    raise
                if waited >= asked:
                    self._request_flush()
                    asked = waited + 30.0
                pause = min(error.retry_after or _WAIT_SECONDS, _WAIT_SECONDS)
                self._sleep(pause)
                waited += pause


def _counted(made: pa.Table) -> list[tuple[str, int]]:
    return [(each["values"], each["counts"]) for each in made["op"].combine_chunks().value_counts().to_pylist()]
