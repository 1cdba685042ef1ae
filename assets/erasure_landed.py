"""Erasure of what connectors brought: one step for each connector, and one for each table's past."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import dagster as dg

from assets.ingest import GROUP as INGEST
from assets.ingest import pool_of
from assets.labels import OWNERS
from assets.outcome import outcome
from lakesync.staging.store import PipelineStore
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.snapshot import PolledConnector, SchemaSnapshot
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakesync.staging.records import Erasure

Due = Callable[[PipelineStore], "dict[str, list[Erasure]]"]
"""Gateway → what is to be erased now."""


def cleared_landings(snapshot: SchemaSnapshot, group: str, after: dg.AssetKey, due: Due) -> list[dg.AssetsDefinition]:
    """The steps, where a connector is polled; they hold the pools in which connectors poll.

    Args:
        snapshot: names the connectors.
        group: of the steps.
        after: the step that redacts the lake's history.
        due: what is to be erased.
    """
    steps = [_of_connector(each, group, after, due) for each in snapshot.connectors]
    keys = [step.key for step in steps]
    return [*steps, *(_past(table, group, keys, due) for table in ("landing", "known") if keys)]


def _of_connector(connector: PolledConnector, group: str, after: dg.AssetKey, due: Due) -> dg.AssetsDefinition:
    gateway, name = connector.gateway, connector.name

    @dg.asset(
        # by the pool's name: names that differ in a sign alone would be one step to Dagster
        key=dg.AssetKey([group, INGEST, pool_of(gateway, name)]),
        deps=[after],
        pool=pool_of(gateway, name),
        description=f"What `{name}` brought to gateway `{gateway}`, without erased rows.",
        group_name=group,
        kinds={"spark", "iceberg", connector.type},
        owners=OWNERS,
    )
    def cleared(
        context: dg.AssetExecutionContext, pyspark: SparkConnectResource, lake: LakeResource, staging: StagingResource
    ) -> dg.MaterializeResult[None]:
        from lakehouse.landing.erasure import erase_landed

        with outcome(context, pyspark):
            mine = {gateway: due(staging.store).get(gateway, [])}
            done = erase_landed(pyspark.spark_session, mine, lake.names, name)
        return dg.MaterializeResult(metadata={"landed": done.landed, "known": done.known})

    return cleared


def _past(table: str, group: str, after: list[dg.AssetKey], due: Due) -> dg.AssetsDefinition:
    @dg.asset(
        key=dg.AssetKey([group, INGEST, table]),
        deps=after,
        pool=f"lakesync_{table}",
        description=f"The table `{table}` without the snapshots in which erased rows are.",
        group_name=group,
        kinds={"spark", "iceberg"},
        owners=OWNERS,
    )
    def cleared(
        context: dg.AssetExecutionContext, pyspark: SparkConnectResource, lake: LakeResource, staging: StagingResource
    ) -> dg.MaterializeResult[None]:
        from lakehouse.landing.erasure import erase_landed, forget_landed
        from lakehouse.landing.tables import known_name, landing_name

        with outcome(context, pyspark):
            spark, requests, names = pyspark.spark_session, due(staging.store), lake.names
            forgotten = False
            if requests:
                erase_landed(spark, requests, names)  # of connectors that are no longer declared, too
                name = landing_name(names) if table == "landing" else known_name(names)
                forgotten = forget_landed(spark, name, names)
        return dg.MaterializeResult(metadata={"past_forgotten": forgotten})

    return cleared
