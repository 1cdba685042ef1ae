"""One asset a leaf of a destination: a backend that follows `deltas` with a mark of its own."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg

from assets.backends import kind_of
from assets.columns import followed_columns
from assets.labels import DELTAS, OWNERS, leaf_key
from assets.outcome import outcome
from assets.series import Told, content_version, newest, through, version_of
from lakesync.adapters.places import Leaf, leaves, place_of
from lakesync.adapters.uri import without_password
from lakesync.config import Config
from lakesync.config_places import DeclaredDestination
from lakesync.hlc import wall_of
from lakesync.staging.store import PipelineStore
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.run_state import RunState
from resources.snapshot import registered
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from resources.destinations import Followed, Follower

FOLLOWED = "deltas_version"
"""Metadata: the data version of `deltas` that a leaf has followed."""


def all_leaves(config: Config) -> Iterator[tuple[str, DeclaredDestination, Leaf]]:
    """Every leaf of every destination, with the destination's name.

    Raises:
        ConfigurationError: a destination reaches one adapter in two ways.
    """
    for name, declared in config.destinations.items():
        for leaf in leaves(place_of(config, declared.to), declared.tables):
            yield name, declared, leaf


def destinations(config: Config) -> list[dg.AssetsDefinition]:
    """An asset for each leaf of each destination."""
    return [destination(name, declared, leaf) for name, declared, leaf in all_leaves(config)]


def destination(name: str, declared: DeclaredDestination, leaf: Leaf) -> dg.AssetsDefinition:
    """A leaf that takes what it lacks, in transactions of its own; a failure holds nobody else up.

    It is not tried again within its run: the sensor asks again, after a pause that grows.
    """
    told_tables = f"The tables {', '.join(f'`{table}`' for table in leaf.tables)}" if leaf.tables else "Every table"
    if leaf.without:
        told_tables += f" but {', '.join(f'`{table}`' for table in leaf.without)}"

    @dg.asset(
        key=leaf_key(name, leaf.name),
        deps=[DELTAS],
        pool=f"lakesync_destination_{name}_{leaf.name}",
        description=f"{told_tables} of the history at `{leaf.name}`, each delta once, for the destination `{name}`.",
        group_name="destinations",
        kinds={"spark", kind_of(leaf.uri)},
        owners=OWNERS,
        metadata={"dagster/column_schema": followed_columns(), "dagster/uri": without_password(leaf.uri)},
    )
    def followed(
        context: dg.AssetExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> dg.MaterializeResult[None]:
        from resources.destinations import follow

        version = version_of(newest(context.instance, DELTAS))
        with outcome(context, pyspark, retried=False):
            settled = run_state.settled_ms()
            found = follow(pyspark.spark_session, follower(staging.store, name, declared, leaf), lake.names)
            told = {**_told(found), **through(settled, staging.now_ms()), "dagster/uri": without_password(leaf.uri)}
        if version is not None:
            told[FOLLOWED] = version
        at = found.standing
        return dg.MaterializeResult(metadata=told, data_version=content_version([at.choice, at.deltas, str(at.id_sum)]))

    return followed


def nothing_missed(config: Config) -> list[dg.AssetChecksDefinition]:
    """For each leaf: it has taken what the lake holds up to its mark."""
    return [_nothing_missed(name, declared, leaf) for name, declared, leaf in all_leaves(config)]


def _nothing_missed(name: str, declared: DeclaredDestination, leaf: Leaf) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=leaf_key(name, leaf.name),
        name="equals_lake",
        description="Up to its mark the leaf has taken as many deltas as the lake holds, with the same sum of ids.",
    )
    def check(
        context: dg.AssetCheckExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
    ) -> dg.AssetCheckResult:
        from lakesync.adapters.following import standing
        from lakesync.adapters.registry import as_database, open_adapter
        from resources.destinations import in_the_lake

        with outcome(context, pyspark, retried=False):
            one = follower(staging.store, name, declared, leaf)
            adapter = as_database(open_adapter(leaf.uri))
            try:
                reached = standing(adapter, one.name, one.choice)
            finally:
                adapter.close()
            held = in_the_lake(pyspark.spark_session, reached, lake.names)
        taken = (reached.deltas, reached.id_sum)
        return dg.AssetCheckResult(
            passed=held == taken,
            description=None
            if held == taken
            else f"taken: {taken}, in the lake: {held}. Compare both, then declare "
            "the destination under another name, which takes everything again and changes nothing that is there.",
            metadata={"deltas_taken": taken[0], "deltas_in_lake": held[0]},
        )

    return check


def follower(store: PipelineStore, name: str, declared: DeclaredDestination, leaf: Leaf) -> "Follower":
    """What a leaf is to a Spark task."""
    from resources.destinations import Follower, choice_of

    choice = choice_of(leaf, declared.gateways)
    schemas = registered(store).tables if declared.rows else ()
    wanted = tuple(
        schema
        for schema in schemas
        if schema.table not in choice.without and (not choice.tables or schema.table in choice.tables)
    )
    return Follower(f"destinations/{name}/{leaf.name}", leaf, choice, wanted)


def _told(found: "Followed") -> Told:
    at = found.standing
    marks = {stream: str(arrival) for stream, arrival in sorted(at.streams.items())}
    return {
        "deltas_in": found.deltas,
        "transactions": found.parts,
        "dagster/row_count": at.deltas,
        "tables_of_rows": ", ".join(sorted(at.shown)),
        "marks": dg.MetadataValue.json(marks),
        "mark": dg.MetadataValue.timestamp(wall_of(max(at.streams.values(), default=0)) / 1000),
    }
