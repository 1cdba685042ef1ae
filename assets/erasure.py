"""Erasure of what clients asked to be gone: one asset of several steps, each in the pool of a writer.

The steps are ops of one graph, so that lineage shows one asset. A run has the pools of all steps from its begin to its
end, so nothing is written meanwhile.
"""

from typing import TYPE_CHECKING

import dagster as dg
import msgspec

from assets.asset_metadata import OWNERS, state_key, table_pool
from assets.cut import make_cuts
from assets.erasure_landed import ERASE, cleared_landings, erasing_op
from assets.erasure_places import cleared_flows, cleared_leaves, cleared_migrations, cleared_tiers
from assets.failure_policy import failure_policy
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.config import Config
from lakesync.model.errors import FlushError
from lakesync.staging.store import PipelineStore
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.run_state import RunState
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakesync.staging.records import Erasure

ERASURE = dg.AssetKey("erasure")


def erasure(snapshot: SchemaSnapshot, config: Config) -> dg.AssetsDefinition:
    """Create the asset: a step for the history, each state table and each place beyond the lake, and the proof.

    Args:
        snapshot: names the state tables and connectors.
        config: declares the destinations, flows, tiers and migrations.
    """
    history = redacted_history(config)
    tables = [cleared_table(schema.table, where) for schema, where in snapshot.states]
    polls, landings = cleared_landings(snapshot, _due)
    tiers, flows, migrations = (make(config, _due) for make in (cleared_tiers, cleared_flows, cleared_migrations))
    hot, cold = cleared_leaves(config, _due)
    conclusion = report(config)

    @dg.graph(name=ERASE)
    def steps() -> None:
        redacted = history()
        moved = [step(redacted) for step in tiers]
        polled = [step(redacted) for step in polls]
        done = [step(redacted) for step in (*tables, *flows, *migrations, *hot)]
        done += [step([redacted, *moved]) for step in cold]
        done += [step(polled) for step in landings]
        return conclusion([redacted, *moved, *polled, *done])  # type: ignore[no-any-return]

    made = dg.AssetsDefinition.from_graph(steps, keys_by_output_name={"result": ERASURE}, group_name=ERASURE.path[0])
    description = (
        "What was asked to be erased, the proof that no file of the lake holds anything of it, and what each place "
        "beyond it lost."
    )
    return made.map_asset_specs(
        lambda spec: spec.replace_attributes(description=description, kinds={"spark", "iceberg"}, owners=OWNERS)
    )


def redacted_history(config: Config) -> dg.OpDefinition:
    """Create the step that flushes what still waits, then removes from the history what requests cover."""

    @dg.op(
        name=f"{ERASE}__history",
        out=dg.Out(dg.Nothing),
        pool="lakesync_deltas",
        description="The history without what erased rows and clients said; the places of their deltas stay.",
    )
    def history(
        context: dg.OpExecutionContext, pyspark: SparkConnectResource, lake: LakeResource, staging: StagingResource
    ) -> None:
        from lakehouse.erasure.redaction import redact
        from lakehouse.erasure.requests import open_requests
        from lakehouse.history.flush import MAX_DELTAS, flush_due

        with failure_policy(context, pyspark):
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
        context.add_output_metadata(
            {
                "requests": sum(len(mine) for mine in requests.values()),
                "deltas": sum(each.rows for each in done.values()),
                "files_rewritten": dg.MetadataValue.json({gateway: each.files for gateway, each in done.items()}),
            }
        )

    return history


def cleared_table(table: str, namespace: str = "") -> dg.OpDefinition:
    """Create the step that rewrites the erased rows of one table and leaves the table one snapshot.

    Args:
        table: the state table.
        namespace: that of its gateways; empty for the shared one.
    """

    @erasing_op(
        state_key(table, namespace).path,
        table_pool(table, namespace),
        f"The table `{table}` without erased values, in its rows, its files and its snapshots.",
    )
    def cleared(
        context: dg.OpExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> None:
        from lakehouse.erasure.redaction import clear_table

        with failure_policy(context, pyspark):
            names = lake.names_in(namespace)
            done = [
                found
                for gateway, mine in _due(staging.store).items()
                if run_state.names_of(gateway) == names
                and (found := clear_table(pyspark.spark_session, table, mine, names)) is not None
            ]
        context.add_output_metadata(
            {
                "rows": sum(each.rows for each in done),
                "files_rewritten": dg.MetadataValue.json([file for each in done for file in each.files]),
            }
        )

    return cleared


def report(config: Config) -> dg.OpDefinition:
    """Clears what is left, searches every file, confirms what is proven, and cuts anew.

    Where a place beyond the lake has not erased it is not run, so the requests stay open.
    """

    @dg.op(
        name=f"{ERASE}__report",
        ins={"after": dg.In(dg.Nothing)},
        pool="lakesync_cut",
        description="Proves that no file of the lake holds anything of what was asked to be erased, and confirms it.",
    )
    def reported(
        context: dg.OpExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> dg.Output[None]:
        from lakehouse.erasure.requests import conclude

        with failure_policy(context, pyspark):
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
        beyond = dg.MetadataValue.json(run_state.erased)
        return dg.Output(
            None,
            metadata={"confirmed": len(proofs), "report": dg.MetadataValue.json(proofs), "beyond_the_lake": beyond},
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
