"""What the data pipeline reads and writes in `log.db`: batches, ledger, checkpoints and marks.

`SqliteStore` calls these methods in its owner thread. `PipelineTables` has the statements, which the Postgres store
shares; `staging.store.pipeline` says what each method promises, and defines further terms. A *batch* is a range of the
log that is flushed to the lake. The *ledger* counts deltas by day. A *checkpoint* is a copy of all rows for new
clients. A *mark* says how far a part of the pipeline is.
"""

from __future__ import annotations

from typing import Any

from lakesync.staging.head import Head
from lakesync.staging.pipeline_tables import PipelineTables
from lakesync.staging.sqlite.journal import Journal


class Pipeline(PipelineTables):
    """Batches, ledger, checkpoints and marks in `log.db`. Only the thread that owns the store calls its methods."""

    def __init__(self, journal: Journal) -> None:
        """Use the store's journal, `log.db`, which is open."""
        self._journal = journal

    def writing(self) -> Pipeline:
        """Prepare the file for a method that writes, and return this object; see `Journal.prepare_sql`."""
        self._journal.prepare_sql()
        return self

    def _query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._journal.sql.execute(statement, values).fetchall()

    def gateways(self) -> list[str]:
        """Return the ids of all gateways, sorted; the journal has all heads in memory."""
        return sorted(self._journal.heads)

    def _head(self, gateway: str) -> Head:
        return self._journal.head(gateway)

    def _set_head(self, head: Head) -> None:
        self._journal.set_head(head)

    def _now_ms(self) -> int:
        return self._journal.wall()
