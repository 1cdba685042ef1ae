"""Erasure of what clients asked to be gone, carried through lake and destinations in the pools of all their writers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg
import msgspec

from assets.cut import make_cuts
from assets.erasure_landed import cleared_landings
from assets.erasure_places import cleared_flows, cleared_leaves, cleared_migrations, cleared_tiers, told_of
from assets.labels import DELTAS, OWNERS, state_key, table_pool
from assets.outcome import outcome
from lakesync.config import Config
from lakesync.exceptions import FlushError
from lakesync.staging.store import PipelineStore
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.run_state import RunState
from resources.snapshot import SchemaSnapshot
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakesync.staging.records import Erasure

GROUP = "erasure"
HISTORY = dg.AssetKey([GROUP, "deltas"])
REPORT = dg.AssetKey([GROUP, "report"])


def erasure(snapshot: SchemaSnapshot, config: Config) -> list[dg.AssetsDefinition]:
    """A step for the history, each state table and each place beyond the lake, and the one that proves and confirms."""
    tables = [cleared_table(schema.table, where) for schema, where in snapshot.states]
    beyond = (cleared_tiers, cleared_leaves, cleared_flows, cleared_migrations)
    places = [step for make in beyond for step in make(config, GROUP, HISTORY, _due)]
    landings = cleared_landings(snapshot, GROUP, HISTORY, _due)
    return [
        redacted_history(config),
        *tables,
        *landings,
        *places,
        report(config, [*tables, *landings], places),
    ]


def redacted_history(config: Config) -> dg.AssetsDefinition:
    """Flushes what still waits, then takes from the history what requests cover."""

    @dg.asset(
        key=HISTORY,
        deps=[DELTAS],
        pool="lakesync_deltas",
        description="The history without what erased rows and clients said; the places of their deltas stay.",
        group_name=GROUP,
        kinds={"spark", "iceberg"},
        owners=OWNERS,
    )
    def history(
        context: dg.AssetExecutionContext, pyspark: SparkConnectResource, lake: LakeResource, staging: StagingResource
    ) -> dg.MaterializeResult[None]:
        from lakehouse.erasure.redaction import redact
        from lakehouse.erasure.requests import open_requests
        from lakehouse.history.flush import MAX_DELTAS, flush_due

        with outcome(context, pyspark):
            spark, store = pyspark.spark_session, staging.store
            requests = open_requests(store)
            if requests:
                flush_due(
                    spark,
                    store,
                    gateways=requests,
                    max_deltas=config.flush.batch_deltas or MAX_DELTAS,
                    names=lake.names,
                )
            done = {gateway: redact(spark, mine, lake.names) for gateway, mine in _due(store).items()}
        return dg.MaterializeResult(
            metadata={
                "requests": sum(len(mine) for mine in requests.values()),
                "deltas": sum(each.rows for each in done.values()),
                "files_rewritten": dg.MetadataValue.json({gateway: each.files for gateway, each in done.items()}),
            }
        )

    return history


def cleared_table(table: str, namespace: str = "") -> dg.AssetsDefinition:
    """Makes again the rows of one table that held something, and leaves it one snapshot."""
    key = state_key(table, namespace)

    @dg.asset(
        key=dg.AssetKey([GROUP, *key.path]),
        deps=[HISTORY, key],
        pool=table_pool(table, namespace),
        description=f"The table `{table}` without erased values, in its rows, its files and its snapshots.",
        group_name=GROUP,
        kinds={"spark", "iceberg"},
        owners=OWNERS,
    )
    def cleared(
        context: dg.AssetExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> dg.MaterializeResult[None]:
        from lakehouse.erasure.redaction import clear_table

        with outcome(context, pyspark):
            names = lake.names_in(namespace)
            done = [
                found
                for gateway, mine in _due(staging.store).items()
                if run_state.names_of(gateway) == names
                and (found := clear_table(pyspark.spark_session, table, mine, names)) is not None
            ]
        return dg.MaterializeResult(
            metadata={
                "rows": sum(each.rows for each in done),
                "files_rewritten": dg.MetadataValue.json([file for each in done for file in each.files]),
            }
        )

    return cleared


def report(
    config: Config, tables: Sequence[dg.AssetsDefinition], places: Sequence[dg.AssetsDefinition]
) -> dg.AssetsDefinition:
    """Clears what is left, searches every file, confirms what is proven, and cuts anew.

    Where a place beyond the lake has not erased it is not run, so the requests stay open.
    """

    @dg.asset(
        key=REPORT,
        deps=[HISTORY, *(each.key for each in (*tables, *places))],
        pool="lakesync_cut",
        description="What was asked to be erased, the proof that no file of the lake holds anything of it, and what "
        "each place beyond it lost.",
        group_name=GROUP,
        kinds={"spark", "iceberg"},
        owners=OWNERS,
    )
    def reported(
        context: dg.AssetExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> dg.MaterializeResult[None]:
        from lakehouse.erasure.requests import conclude

        with outcome(context, pyspark):
            spark, store = pyspark.spark_session, staging.store
            due = _due(store)
            ended = [
                conclude(spark, store, mine, run_state.names_of(gateway), lake.checkpoints_uri, staging.opener)
                for gateway, mine in due.items()
            ]
            if due:
                run_state.forget_positions()
                make_cuts(spark, lake, store, run_state, config)
            left = [each for one in ended for each in one.left]
            if left:
                raise FlushError(
                    f"{len(left)} data files still hold what is to be erased, written meanwhile by another run; the "
                    "next run goes on"
                )
        proofs = [msgspec.to_builtins(each) for one in ended for each in one.proven]
        beyond = dg.MetadataValue.json(told_of(context.instance, places))
        return dg.MaterializeResult(
            metadata={"confirmed": len(proofs), "report": dg.MetadataValue.json(proofs), "beyond_the_lake": beyond}
        )

    return reported


def _due(store: PipelineStore) -> "dict[str, list[Erasure]]":
    """Gateway → requests of which the lake holds all that it ever will."""
    from lakehouse.erasure.requests import open_requests, reached

    requests = open_requests(store)
    backlog = store.backlog() if requests else []
    due = {
        gateway: reached(mine, [each for each in backlog if each.gateway == gateway])
        for gateway, mine in requests.items()
    }
    return {gateway: mine for gateway, mine in due.items() if mine}
