"""Two tiers by age: what is young in one adapter, what is old in another, read as one.

A delta is copied, read back, and only then removed from the hot tier. A reader asks the hot tier first: what it misses
there had been removed, so it was in the cold one before, and is found there. So reads stay whole while days move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from lakesync.adapters.base import DatabaseAdapter, DeltaBatch, DeltaQuery, Held, StateWriter
from lakesync.adapters.contents import RowContent, RowId
from lakesync.adapters.moving import PAGE, copy_page
from lakesync.adapters.several import Several, delete_arrow, read_arrow, read_contents, write_arrow
from lakesync.model import hlc
from lakesync.model.crash_points import crash_point
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa


_LAST = hlc.encode(hlc.MAX_WALL_MS, hlc.MAX_COUNTER)


class TierReport(msgspec.Struct, frozen=True):
    """What went to the cold tier."""

    deltas: int
    id_sum: int
    pages: int
    until: int
    """The hlc up to which the hot tier was emptied."""


class LifecycleAdapter(Several):
    """`DatabaseAdapter` and `StateWriter` over a hot tier, which is written, and a cold one."""

    def __init__(
        self,
        hot: DatabaseAdapter,
        cold: DatabaseAdapter,
        max_age_ms: int,
        wall: Callable[[], int] = hlc.wall_clock,
    ) -> None:
        """Args: hot: `Prunable`; max_age_ms: by a delta's hlc, above which `migrate_to_tier` moves it."""
        super().__init__((hot, cold))
        self.hot = hot
        self.cold = cold
        self._max_age_ms = max_age_ms
        self._wall = wall

    def insert_deltas(self, batch: DeltaBatch) -> Held:
        """Keep a batch in the hot tier, however old its deltas are: the next move finds them."""
        return self.hot.insert_deltas(batch)

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> Held:
        """Keep a batch in the hot tier."""
        return write_arrow(self.hot, batch_id, gateway, deltas)

    def ensure_schema(self, schema: TableSchema) -> None:
        """At the hot tier, where it keeps tables."""
        if isinstance(self.hot, StateWriter):
            self.hot.ensure_schema(schema)

    def materialise(self, gateway: str, schema: TableSchema, row_ids: Sequence[str]) -> int:
        """Bring the hot tier's table in line with the deltas of both tiers."""
        rows = [(gateway, row_id) for row_id in row_ids]
        return self.write_states(schema, lambda: read_contents(self, schema.table, rows))

    def write_states(self, schema: TableSchema, read: Callable[[], Mapping[RowId, RowContent]]) -> int:
        """At the hot tier, where it keeps tables."""
        return self.hot.write_states(schema, read) if isinstance(self.hot, StateWriter) else 0

    def migrate_to_tier(self, until_ms: int | None = None) -> TierReport:
        """Move deltas from the hot tier to the cold one, page by page; may be killed, and begun again, at any point.

        Args:
            until_ms: those up to this instant; unless given, those older than the tier's greatest age.

        Raises:
            AdapterError: a tier cannot be reached; what was moved is moved.
            IntegrityError: the cold tier does not hold what it was given; nothing of that page was removed.
            ConfigurationError: the hot tier cannot let go of deltas.
        """
        until = hlc.encode(until_ms if until_ms is not None else self._wall() - self._max_age_ms, hlc.MAX_COUNTER)
        return self.move_range(-1, until)

    def move_range(self, since: int, until: int | None) -> TierReport:
        """Move the deltas of a range of hlc, as `migrate_to_tier`.

        Args:
            since: the hlc above which deltas move.
            until: the last hlc that moves; None: however young.

        Raises:
            AdapterError, IntegrityError, ConfigurationError: as `migrate_to_tier`.
        """
        query = DeltaQuery(order="hlc", since=since, until=until, limit=PAGE)
        count, total, pages = 0, 0, 0
        while len(deltas := read_arrow(self.hot, query).deltas):
            held = copy_page(self.cold, "tier", deltas)
            crash_point("tier.after_copy")
            delete_arrow(self.hot, deltas)
            crash_point("tier.after_delete")
            count, total, pages = count + held.deltas, total + held.id_sum, pages + 1
        return TierReport(count, total % 2**64, pages, _LAST if until is None else until)
