"""One asset a flow: what reaches one place goes on to another, as far as its rows meet a filter."""

from typing import TYPE_CHECKING

import dagster as dg

from assets.backends import kind_of, source_keys
from assets.columns import followed_columns
from assets.labels import OWNERS
from assets.outcome import outcome
from assets.series import Told
from lakesync.adapters.places import leaves, place_of
from lakesync.adapters.uri import without_password
from lakesync.config import Config
from lakesync.config_places import LAKE, DeclaredFlow
from lakesync.hlc import wall_of
from lakesync.staging.store import PipelineStore
from resources.gateways import StagingResource
from resources.snapshot import registered
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakesync.adapters.flowing import Flowed
    from resources.flows import Flow, LakeFlow

GROUP = "flows"


def flows(config: Config) -> list[dg.AssetsDefinition]:
    """An asset for each flow.

    Raises:
        ConfigurationError: a flow reaches one adapter in two ways.
    """
    return [flow_asset(config, name, declared) for name, declared in config.flows.items()]


def flow_key(name: str) -> dg.AssetKey:
    """The asset of a flow."""
    return dg.AssetKey([GROUP, name])


def flow_asset(config: Config, name: str, declared: DeclaredFlow) -> dg.AssetsDefinition:
    """A flow, on its schedule; each leaf that it leads to has a mark of its own."""
    to_lake = declared.to == LAKE
    targets = [] if to_lake else leaves(place_of(config, declared.to), declared.tables)
    uris = [without_password(leaf.uri) for leaf in targets]

    @dg.asset(
        key=flow_key(name),
        deps=source_keys(config, declared.source),
        pool=f"lakesync_flow_{name}",
        description=_described(name, declared),
        group_name=GROUP,
        kinds={"spark", *(kind_of(leaf.uri) for leaf in targets)} | ({"lakesync"} if to_lake else set()),
        owners=OWNERS,
        metadata={"dagster/column_schema": followed_columns(), "dagster/uri": ", ".join(uris) or LAKE},
    )
    def flowed(
        context: dg.AssetExecutionContext, pyspark: SparkConnectResource, staging: StagingResource
    ) -> dg.MaterializeResult[None]:
        from resources.flows import flow, flow_to_lake

        with outcome(context, pyspark, retried=False):
            spark = pyspark.spark_session
            if to_lake:
                done = [flow_to_lake(spark, _lake_flow(config, name, declared))]
            else:
                done = flow(spark, works(config, staging.store, name, declared))
        return dg.MaterializeResult(metadata=_told(done))

    return flowed


def works(config: Config, store: PipelineStore, name: str, declared: DeclaredFlow) -> "list[Flow]":
    """A flow's part for each leaf that it leads to."""
    from lakesync.adapters.flowing import Sieve
    from resources.flows import Flow

    source = place_of(config, declared.source)
    schemas = registered(store).tables if declared.rows else ()
    found = []
    for leaf in leaves(place_of(config, declared.to), declared.tables):
        sieve = Sieve.of(declared.where, tables=leaf.tables, without=leaf.without, gateways=declared.gateways)
        wanted = tuple(
            schema
            for schema in schemas
            if schema.table not in sieve.without and (not sieve.tables or schema.table in sieve.tables)
        )
        found.append(Flow(f"flows/{name}/{leaf.name}", source, leaf, sieve, wanted))
    return found


def _lake_flow(config: Config, name: str, declared: DeclaredFlow) -> "LakeFlow":
    from lakesync.adapters.flowing import Sieve
    from resources.flows import LakeFlow

    sieve = Sieve.of(declared.where, tables=declared.tables, gateways=declared.gateways)
    source, progress = place_of(config, declared.source), config.data_dir / "flows" / f"{name}.json"
    return LakeFlow(source, sieve, declared.into, config, progress)


def _described(name: str, declared: DeclaredFlow) -> str:
    where = " and ".join(f"`{each.column}` {each.op} `{each.value}`" for each in declared.where)
    tables = ", ".join(f"`{table}`" for table in declared.tables) or "every table"
    return f"The flow `{name}`: {tables} of `{declared.source}` to `{declared.to}`" + (
        f", where {where}." if where else "."
    )


def _told(done: "list[Flowed]") -> Told:
    positions = [each.mark.position.value for each in done if each.mark.position is not None]
    told: Told = {
        "looked_at": sum(each.looked_at for each in done),
        "deltas_in": sum(each.deltas for each in done),
        "dagster/row_count": max((each.mark.deltas for each in done), default=0),
    }
    if positions:
        told["mark"] = dg.MetadataValue.timestamp(wall_of(min(positions)) / 1000)
    return told
