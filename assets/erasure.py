"""Creates the asset `erasure`: it carries out erasure requests in the lake and beyond, and proves that nothing is left.

An erasure request names rows whose values must disappear everywhere. The steps of the asset are ops of one graph, so
that lineage shows one asset. A run occupies the pools of all its steps from start to end; a pool is Dagster's limit of
runs that write the same table, so no other run writes meanwhile. The code location (`lakesync_dagster.definitions`)
calls this module. `docs/durability.md` describes the steps and the proof.
"""

import dagster as dg
import msgspec

from assets.asset_metadata import CHECKPOINT_POOL, OWNERS, state_key, table_pool
from assets.erasure_steps import (
    ERASE,
    ErasureRun,
    connector_steps,
    destination_steps,
    erasure_step,
    flow_steps,
    migration_steps,
    tier_steps,
)
from assets.run_metrics import Metadata
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.config import Config
from lakesync.model.errors import FlushError

ERASURE = dg.AssetKey("erasure")


def erasure(snapshot: SchemaSnapshot, config: Config) -> dg.AssetsDefinition:
    """Create the asset: a step for the history, each state table, connector and backend, and a step that proves it.

    Args:
        snapshot: names the state tables and connectors.
        config: the project's configuration, which declares destinations, flows, tiers and migrations.
    """
    history = history_step(config)
    tables = [table_step(schema.table, namespace) for schema, namespace in snapshot.states]
    connectors, landing_snapshots = connector_steps(snapshot)
    tiers, flows, migrations = tier_steps(config), flow_steps(config), migration_steps(config)
    hot, cold = destination_steps(config)
    report = report_step(config)

    @dg.graph(name=ERASE)
    def steps() -> None:
        redacted = history()
        moved = [step(redacted) for step in tiers]
        polled = [step(redacted) for step in connectors]
        done = [step(redacted) for step in (*tables, *flows, *migrations, *hot)]
        done += [step([redacted, *moved]) for step in cold]
        done += [step(polled) for step in landing_snapshots]
        return report([redacted, *moved, *polled, *done])  # type: ignore[no-any-return]

    made = dg.AssetsDefinition.from_graph(steps, keys_by_output_name={"result": ERASURE}, group_name=ERASURE.path[0])
    description = (
        "Erasure requests, the proof that no file of the lake has anything that they cover, and what each backend "
        "beyond it lost."
    )
    return made.map_asset_specs(
        lambda spec: spec.replace_attributes(description=description, kinds={"spark", "iceberg"}, owners=OWNERS)
    )


def history_step(config: Config) -> dg.OpDefinition:
    """Create the first step: it flushes unflushed deltas, then empties the deltas of the history that requests cover.

    Args:
        config: the project's configuration.
    """

    def erase(run: ErasureRun) -> Metadata:
        from lakehouse.erasure.redaction import redact_history
        from lakehouse.erasure.requests import open_requests
        from lakehouse.history.flush import MAX_DELTAS, flush_due

        names, requests = run.lake.names, open_requests(run.store)
        if requests:
            max_deltas = config.flush.batch_deltas or MAX_DELTAS
            flush_due(run.spark, run.store, gateways=requests, max_deltas=max_deltas, names=names)
        done = {gateway: redact_history(run.spark, mine, names) for gateway, mine in run.due.items()}
        return {
            "requests": sum(len(mine) for mine in requests.values()),
            "deltas": sum(each.rows for each in done.values()),
            "files_rewritten": dg.MetadataValue.json({gateway: each.files for gateway, each in done.items()}),
        }

    description = "The history without the contents of erased deltas. The deltas themselves stay, empty."
    return erasure_step(["history"], "lakesync_deltas", description, erase, is_first=True)


def table_step(table: str, namespace: str = "") -> dg.OpDefinition:
    """Create the step that recomputes the erased rows of one state table and deletes its older snapshots.

    Args:
        table: the state table's name.
        namespace: namespace of its gateways; empty for the shared one.
    """

    def erase(run: ErasureRun) -> Metadata:
        from lakehouse.erasure.redaction import erase_state_table

        names = run.lake.names_in(namespace)
        done = [
            found
            for gateway, mine in run.due.items()
            if run.run_state.names_of(gateway) == names
            and (found := erase_state_table(run.spark, table, mine, names)) is not None
        ]
        return {
            "rows": sum(each.rows for each in done),
            "files_rewritten": dg.MetadataValue.json([file for each in done for file in each.files]),
        }

    description = f"The table `{table}` without erased values, in its rows, its files and its snapshots."
    return erasure_step(state_key(table, namespace).path, table_pool(table, namespace), description, erase)


def report_step(config: Config) -> dg.OpDefinition:
    """Create the last step: it searches every data file, confirms the proven requests, and makes new checkpoints.

    It does not run if the step of a backend failed, so the requests stay open.

    Args:
        config: the project's configuration.
    """

    def erase(run: ErasureRun) -> Metadata:
        from lakehouse.checkpoints.publication import make_checkpoints
        from lakehouse.erasure.requests import complete_erasures

        spark, store, state, uri = run.spark, run.store, run.run_state, run.lake.checkpoints_uri
        due = run.due
        results = [
            complete_erasures(spark, store, mine, state.names_of(gateway), uri, run.staging.opener)
            for gateway, mine in due.items()
        ]
        if due:
            state.forget_positions()
            make_checkpoints(spark, store, state, config, uri)
        left = [each for result in results for each in result.left]
        if left:
            raise FlushError(
                f"{len(left)} data files still have erased values: another run wrote them meanwhile. The next run "
                "erases them"
            )
        proofs = [msgspec.to_builtins(each) for result in results for each in result.proven]
        return {
            "confirmed": len(proofs),
            "report": dg.MetadataValue.json(proofs),
            "beyond_the_lake": dg.MetadataValue.json(state.erased),
        }

    description = "Proves that no file of the lake has anything that the requests cover, and confirms them."
    return erasure_step(["report"], CHECKPOINT_POOL, description, erase)
