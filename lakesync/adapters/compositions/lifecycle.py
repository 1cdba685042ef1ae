"""`LifecycleAdapter`: a hot tier for recent deltas and a cold tier for old ones, read as one adapter.

Each tier is an adapter, such as a database and an object store. `migrate_to_tier` moves a page of deltas in three
steps: copy it, read it back, delete it from the hot tier. Readers query the hot tier first: a delta that was deleted
there is already in the cold tier. So reads are complete while deltas move. `backend_config` creates it for `[tiers]`,
and the pipeline calls `move_range`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from lakesync.adapters.arrow_access import PAGE_DELTAS, copy_page, delete_arrow, read_arrow, read_contents, write_arrow
from lakesync.adapters.base import DatabaseAdapter, StateWriter
from lakesync.adapters.compositions.composite import CompositeBase
from lakesync.adapters.deltas import BatchChecksum, DeltaBatch, DeltaQuery
from lakesync.adapters.row_content import RowContent, RowId
from lakesync.model import hlc
from lakesync.model.crash_points import crash_point
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa


_GREATEST_HLC = hlc.encode(hlc.MAX_WALL_MS, hlc.MAX_COUNTER)


class TierReport(msgspec.Struct, frozen=True):
    """What was moved to the cold tier."""

    deltas: int
    id_sum: int
    """Sum of the ids of these deltas, as in `BatchChecksum`."""
    pages: int
    until: int
    """The hlc up to which deltas were moved, inclusive."""


class LifecycleAdapter(CompositeBase):
    """`DatabaseAdapter` and `StateWriter` that writes a hot tier and reads both tiers."""

    def __init__(
        self,
        hot: DatabaseAdapter,
        cold: DatabaseAdapter,
        max_age_ms: int,
        wall: Callable[[], int] = hlc.wall_clock,
    ) -> None:
        """Store the tiers.

        Args:
            hot: `Prunable`; receives all writes.
            cold: receives what `migrate_to_tier` moves.
            max_age_ms: age by hlc above which `migrate_to_tier` moves a delta.
            wall: the clock, in milliseconds since 1970.
        """
        super().__init__((hot, cold))
        self.hot = hot
        self.cold = cold
        self._max_age_ms = max_age_ms
        self._wall = wall

    def insert_deltas(self, batch: DeltaBatch) -> BatchChecksum:
        """Insert a batch into the hot tier, however old its deltas are; the next move finds them."""
        return self.hot.insert_deltas(batch)

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> BatchChecksum:
        """Do the same as `insert_deltas`, from an Arrow table."""
        return write_arrow(self.hot, batch_id, gateway, deltas)

    def ensure_schema(self, schema: TableSchema) -> None:
        """Create the destination table in the hot tier; nothing if that tier has no destination tables."""
        if isinstance(self.hot, StateWriter):
            self.hot.ensure_schema(schema)

    def materialise(self, gateway: str, schema: TableSchema, row_ids: Sequence[str]) -> int:
        """Rewrite rows in the hot tier's table from the deltas of both tiers."""
        rows = [(gateway, row_id) for row_id in row_ids]
        return self.write_states(schema, lambda: read_contents(self, schema.table, rows))

    def write_states(self, schema: TableSchema, read: Callable[[], Mapping[RowId, RowContent]]) -> int:
        """Write rows in the hot tier; returns 0 if that tier does not accept row states."""
        return self.hot.write_states(schema, read) if isinstance(self.hot, StateWriter) else 0

    def migrate_to_tier(self, until_ms: int | None = None) -> TierReport:
        """Move deltas from the hot tier to the cold one, page by page. Can be killed and repeated at any point.

        Args:
            until_ms: move deltas up to this time, milliseconds since 1970. The default is now minus the maximum age.

        Raises:
            AdapterError: a tier cannot be reached; completed pages stay moved.
            IntegrityError: the cold tier did not store a page as it was written; nothing of that page was deleted.
            ConfigurationError: the hot tier does not support deleting deltas.
        """
        until = hlc.encode(until_ms if until_ms is not None else self._wall() - self._max_age_ms, hlc.MAX_COUNTER)
        return self.move_range(-1, until)

    def move_range(self, since: int, until: int | None) -> TierReport:
        """Move the deltas of a range of hlcs, as `migrate_to_tier` does.

        Args:
            since: exclusive lower bound.
            until: inclusive upper bound; None for no bound.

        Raises:
            AdapterError, IntegrityError, ConfigurationError: as `migrate_to_tier`.
        """
        query = DeltaQuery(order="hlc", since=since, until=until, limit=PAGE_DELTAS)
        count, total, pages = 0, 0, 0
        while len(deltas := read_arrow(self.hot, query).deltas):
            copied = copy_page(self.cold, "tier", deltas)
            crash_point("tier.after_copy")
            delete_arrow(self.hot, deltas)
            crash_point("tier.after_delete")
            count, total, pages = count + copied.deltas, total + copied.id_sum, pages + 1
        return TierReport(count, total % 2**64, pages, _GREATEST_HLC if until is None else until)
