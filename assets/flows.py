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
from resources.pipeline import Pipeline
from resources.snapshot import registered

if TYPE_CHECKING:
    from lakesync.adapters.flowing import Flowed
    from resources.flows import Flow

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
    def flowed(context: dg.AssetExecutionContext, pipeline: dg.ResourceParam[Pipeline]) -> dg.MaterializeResult[None]:
        with outcome(context, pipeline, retried=False):
            done = _to_lake(pipeline, name, declared) if to_lake else _to_places(pipeline, name, declared)
        return dg.MaterializeResult(metadata=_told(done))

    return flowed


def works(pipeline: Pipeline, name: str, declared: DeclaredFlow) -> "list[Flow]":
    """A flow's part for each leaf that it leads to."""
    from lakesync.adapters.flowing import Sieve
    from resources.flows import Flow

    source = place_of(pipeline.config, declared.source)
    schemas = registered(pipeline.store).tables if declared.rows else ()
    found = []
    for leaf in leaves(place_of(pipeline.config, declared.to), declared.tables):
        sieve = Sieve.of(declared.where, tables=leaf.tables, without=leaf.without, gateways=declared.gateways)
        wanted = tuple(
            schema
            for schema in schemas
            if schema.table not in sieve.without and (not sieve.tables or schema.table in sieve.tables)
        )
        found.append(Flow(f"flows/{name}/{leaf.name}", source, leaf, sieve, wanted))
    return found


def _to_places(pipeline: Pipeline, name: str, declared: DeclaredFlow) -> "list[Flowed]":
    from resources.flows import flow

    return flow(pipeline.spark, works(pipeline, name, declared))


def _to_lake(pipeline: Pipeline, name: str, declared: DeclaredFlow) -> "list[Flowed]":
    from lakesync.adapters.flowing import Sieve
    from resources.flows import LakeFlow, flow_to_lake

    config = pipeline.config
    sieve = Sieve.of(declared.where, tables=declared.tables, gateways=declared.gateways)
    source, progress = place_of(config, declared.source), config.data_dir / "flows" / f"{name}.json"
    return [flow_to_lake(pipeline.spark, LakeFlow(source, sieve, declared.into, config, progress))]


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
