"""Carries out erasure requests in backends, the databases and object stores to which the lake's deltas were copied.

A request covers the data of one row or one client of a gateway, an app's stream of deltas (changes of rows). A *flow*
copies deltas between backends. A Spark task opens each backend and removes the contents of covered deltas; the empty
deltas stay, so that their number still agrees with the lake's. Old deltas may have been moved from a backend to others,
its *cold tiers*. A *destination table* has rows that a backend merges from its deltas. `lakehouse.backends.declared`
finds the backends, and the steps of the asset `erasure` call this module.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from lakehouse.backends.adapter_tasks import one_report_each, open_backends
from lakehouse.erasure.coverage import deltas_of
from lakehouse.spark_errors import lake_errors
from lakesync.adapters.backend_config import Backend, SingleBackend, single_backends
from lakesync.adapters.composite import cold_tier_contents
from lakesync.adapters.redaction import RedactionRequest, RowRemover, TouchedRow, require_redactable
from lakesync.adapters.transfer.flow_pages import RowFilter
from lakesync.adapters.transfer.flows import filtered_contents
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from lakehouse.table_definitions import LakeNames
    from lakesync.staging.records import Erasure


class ErasedCounts(msgspec.Struct, frozen=True):
    """How much was erased in backends."""

    deltas: int = 0
    """Deltas whose contents were removed."""
    rows: int = 0
    """Rows of destination tables that were recomputed without the erased values, or deleted."""


class UnwrittenTables(msgspec.Struct, frozen=True):
    """The destination tables of a backend that nothing writes: a schema was retired, or a declaration was changed."""

    written: tuple[str, ...]
    """The names of the synced tables that destinations and flows write there, and of their destination tables."""
    renamed: dict[str, str]
    """Synced table → the name of its destination table, if it has another one (`sourceTable`)."""

    def rows_of(self, rows: Iterable[TouchedRow]) -> list[TouchedRow]:
        """Return the rows that are in such tables, each as `(gateway, destination table, row id)`.

        Args:
            rows: rows as `(gateway, synced table, row id)`.
        """
        named = [
            (gateway, name, row_id)
            for gateway, table, row_id in rows
            for name in {table, self.renamed.get(table, table)}
        ]
        return [row for row in named if row[1] not in self.written]


class BackendErasure(msgspec.Struct, frozen=True):
    """The Spark task that erases at one backend, and before that at the cold tiers behind it."""

    backend: SingleBackend
    requests: tuple[RedactionRequest, ...]
    """What to erase."""
    schemas: tuple[TableSchema, ...] = ()
    """Schemas of the backend's destination tables, which have rows merged from deltas."""
    cold: tuple[Backend, ...] = ()
    """Cold tiers that may have older deltas of the backend's rows."""
    row_filter: RowFilter | None = None
    """The filter of the flow that writes to the backend; None if no flow does."""
    unwritten: UnwrittenTables | None = None
    """Tables of which rows with erased values are deleted, because nothing writes these rows again. None to leave them:
    another erasure of the backend deletes them."""

    def run(self) -> Iterator[ErasedCounts]:
        """Erase in the cold tiers, then in the backend, and yield one report."""
        deltas = removed = 0
        touched: set[TouchedRow] = set()  # rows with erased deltas in a cold tier; the backend recomputes them
        with ExitStack() as closing:
            for cold in (each for tier in self.cold for each in single_backends(tier)):
                (adapter,) = open_backends([cold], closing)
                redacted = require_redactable(adapter, cold.name).redact(self.requests)
                deltas += redacted.deltas
                touched.update(redacted.touched)
            # completes the rows that the backend recomputes: with older deltas of cold tiers, and by the flow's filter
            older = cold_tier_contents(open_backends(self.cold, closing))
            transform = older if self.row_filter is None else filtered_contents(self.row_filter, older)
            (adapter,) = open_backends([self.backend], closing)
            redacted = require_redactable(adapter, self.backend.name).redact(
                self.requests, self.schemas, transform, touched
            )
            if self.unwritten is not None and isinstance(adapter, RowRemover):
                removed = adapter.remove_rows(self.unwritten.rows_of({*touched, *redacted.touched}))
        yield ErasedCounts(deltas + redacted.deltas, redacted.rows + removed)


def erase_in_backends(spark: SparkSession, erasures: Sequence[BackendErasure]) -> ErasedCounts:
    """Erase in several backends, each in a task of its own, and return what was erased in all.

    Args:
        spark: an open Spark session.
        erasures: one for each backend.

    Raises:
        AdapterError: one cannot be reached; a repeat is safe.
        ConfigurationError: an adapter cannot erase.
        LakeUnavailableError: Spark cannot be reached.
    """
    if not erasures:
        return ErasedCounts()
    counts = one_report_each(spark, erasures, ErasedCounts)
    return ErasedCounts(sum(each.deltas for each in counts), sum(each.rows for each in counts))


@lake_errors
def redactions(
    spark: SparkSession, requests: Mapping[str, Sequence[Erasure]], names: LakeNames
) -> tuple[RedactionRequest, ...]:
    """Convert erasure requests of staging to the form that adapters take.

    Adapters do not know shards. So an erasure of a client in some shards (staging stores that each have some tables)
    becomes one for the tables in which the client has deltas there.

    Args:
        spark: an open Spark session.
        requests: gateway → its requests.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    converted = []
    for each in chain.from_iterable(requests.values()):
        tables: tuple[str, ...] = ()  # all
        if each.client_id is not None and each.shards:
            rows = deltas_of([each]).select(spark, names.deltas, "table_name").distinct().collect()
            tables = tuple(sorted(row["table_name"] for row in rows))
            if not tables:  # nothing to erase; without tables the request would cover all of them
                continue
        converted.append(RedactionRequest(each.gateway, each.hlc, each.table, each.row_id, each.client_id, tables))
    return tuple(converted)
