"""Erasure where deltas went or came from: an executor opens a backend and takes from it what requests cover."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from lakehouse.backends.adapter_tasks import on_executors, open_backends
from lakehouse.erasure.conditions import deltas_of
from lakehouse.spark_errors import lake_errors
from lakesync.adapters.backend_config import Backend, SingleBackend, single_backends
from lakesync.adapters.redaction import RedactionRequest, TouchedRow, require_redactable
from lakesync.adapters.transfer.flows import FilteredContents, RowFilter
from lakesync.adapters.transfer.follower import ColdTierContents
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from lakehouse.table_definitions import LakeNames
    from lakesync.staging.records import Erasure


class ErasedThere(msgspec.Struct, frozen=True):
    """What was taken from backends."""

    deltas: int = 0
    """That said something until now."""
    rows: int = 0
    """Rows of tables of rows that were made again."""


class Erasing(msgspec.Struct, frozen=True):
    """A backend that is to lose what requests cover, with the cold tiers behind it first."""

    backend: SingleBackend
    requests: tuple[RedactionRequest, ...]
    schemas: tuple[TableSchema, ...] = ()
    """Of the tables of rows that are kept there."""
    cold: tuple[Backend, ...] = ()
    """Where older deltas of its rows may be."""
    row_filter: RowFilter | None = None
    """Of the flow that leads there: what of its rows is shown."""

    def run(self) -> Iterator[ErasedThere]:
        """Erase there."""
        deltas, touched = 0, set[TouchedRow]()
        with ExitStack() as closing:
            for cold in (each for place in self.cold for each in single_backends(place)):
                (adapter,) = open_backends([cold], closing)
                done = require_redactable(adapter, cold.name).redact(self.requests)
                deltas += done.deltas
                touched.update(done.touched)
            older = ColdTierContents(open_backends(self.cold, closing))
            transform = older if self.row_filter is None else FilteredContents(self.row_filter, older)
            (adapter,) = open_backends([self.backend], closing)
            done = require_redactable(adapter, self.backend.name).redact(
                self.requests, self.schemas, transform, touched
            )
        yield ErasedThere(deltas + done.deltas, done.rows)


def erase_there(spark: SparkSession, works: Sequence[Erasing]) -> ErasedThere:
    """Erase at several backends, each in a task of its own, and return what they lost together.

    Args:
        spark: a session.
        works: one for each backend.

    Raises:
        AdapterError: one cannot be reached; a repeat is safe.
        ConfigurationError: an adapter cannot erase.
        LakeUnavailableError: Spark is gone.
    """
    done = [each for told in on_executors(spark, works, ErasedThere) for each in told] if works else []
    return ErasedThere(sum(each.deltas for each in done), sum(each.rows for each in done))


@lake_errors
def redactions(
    spark: SparkSession, requests: Mapping[str, Sequence[Erasure]], names: LakeNames
) -> tuple[RedactionRequest, ...]:
    """Requests by gateway as backends are told of them.

    A request that covers some shards alone covers the tables of which those have deltas: backends know no shards.

    Args:
        spark: a session.
        requests: by gateway.
        names: the lake's names.

    Raises:
        LakeUnavailableError: Spark is gone.
    """
    found = []
    for each in (one for mine in requests.values() for one in mine):
        tables: tuple[str, ...] = ()
        if each.client_id is not None and each.shards:
            rows = deltas_of([each]).select(spark, names.deltas, "table_name").distinct().collect()
            tables = tuple(sorted(row["table_name"] for row in rows))
            if not tables:
                continue
        found.append(RedactionRequest(each.gateway, each.hlc, each.table, each.row_id, each.client_id, tables))
    return tuple(found)
