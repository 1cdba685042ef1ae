"""Compares destinations with the lake, by table and day.

A destination is a database or object store that receives the lake's deltas (changes of rows) through an *adapter*, and
may merge them into destination tables. A destination's *cold tiers* are backends to which its old deltas are moved. Its
*follower* reads the lake's history (the table `deltas`) and writes to the destination. The follower's *selection* is
the tables and gateways that it copies; a gateway is one app's stream of deltas. The destination's *mark* is the arrival
(the gateway's timestamp) of the newest delta that it has of each stream, `GATEWAY/SHARD`: a gateway's deltas in one
staging store. `FollowerProgress` is the mark with the selection.

The comparison uses *digests*: counts and checksums of deltas and rows, by table and day. A Spark task asks the
destination for its digests, and a Spark query computes those of the lake up to the destination's mark. Only digests
reach the driver. The checks of destinations (`assets.destinations`) call `compare`. `lakehouse.backends.day_rebuild`,
which mends differences, calls `scope_of` and `received_deltas`.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace
from pyspark.sql import functions as sf

from lakehouse.backends.adapter_tasks import one_report_each, open_backends
from lakehouse.spark_errors import lake_errors
from lakehouse.table_creation import ensure_deltas
from lakehouse.table_definitions import NAMES, LakeNames
from lakesync.adapters.backend_config import single_backends
from lakesync.adapters.base import StateWriter, SuspendedTable, SuspendsTables
from lakesync.adapters.digests import (
    ARRIVAL_MODULUS,
    ARRIVALS_PER_DAY,
    Difference,
    Digest,
    Digestible,
    DigestScope,
    diff_digests,
)
from lakesync.adapters.transfer.follower import FollowerProgress, read_follower_progress
from lakesync.model.errors import ConfigurationError, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakehouse.backends.destinations import Follower
    from lakesync.adapters.base import DatabaseAdapter
    from lakesync.model.schema import TableSchema

_ATTEMPTS = 5
"""Attempts to compute digests while the destination receives no deltas."""
_CHECKSUM = "cast(conv(substr(md5({}), 1, 8), 16, 10) as bigint)"
"""A 32-bit checksum of a text, in Spark's SQL. Adapters compute the same one in their own SQL."""
_COLUMNS_AS_JSON = (
    "concat('{', array_join(transform(map_entries(columns), e -> concat('\"', e.key, '\":', e.value)), ','), '}')"
)
"""A delta's columns as JSON text, in Spark's SQL. Their names are identifiers, which need no escapes."""


class DestinationBusyError(TransientError):
    """Deltas reached or left a destination during each attempt to compute its digests, so they cannot be compared."""


class Comparison(msgspec.Struct, frozen=True):
    """The result of comparing a destination with the lake."""

    progress: FollowerProgress
    """The destination's mark. Destination and lake were compared up to it."""
    deltas_there: int
    """Number of deltas at the destination."""
    deltas_in_lake: int
    """Number of deltas that the destination must have."""
    rows_there: int
    """Number of rows in destination tables."""
    rows_in_lake: int
    """Number of rows that destination tables must have by the lake's history."""
    differences: list[Difference]
    suspended: list[SuspendedTable]
    """Suspended destination tables: they could not be written, and get no rows until a retry succeeds. The pauses
    between retries grow."""
    dead_letters: int
    """Number of dead letters (values that the destination rejected); 1,000 are counted at most."""

    @property
    def is_equal(self) -> bool:
        """Whether the destination has what the lake has. Suspended tables count as differences, dead letters do not."""
        return not self.differences and not self.suspended


class DestinationDigests(msgspec.Struct, frozen=True):
    """The digests of a destination, and its mark when they were computed."""

    progress: FollowerProgress
    """The destination's mark."""
    digests: list[Digest]
    tables: tuple[str, ...]
    """Names of its destination tables."""
    suspended: list[SuspendedTable] = []
    """Suspended destination tables, as in `Comparison`."""
    dead_letters: int = 0
    """Number of dead letters, as in `Comparison`."""
    is_consistent: bool = True
    """Whether the mark and the number of deltas were the same before and after. Otherwise the digests cannot be
    compared with the lake's. A process that was killed while it moved deltas to a cold tier has left them in both
    places. They are counted twice, and are a difference, until the move is repeated."""


class DigestTask(NamedTuple):
    """The Spark task that has a destination and its cold tiers compute their digests."""

    follower: Follower

    def run(self) -> Iterator[DestinationDigests]:
        """Compute the digests, again if deltas reached or left the destination meanwhile. Yield one result.

        Raises:
            AdapterError: an adapter cannot be read.
            ConfigurationError: an adapter does not support digests.
        """
        follower, target = self.follower, self.follower.target
        with ExitStack() as closing:
            adapter = follower.open()
            closing.callback(adapter.close)
            cold = open_backends(target.cold, closing)
            schemas = follower.schemas if isinstance(adapter, StateWriter) else ()
            scope = scope_of(follower, schemas)
            for _ in range(_ATTEMPTS):
                progress = read_follower_progress(adapter, follower.name, follower.selection)
                digests = _digests(adapter, scope, target.name)
                before = sum(each.deltas for each in digests)
                of_deltas = replace(scope, schemas=())  # cold tiers have no destination tables
                for tier, backend in zip(cold, target.cold, strict=True):
                    digests += _digests(tier, of_deltas, ", ".join(each.name for each in single_backends(backend)))
                # Deltas that moved to a cold tier after the first count are in both counts. The second count of the
                # hot tier lacks them.
                after = before
                if cold:
                    after = sum(each.deltas for each in _digests(adapter, of_deltas, target.name))
                is_unmoved = read_follower_progress(adapter, follower.name, follower.selection) == progress
                is_consistent = is_unmoved and after == before
                if is_consistent:
                    break
            suspended = adapter.suspended_tables(follower.name) if isinstance(adapter, SuspendsTables) else []
            dead_letters = follower.dead_letters(adapter).total()
            yield DestinationDigests(
                progress, digests, tuple(each.table for each in schemas), suspended, dead_letters, is_consistent
            )


def scope_of(follower: Follower, schemas: Sequence[TableSchema], days: Sequence[int] = ()) -> DigestScope:
    """Return the scope of a comparison: the tables, gateways and days that an adapter computes digests of.

    Args:
        follower: the destination's follower.
        schemas: schemas of its destination tables; empty if it has only deltas.
        days: UTC days of arrival, as days since 1970; empty for all.
    """
    selection = follower.selection
    return DigestScope(selection.tables, selection.without, selection.gateways, tuple(schemas), tuple(days))


def compare(spark: SparkSession, follower: Follower, names: LakeNames = NAMES) -> Comparison:
    """Compare a destination with the lake, up to the destination's mark.

    Args:
        spark: an open Spark session.
        follower: the destination's follower.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        AdapterError: the destination cannot be read.
        ConfigurationError: its adapter does not support digests.
        DestinationBusyError: deltas reached or left it during each attempt.
        LakeUnavailableError: Spark cannot be reached.
    """
    (destination,) = one_report_each(spark, [DigestTask(follower)], DestinationDigests)
    if not destination.is_consistent:
        raise DestinationBusyError(
            f"deltas reached or left {follower.target.name} during each of {_ATTEMPTS} attempts to compute its "
            "digests; compare it again when it is up to date"
        )
    schemas = [each for each in follower.schemas if each.table in destination.tables]
    lake = lake_digests(spark, destination.progress, {each.table: each.soft_delete for each in schemas}, names)
    return Comparison(
        destination.progress,
        sum(each.deltas for each in destination.digests),
        sum(each.deltas for each in lake),
        sum(each.rows for each in destination.digests),
        sum(each.rows for each in lake),
        diff_digests(lake, destination.digests),
        destination.suspended,
        destination.dead_letters,
    )


@lake_errors
def lake_digests(
    spark: SparkSession,
    reached: FollowerProgress,
    tables: Mapping[str, bool],
    names: LakeNames,
) -> list[Digest]:
    """Return the digests that a destination must have, by the lake's history up to the destination's mark.

    Args:
        spark: an open Spark session.
        reached: the destination's mark, with its selection.
        tables: destination table → whether deleted rows stay in it (soft delete).
        names: catalogue and namespaces of the lake's tables.
    """
    if not reached.streams:  # the destination has received nothing
        return []
    ensure_deltas(spark, names)
    deltas = received_deltas(spark, reached, names)
    digests = [
        Digest(row["table_name"], row["day"], deltas=row["count"], delta_sum=row["total"])
        for row in _with_day(deltas)
        .withColumn("checksum", sf.expr(_CHECKSUM.format(f"concat_ws('|', delta_id, op, {_COLUMNS_AS_JSON})")))
        .groupBy("table_name", "day")
        .agg(sf.count("*").alias("count"), sf.sum("checksum").alias("total"))
        .collect()
    ]
    return [*digests, *_lake_rows(deltas.where(sf.col("table_name").isin(*tables)), tables)] if tables else digests


def received_deltas(spark: SparkSession, reached: FollowerProgress, names: LakeNames) -> DataFrame:
    """Return the deltas of the history that a destination must have, by its mark.

    Args:
        spark: an open Spark session.
        reached: the destination's mark, with its selection.
        names: catalogue and namespaces of the lake's tables.
    """
    rows, selection = spark.table(names.deltas), reached.selection
    if selection.tables:
        rows = rows.where(sf.col("table_name").isin(*selection.tables))
    if selection.without:
        rows = rows.where(~sf.col("table_name").isin(*selection.without))
    if selection.gateways:
        rows = rows.where(sf.col("gateway").isin(*selection.gateways))
    streams_and_arrivals = [sf.lit(part) for pair in reached.streams.items() for part in pair]
    if not streams_and_arrivals:
        return rows.where("false")
    # null for a stream of which the destination has nothing
    last = sf.create_map(*streams_and_arrivals)[sf.concat_ws("/", "gateway", "shard")]
    return rows.where(sf.col("arrival") <= last)


def _lake_rows(deltas: DataFrame, tables: Mapping[str, bool]) -> list[Digest]:
    """Return the digests of the rows that the deltas merge to.

    Digests of rows contain no values, so only visibility is computed: a row is visible if the newest stamp (the
    client's timestamp, hlc, and its id) of its writes is greater than that of its deletes, as in each merge (rule M2 of
    `docs/spec.md`).

    Args:
        deltas: the deltas of destination tables.
        tables: destination table → whether deleted rows stay in it.
    """
    soft = [table for table, is_soft in tables.items() if is_soft]
    stamp = "struct(hlc, client_id)"
    writes = f"CASE WHEN op = 'INSERT' OR (op = 'UPDATE' AND size(columns) > 0) THEN {stamp} END"
    rows = deltas.groupBy("gateway", "table_name", "row_id").agg(
        sf.max("arrival").alias("arrival"),
        sf.max(sf.expr(writes)).alias("written"),
        sf.max(sf.expr(f"CASE WHEN op = 'DELETE' THEN {stamp} END")).alias("tombstone"),
    )
    rows = rows.withColumn("visible", sf.expr("written IS NOT NULL AND (tombstone IS NULL OR written > tombstone)"))
    is_stored = sf.col("visible")
    if soft:
        is_stored = is_stored | (sf.col("written").isNotNull() & sf.col("table_name").isin(*soft))
    summed = (
        _with_day(rows.where(is_stored))
        .withColumn("checksum", sf.expr(_CHECKSUM.format("concat(gateway, '/', row_id)")))
        .groupBy("table_name", "day")
        .agg(
            sf.count("*").alias("rows"),
            sf.sum(sf.expr("CASE WHEN visible THEN 0 ELSE 1 END")).alias("deleted"),
            sf.sum("checksum").alias("row_sum"),
            # modulo, as adapters do: a sum of whole arrivals could exceed 64 bits
            sf.sum(sf.expr(f"arrival % {ARRIVAL_MODULUS}")).alias("arrival_sum"),
        )
    )
    return [
        Digest(
            row["table_name"],
            row["day"],
            rows=row["rows"],
            deleted=row["deleted"],
            row_sum=row["row_sum"],
            arrival_sum=row["arrival_sum"],
        )
        for row in summed.collect()
    ]


def _digests(adapter: DatabaseAdapter, scope: DigestScope, name: str) -> list[Digest]:
    """Return an adapter's digests; raise ConfigurationError with its name if it does not support them."""
    if not isinstance(adapter, Digestible):
        raise ConfigurationError(
            f"the adapter {name!r} ({type(adapter).__name__}) does not support digests: give it the method `digests`"
        )
    return list(adapter.digests(scope))


def _with_day(rows: DataFrame) -> DataFrame:
    """Add the column `day`: the UTC day of the arrival, as days since 1970."""
    return rows.withColumn("day", sf.expr(f"cast(arrival div {ARRIVALS_PER_DAY} as int)"))
