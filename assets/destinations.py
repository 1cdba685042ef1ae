"""One asset a leaf of a destination: a backend that follows `deltas` with a mark of its own."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import dagster as dg
import msgspec

from assets.asset_metadata import (
    AUDIT,
    DELTAS,
    DESTINATION_SENSOR,
    OWNERS,
    arrivals_of,
    audit_mark,
    check_step,
    days_of,
    is_requested_by,
    leaf_key,
    leaf_pool,
    nearest_key,
)
from assets.backends import kind_of
from assets.columns import followed_columns
from assets.failure_policy import brief, failure_policy
from assets.run_metrics import Metadata, content_version, freshness_metadata
from lakehouse.schema_snapshot import registered
from lakesync.adapters.backend_config import WriteTarget, resolve_backend, write_targets
from lakesync.adapters.uri import without_password
from lakesync.analysis.marks import Follower, FollowerMark, Visit, destination_state
from lakesync.config import Config
from lakesync.config.backends import DeclaredDestination
from lakesync.model.errors import LakeSyncError
from lakesync.model.hlc import wall_clock, wall_of
from lakesync.staging.store import PipelineStore
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.run_state import RunState
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakehouse.backends import destinations as moving
    from lakehouse.backends.comparison import Comparison

EQUALS_LAKE = "equals_lake"
"""The check of a leaf."""
_TOLD_AT_MOST = 20


class Follow(dg.Config):
    """What a run of a destination does."""

    rebuild: bool = False
    """Also write the chosen days again from the lake: missing, altered and surplus deltas and rows."""


def mark_name(name: str, leaf: WriteTarget) -> str:
    """Return the name of a leaf's mark, at the destination and in staging.

    Args:
        name: of the destination.
        leaf: where it leads.
    """
    return f"destinations/{name}/{leaf.name}"


def followers(config: Config, store: PipelineStore, wall: Callable[[], int] = wall_clock) -> list[Follower]:
    """Return how far each leaf is, as its latest run reported to staging.

    A leaf that never ran, or that follows another choice of tables than before, has nothing.

    A leaf that continues without a table is behind by its newest push once the table's retry is due.

    Args:
        config: with the destinations.
        store: the staging store.
        wall: milliseconds since 1970.
    """
    marks = store.marks()
    found = []
    for name, declared, leaf in all_leaves(config):
        text = marks.get(mark_name(name, leaf))
        mark = msgspec.json.decode(text, type=FollowerMark) if text is not None else None
        is_of_choice = mark is not None and mark.choice == chosen(leaf, declared)
        streams = mark.streams if mark is not None and is_of_choice else {}
        if mark is not None and mark.retry_ms is not None and mark.retry_ms <= wall():
            streams = {stream: arrival - 1 for stream, arrival in streams.items()}
        found.append(Follower(mark_name(name, leaf), streams, frozenset(declared.gateways)))
    return found


def chosen(leaf: WriteTarget, declared: DeclaredDestination) -> str:
    """Return what a leaf follows, as text: a mark of another text says nothing.

    Args:
        leaf: the leaf.
        declared: its destination.
    """
    parts = [sorted(leaf.tables), sorted(leaf.without), sorted(declared.gateways)]
    return msgspec.json.encode(parts).decode()


def all_leaves(config: Config) -> Iterator[tuple[str, DeclaredDestination, WriteTarget]]:
    """Every leaf of every destination, with the destination's name.

    Raises:
        ConfigurationError: a destination reaches one adapter in two ways.
    """
    for name, declared in config.destinations.items():
        for leaf in write_targets(resolve_backend(config, declared.to), declared.tables):
            yield name, declared, leaf


def destinations(config: Config, days: dg.PartitionsDefinition) -> list[dg.AssetsDefinition]:
    """Create an asset for each leaf of each destination.

    Args:
        config: declares the destinations.
        days: UTC days of arrival.

    Raises:
        ConfigurationError: a destination reaches one adapter in two ways.
    """
    return [destination(name, declared, leaf, days) for name, declared, leaf in all_leaves(config)]


def destination(
    name: str, declared: DeclaredDestination, leaf: WriteTarget, days: dg.PartitionsDefinition
) -> dg.AssetsDefinition:
    """Create the asset of a leaf that takes what it lacks, in transactions of its own. A failure delays no other leaf.

    A run of the sensor takes everything that the leaf lacks. Any other run takes what it lacks up to the end of its
    days. A step is not retried within its run: the sensor requests another run, after a pause that grows.

    Args:
        name: of the destination.
        declared: the destination.
        leaf: where it leads.
        days: UTC days of arrival.
    """
    told_tables = f"The tables {', '.join(f'`{table}`' for table in leaf.tables)}" if leaf.tables else "Every table"
    if leaf.without:
        told_tables += f" but {', '.join(f'`{table}`' for table in leaf.without)}"

    @dg.asset(
        key=leaf_key(name, leaf.name),
        deps=[DELTAS],
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=leaf_pool(name, leaf.name),
        description=f"{told_tables} of the history at `{leaf.name}`, each delta once, for the destination `{name}`.",
        group_name="destinations",
        kinds={"spark", kind_of(leaf.uri)},
        owners=OWNERS,
        metadata={"dagster/column_schema": followed_columns(), "dagster/uri": without_password(leaf.uri)},
    )
    def followed(
        context: dg.AssetExecutionContext,
        config: Follow,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> dg.MaterializeResult[None]:
        from lakehouse.backends.comparison import rebuild
        from lakehouse.backends.destinations import follow

        is_asked_by_sensor = is_requested_by(DESTINATION_SENSOR, context)
        through_day = None if is_asked_by_sensor else arrivals_of(days_of(context))[1]
        with failure_policy(context, pyspark, retried=False):
            settled = run_state.settled_ms()
            one = follower(staging.store, name, declared, leaf)
            found = follow(pyspark.spark_session, one, lake.names, through_day)
            _report_by_day(context, found)
            if config.rebuild:
                for day, deltas in rebuild(pyspark.spark_session, one, days_of(context), lake.names).items():
                    context.add_asset_metadata({"deltas_rewritten": deltas}, partition_key=day.isoformat())
            retry_ms = min((each.retry_ms for each in found.set_aside), default=None)
            mark = FollowerMark(
                chosen(leaf, declared),
                found.progress.streams,
                staging.now_ms(),
                retry_ms,
                tuple(each.table for each in found.set_aside),
                found.dead_letters,
            )
            staging.store.put_mark(mark_name(name, leaf), msgspec.json.encode(mark).decode())
            metadata = {
                **_metadata(found),
                **freshness_metadata(settled, staging.now_ms()),
                "dagster/uri": without_password(leaf.uri),
            }
        at = found.progress
        return dg.MaterializeResult(
            metadata=metadata, data_version=content_version([at.selection, at.deltas, str(at.id_sum)])
        )

    return followed


def equal_lake(config: Config) -> list[dg.AssetChecksDefinition]:
    """For each leaf: it holds what the lake holds up to its mark."""
    return [_equals_lake(name, declared, leaf) for name, declared, leaf in all_leaves(config)]


def _equals_lake(name: str, declared: DeclaredDestination, leaf: WriteTarget) -> dg.AssetChecksDefinition:
    key = leaf_key(name, leaf.name)
    description = (
        "Compares, by table and day, what the destination holds with the lake up to the destination's mark: counts and "
        "checksums of deltas and of rows, and the cells of rows with what was written."
    )
    spec = dg.AssetCheckSpec(EQUALS_LAKE, asset=key, description=description)

    @dg.multi_asset_check(name=check_step(key, EQUALS_LAKE), specs=[spec])
    def check(
        context: dg.AssetCheckExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
    ) -> Iterator[dg.AssetCheckResult]:
        from lakehouse.backends.comparison import DestinationMovedError, compare

        with failure_policy(context, pyspark, retried=False):
            one = follower(staging.store, name, declared, leaf)
            visit = Visit(destination_state(staging.store.marks().get(mark_name(name, leaf))), staging.now_ms())
            try:
                found = compare(pyspark.spark_session, one, lake.names)
                if context.run.job_name == AUDIT and found.holds:
                    mark = msgspec.json.encode(visit).decode()
                    staging.store.put_mark(audit_mark(leaf_key(name, leaf.name)), mark)
            except DestinationMovedError as error:
                yield dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description=str(error))
                return
            except LakeSyncError:
                raise
            except Exception as error:  # such as a file of the lake that is gone
                context.log.exception("the destination cannot be compared")
                yield dg.AssetCheckResult(passed=False, description=f"It could not be compared: {brief(error)}")
                return
        yield _compared(found)

    return check


def _compared(found: "Comparison") -> dg.AssetCheckResult:
    """The check's result: the days that differ, and what to do."""
    said = [str(each) for each in found.differences[:_TOLD_AT_MOST]]
    days = sorted({each.day for each in found.differences})
    if days:
        said.append(f"Rebuild the days {', '.join(days[:_TOLD_AT_MOST])}: materialise them with `rebuild: true`")
    said += [f"Table {each.table} is set aside: {each.reason}" for each in found.set_aside]
    metadata: Metadata = {
        "deltas_there": found.deltas_there,
        "deltas_in_lake": found.deltas_in_lake,
        "rows_there": found.rows_there,
        "rows_in_lake": found.rows_in_lake,
        "dead_letters": found.dead_letters,
        "days": dg.MetadataValue.json(days),
    }
    return dg.AssetCheckResult(passed=found.holds, description=". ".join(said) or None, metadata=metadata)


def follower(store: PipelineStore, name: str, declared: DeclaredDestination, leaf: WriteTarget) -> "moving.Follower":
    """Return a leaf as the value that a Spark task gets.

    Args:
        store: the staging store, which has the schemas.
        name: of the destination.
        declared: the destination.
        leaf: where it leads.
    """
    from lakehouse.backends.destinations import Follower as Task
    from lakehouse.backends.destinations import choice_of

    choice = choice_of(leaf, declared.gateways)
    wanted = registered(store).of(choice.tables, choice.without) if declared.rows else ()
    return Task(mark_name(name, leaf), leaf, choice, wanted)


def _report_by_day(context: dg.AssetExecutionContext, found: "moving.Followed") -> None:
    """Add to each partition how many deltas of its day were taken; the first has those of earlier days too."""
    keys = context.partition_keys
    taken = dict.fromkeys(keys, 0)
    for day, deltas in found.days.items():
        taken[nearest_key(day, keys)] += deltas
    for key, deltas in taken.items():
        context.add_asset_metadata({"deltas_in": deltas}, partition_key=key)


def _metadata(found: "moving.Followed") -> Metadata:
    at = found.progress
    marks = {stream: str(arrival) for stream, arrival in sorted(at.streams.items())}
    asides = {each.table: f"{each.reason} ({each.failures} attempts)" for each in found.set_aside}
    return {
        "set_aside": dg.MetadataValue.json(asides),
        "deltas_in": found.deltas,
        "transactions": found.parts,
        "dagster/row_count": at.deltas,
        "tables_of_rows": ", ".join(sorted(at.row_columns)),
        "marks": dg.MetadataValue.json(marks),
        "mark": dg.MetadataValue.timestamp(wall_of(max(at.streams.values(), default=0)) / 1000),
    }
