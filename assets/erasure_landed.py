"""Steps of an erasure: for what connectors brought, one for each connector, and one for each table's past."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from assets.failure_policy import failure_policy
from assets.ingest import GROUP as INGEST
from assets.ingest import pool_of
from lakehouse.schema_snapshot import PolledConnector, SchemaSnapshot
from lakesync.staging.store import PipelineStore
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakesync.staging.records import Erasure

Due = Callable[[PipelineStore], "dict[str, list[Erasure]]"]
"""Gateway → what is to be erased now."""


ERASE = "erase"
"""The name of the graph, and how the names of its steps begin: assets' own steps and jobs have other names."""


def erasing_op(path: Sequence[str], pool: str, description: str) -> Callable[[Callable[..., None]], dg.OpDefinition]:
    """Make a function a step of the erasure.

    Args:
        path: what it clears, as the key of an asset.
        pool: of the writer that it stands in for.
        description: what is left when it has ended.
    """
    return dg.op(
        name=dg.AssetKey([ERASE, *path]).to_python_identifier(),
        ins={"after": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        pool=pool,
        description=description,
    )


def cleared_landings(snapshot: SchemaSnapshot, due: Due) -> tuple[list[dg.OpDefinition], list[dg.OpDefinition]]:
    """The steps of connectors, in the pools in which these poll, and those of the tables' past, which come after.

    Args:
        snapshot: names the connectors.
        due: what is to be erased.
    """
    steps = [_of_connector(each, due) for each in snapshot.connectors]
    return steps, [_past(table, due) for table in ("landing", "known") if steps]


def _of_connector(connector: PolledConnector, due: Due) -> dg.OpDefinition:
    gateway, name = connector.gateway, connector.name
    pool = pool_of(gateway, name)

    # by the pool's name: names that differ in a sign alone would be one step to Dagster
    @erasing_op((INGEST, pool), pool, f"What `{name}` brought to gateway `{gateway}`, without erased rows.")
    def cleared(
        context: dg.OpExecutionContext, pyspark: SparkConnectResource, lake: LakeResource, staging: StagingResource
    ) -> None:
        from lakehouse.erasure.landed import erase_landed

        with failure_policy(context, pyspark):
            mine = {gateway: due(staging.store).get(gateway, [])}
            done = erase_landed(pyspark.spark_session, mine, lake.names, name)
        context.add_output_metadata({"landed": done.landed, "known": done.known})

    return cleared


def _past(table: str, due: Due) -> dg.OpDefinition:
    @erasing_op(
        (INGEST, table), f"lakesync_{table}", f"The table `{table}` without the snapshots in which erased rows are."
    )
    def cleared(
        context: dg.OpExecutionContext, pyspark: SparkConnectResource, lake: LakeResource, staging: StagingResource
    ) -> None:
        from lakehouse.erasure.landed import erase_landed, forget_landed
        from lakehouse.landing.tables import known_name, landing_name

        with failure_policy(context, pyspark):
            spark, requests, names = pyspark.spark_session, due(staging.store), lake.names
            forgotten = False
            if requests:
                erase_landed(spark, requests, names)  # of connectors that are no longer declared, too
                name = landing_name(names) if table == "landing" else known_name(names)
                forgotten = forget_landed(spark, name, names)
        context.add_output_metadata({"past_forgotten": forgotten})

    return cleared
