"""Creates an asset for each flow, which copies deltas whose rows meet a filter from one backend to another.

A backend consists of adapters, each of which stores deltas at a database or an object store. A step is what a flow
reports of each page that it copies. `lakehouse.backends.flows` does the work. `lakesync_dagster.definitions` calls this
module.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg
import msgspec

from assets.asset_metadata import (
    MOVE_SENSOR,
    OWNERS,
    arrivals_of,
    days_of,
    followed_columns,
    is_requested_by,
    nearest_key,
)
from assets.external import kind_of, source_keys
from assets.failure_policy import failure_policy
from assets.run_metrics import Metadata
from lakehouse.backends.declared import flow_tasks, lake_flow_task
from lakehouse.marks import move_mark
from lakesync.adapters.backend_config import resolve_backend, write_targets
from lakesync.config import Config
from lakesync.config.backends import LAKE, DeclaredFlow
from lakesync.model.hlc import wall_of
from lakesync.model.secrets import without_password
from resources.gateways import StagingResource
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakesync.adapters.transfer.flows import FlowStep

GROUP = "flows"


def flows(config: Config, days: dg.PartitionsDefinition) -> list[dg.AssetsDefinition]:
    """Create an asset for each flow.

    Args:
        config: the project's configuration, which declares the flows.
        days: partitions by UTC day of arrival.

    Raises:
        ConfigurationError: a flow reaches one adapter in two ways.
    """
    return [flow_asset(config, name, declared, days) for name, declared in config.flows.items()]


def flow_key(name: str) -> dg.AssetKey:
    """Return the asset of a flow."""
    return dg.AssetKey([GROUP, name])


def flow_asset(config: Config, name: str, declared: DeclaredFlow, days: dg.PartitionsDefinition) -> dg.AssetsDefinition:
    """Create the asset of a flow. Each adapter that it writes to has its own mark.

    A run that the sensor requests copies new deltas. Any other run copies new deltas up to the end of its days, and
    then copies the deltas that reached the source on these days again.

    Args:
        config: the project's configuration, which declares the backends.
        name: the flow's name.
        declared: the flow's declaration.
        days: partitions by UTC day of arrival.
    """
    to_lake = declared.to == LAKE
    targets = [] if to_lake else write_targets(resolve_backend(config, declared.to), declared.tables)
    uris = [without_password(target.uri) for target in targets]

    @dg.asset(
        key=flow_key(name),
        deps=source_keys(config, declared.source),
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=f"lakesync_flow_{name}",
        description=_description(name, declared),
        group_name=GROUP,
        kinds={"spark", *(kind_of(target.uri) for target in targets)} | ({"lakesync"} if to_lake else set()),
        owners=OWNERS,
        metadata={"dagster/column_schema": followed_columns(), "dagster/uri": ", ".join(uris) or LAKE},
    )
    def flowed(
        context: dg.AssetExecutionContext, pyspark: SparkConnectResource, staging: StagingResource
    ) -> dg.MaterializeResult[None]:
        from lakehouse.backends.flows import flow, flow_to_lake

        requested_by_sensor = is_requested_by(MOVE_SENSOR, context)
        replayed = None if requested_by_sensor else arrivals_of(days_of(context))
        with failure_policy(context, pyspark, retried=False):
            spark, begun_ms = pyspark.spark_session, staging.now_ms()
            if to_lake:
                by_target = [flow_to_lake(spark, lake_flow_task(config, name, declared)._replace(again=replayed))]
            else:
                tasks = flow_tasks(config, staging.store, name, declared)
                by_target = flow(spark, [msgspec.structs.replace(task, again=replayed) for task in tasks])
            _report_by_day(context, [page for pages in by_target for page in pages], is_replay=replayed is not None)
            if requested_by_sensor:
                staging.store.put_mark(move_mark(GROUP, name), str(begun_ms))
        return dg.MaterializeResult(metadata=_metadata(by_target))

    return flowed


def _description(name: str, declared: DeclaredFlow) -> str:
    """Return the description of a flow's asset, with its tables and filter."""
    where = " and ".join(f"`{each.column}` {each.op} `{each.value}`" for each in declared.where)
    tables = ", ".join(f"`{table}`" for table in declared.tables) or "every table"
    return f"The flow `{name}`: {tables} of `{declared.source}` to `{declared.to}`" + (
        f", where {where}." if where else "."
    )


def _report_by_day(context: dg.AssetExecutionContext, pages: "Sequence[FlowStep]", *, is_replay: bool) -> None:
    """Add to each partition the number of its day's deltas that were copied.

    Deltas of days outside the run count for the nearest partition.
    """
    keys = context.partition_keys
    for key in keys:
        none: Metadata = {"deltas_in": 0, "deltas_replayed": 0} if is_replay else {"deltas_in": 0}
        context.add_asset_metadata({**none, **_on_day(pages, key, keys)}, partition_key=key)


def _on_day(pages: "Sequence[FlowStep]", key: str, keys: Sequence[str]) -> dict[str, int]:
    """Return the numbers of new and of replayed deltas that count for the partition `key`."""
    found: dict[str, int] = {}
    for page in pages:
        name = "deltas_replayed" if page.is_replay else "deltas_in"
        mine = sum(deltas for day, deltas in page.days.items() if nearest_key(day, keys) == key)
        found[name] = found.get(name, 0) + mine
    return found


def _metadata(by_target: "Sequence[Sequence[FlowStep]]") -> Metadata:
    """Return the run's metadata. The mark is that of the adapter that is least far."""
    pages = [page for pages in by_target for page in pages]
    new = [page for page in pages if not page.is_replay]
    positions = [at.value for pages in by_target if pages and (at := pages[-1].mark.position) is not None]
    metadata: Metadata = {
        "scanned": sum(page.scanned for page in pages),
        "deltas_in": sum(page.deltas for page in new),
        "dagster/row_count": max((page.mark.deltas for page in pages), default=0),
    }
    if len(new) < len(pages):
        metadata["deltas_replayed"] = sum(page.deltas for page in pages) - sum(page.deltas for page in new)
    if positions:
        metadata["mark"] = dg.MetadataValue.timestamp(wall_of(min(positions)) / 1000)
    return metadata
