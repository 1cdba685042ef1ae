"""Creates the asset `erasure`: it carries out erasure requests in the lake and beyond, and proves that nothing is left.

An erasure request covers a row, or all that one client wrote; its values must disappear everywhere. Staging, the
database of the gateways (streams of changes, one for each app), carries it out first. This asset is a graph of steps
(ops), so that lineage shows one asset. The steps erase in the history (all changes that clients pushed), the state
tables (current rows), the landing tables of polled rows (which connectors read from external systems), and the
backends: databases and object stores that `lakesync.toml` declares. Data are also erased in backends that flows or
migrations only read, because the next run would copy them again. At the end it makes new *checkpoints*, the copies of a
gateway's rows for new clients.

Each step runs in the pool of the steps that write to the same table or backend: Dagster runs one step of a pool at a
time, so that the others do not copy erased data meanwhile. Steps of backends run in the order in which data move there:
a run that has read the history before its erasure may still write a backend, from which a flow would copy the data on
until that backend's step has run. The code location (`lakesync_dagster.definitions`) calls this module.
`docs/durability.md` describes the steps and the proof.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import dagster as dg
import msgspec

from assets.asset_metadata import Metadata
from assets.failure_policy import failure_policy
from assets.ingest import GROUP as INGEST
from assets.ingest import connector_pool
from assets.names import CHECKPOINT_POOL, DELTAS_POOL, state_key, table_pool, target_key, target_pool
from assets.transfers import transfer_key, transfer_pool
from lakehouse.backends.declared import (
    backend_erasures,
    destination_targets,
    flow_erasures,
    target_erasures,
    tier_erasures,
)
from lakehouse.marks import TransferKind
from lakehouse.run_state import RunState
from lakehouse.schema_snapshot import PolledConnector, SchemaSnapshot
from lakesync.adapters.backend_config import named_adapters
from lakesync.config import Config
from lakesync.model.errors import CommitConflictError
from lakesync.staging.store.pipeline import GatewayStore, PipelineStore
from resources.spark import SparkConnectResource
from resources.stores import LakeResource, StagingResource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.backends.erasures import BackendErasure
    from lakesync.adapters.redaction import RedactionRequest
    from lakesync.staging.records import Erasure

    Erasures = Callable[[GatewayStore, tuple[RedactionRequest, ...]], list[BackendErasure]]
    """Returns what requests erase in a backend: an erasure for each adapter (database or object store) of it."""

ERASURE = dg.AssetKey("erasure")
"""Key of the asset."""
_ERASE = "erase"
"""Name of the graph, and prefix of its steps' names, so that they differ from the steps of other assets."""


@dataclass(frozen=True)
class _ErasureRun:
    """What a step works with: the connections and the state of its run."""

    spark: "SparkSession"
    lake: LakeResource
    staging: StagingResource
    run_state: RunState

    @property
    def store(self) -> PipelineStore:
        """The staging store."""
        return self.staging.store

    def due_requests(self) -> "dict[str, list[Erasure]]":
        """Read from the store, by gateway, the open requests that the lake can carry out now."""
        from lakehouse.erasure.requests import due_requests

        return due_requests(self.store)


def erasure(snapshot: SchemaSnapshot, config: Config) -> dg.AssetsDefinition:
    """Create the asset: a step for the history, each state table, connector and backend, and a step that proves it.

    Args:
        snapshot: names the state tables and connectors.
        config: the project's configuration, which declares destinations, flows, tiers and migrations.
    """
    history = _history_step(config)
    tables = [_table_step(schema.table, namespace) for schema, namespace in snapshot.states]
    connectors = [_connector_step(each) for each in snapshot.connectors]
    landing_snapshots = [_snapshot_step(table) for table in ("landing", "known") if connectors]
    backends = _ordered([*_destination_steps(config), *_transfer_steps(config)])
    report = _report_step(config)

    @dg.graph(name=_ERASE)
    def steps() -> None:
        # the results only order the steps: each step runs after those that it is called with
        redacted = history()
        polled = [step(redacted) for step in connectors]
        erased = [step(redacted) for step in tables]
        erased += [step(polled) for step in landing_snapshots]
        moved: list[object] = []
        for number, each in enumerate(backends):
            upstream = [moved[n] for n in range(number) if backends[n].writes & each.reads]
            moved.append(each.step([redacted, *upstream]))
        return report([redacted, *polled, *erased, *moved])  # type: ignore[no-any-return]

    made = dg.AssetsDefinition.from_graph(steps, keys_by_output_name={"result": ERASURE}, group_name=ERASURE.path[0])
    description = (
        "Erasure requests, the proof that no file of the lake has anything that they cover, and what each backend "
        "beyond it lost."
    )
    return made.map_asset_specs(
        lambda spec: spec.replace_attributes(description=description, kinds={"spark", "iceberg"})
    )


def _erasure_step(
    path: Sequence[str],
    pool: str,
    description: str,
    work: Callable[[_ErasureRun], Metadata],
    *,
    is_first: bool = False,
    is_retried: bool = True,
) -> dg.OpDefinition:
    """Create a step of the erasure.

    Args:
        path: names what the step erases in, usually by an asset's key; it becomes the step's name.
        pool: pool of the steps that write this asset.
        description: what the step leaves behind, for Dagster's pages.
        work: does the step's work when it runs, and returns the step's metadata.
        is_first: whether no other step runs before it.
        is_retried: whether Dagster retries the step after a transient error. If not, the sensor requests another run.
    """

    @dg.op(
        name=dg.AssetKey([_ERASE, *path]).to_python_identifier(),
        ins={} if is_first else {"after": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        pool=pool,
        description=description,
    )
    def step(
        context: dg.OpExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> None:
        with failure_policy(context, pyspark, retried=is_retried):
            metadata = work(_ErasureRun(pyspark.spark_session, lake, staging, run_state))
        context.add_output_metadata(metadata)

    return step


def _history_step(config: Config) -> dg.OpDefinition:
    """Create the first step: it flushes staging, then empties the deltas of the history that requests cover."""

    def erase(run: _ErasureRun) -> Metadata:
        from lakehouse.erasure.redaction import redact_history
        from lakehouse.erasure.requests import open_requests
        from lakehouse.history.flush import MAX_DELTAS, flush_backlog

        names, requests = run.lake.names, open_requests(run.store)
        if requests:
            max_deltas = config.flush.batch_deltas or MAX_DELTAS
            flush_backlog(run.spark, run.store, gateways=requests, max_deltas=max_deltas, names=names)
        reports = {gateway: redact_history(run.spark, due, names) for gateway, due in run.due_requests().items()}
        return {
            "requests": sum(len(of_gateway) for of_gateway in requests.values()),
            "deltas": sum(report.rows for report in reports.values()),
            "files_rewritten": dg.MetadataValue.json({gateway: each.files for gateway, each in reports.items()}),
        }

    description = "The history without the contents of erased deltas. The deltas themselves stay, empty."
    return _erasure_step(["history"], DELTAS_POOL, description, erase, is_first=True)


def _table_step(table: str, namespace: str) -> dg.OpDefinition:
    """Create the step that recomputes the erased rows of one state table and deletes its older snapshots."""

    def erase(run: _ErasureRun) -> Metadata:
        from lakehouse.erasure.redaction import erase_state_table

        names = run.lake.names_in(namespace)
        reports = []
        for gateway, requests in run.due_requests().items():
            if run.run_state.names_of(gateway) == names:  # the gateway's rows are in this namespace
                report = erase_state_table(run.spark, table, requests, names)
                reports += [report] if report is not None else []
        return {
            "rows": sum(report.rows for report in reports),
            "files_rewritten": dg.MetadataValue.json([file for report in reports for file in report.files]),
        }

    description = f"The table `{table}` without erased values, in its rows, its files and its snapshots."
    return _erasure_step(state_key(table, namespace).path, table_pool(table, namespace), description, erase)


def _report_step(config: Config) -> dg.OpDefinition:
    """Create the last step: it searches every data file, confirms the proven requests, and makes new checkpoints.

    It does not run if the step of a backend failed, so the requests stay open.
    """

    def prove(run: _ErasureRun) -> Metadata:
        from lakehouse.checkpoints.publication import make_checkpoints
        from lakehouse.erasure.requests import complete_erasures

        spark, store, state, uri = run.spark, run.store, run.run_state, run.lake.checkpoints_uri
        due = run.due_requests()
        results = [
            complete_erasures(spark, store, requests, state.names_of(gateway), uri, run.staging.opener)
            for gateway, requests in due.items()
        ]
        if due:
            # `state` read the arrivals before the erasure, which has added deltas that checkpoints must contain
            state.forget_positions()
            make_checkpoints(spark, store, state, config, uri)
        left = [each for result in results for each in result.left]
        if left:
            raise CommitConflictError(
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
    return _erasure_step(["report"], CHECKPOINT_POOL, description, prove)


class _BackendStep(NamedTuple):
    """A step that erases in backends, and the adapters between which the asset of these backends moves data."""

    step: dg.OpDefinition
    reads: frozenset[str]
    """Names of the adapters that the asset reads."""
    writes: frozenset[str]
    """Names of the adapters that it writes."""


def _ordered(steps: Sequence[_BackendStep]) -> list[_BackendStep]:
    """Return steps in an order in which each comes after those that write what it reads, except in circles."""
    ordered, left = list[_BackendStep](), list(steps)
    while left:
        following = (each for each in left if not any(each.reads & other.writes for other in left if other is not each))
        ordered.append(next(following, left[0]))
        left.remove(ordered[-1])
    return ordered


def _destination_steps(config: Config) -> list[_BackendStep]:
    """Create a step for each adapter of each destination."""
    steps = []
    for each in destination_targets(config):
        name, target = each.destination, each.target
        step = _backend_step(
            target_key(name, target.name),
            target_pool(name, target.name),
            f"The adapter `{target.name}` of the destination `{name}`, and its cold tiers, without erased values.",
            partial(target_erasures, config, each),
        )
        steps.append(_BackendStep(step, reads=frozenset(), writes=frozenset({target.name})))
    return steps


def _transfer_steps(config: Config) -> list[_BackendStep]:
    """Create a step for each flow, migration and pair of tiers, which erases in the backends that it writes and reads.

    Tiers are a hot backend, and a cold one to which the pipeline moves old deltas.
    """

    def adapters(backend: str) -> frozenset[str]:
        return frozenset(each.name for each in named_adapters(config, (backend,)))

    def step(kind: TransferKind, name: str, source: str, target: str, what: str, erasures: "Erasures") -> _BackendStep:
        key, pool = transfer_key(kind, name), transfer_pool(kind, name)
        op = _backend_step(key, pool, f"{what} `{name}` without erased values.", erasures)
        return _BackendStep(op, adapters(source), adapters(target))

    flows = [
        step("flow", name, flow.source, flow.to, "Both ends of the flow", partial(flow_erasures, config, name, flow))
        for name, flow in config.flows.items()
    ]
    migrations = [
        step(
            "migration",
            name,
            each.source,
            each.to,
            "Both ends of the migration",
            partial(backend_erasures, config, (each.to, each.source)),
        )
        for name, each in config.migrations.items()
    ]
    tiers = [
        step("tier", name, each.hot, each.cold, "The deltas of both tiers of", partial(tier_erasures, config, name))
        for name, each in config.tiers.items()
    ]
    return [*flows, *migrations, *tiers]


def _connector_step(connector: PolledConnector) -> dg.OpDefinition:
    """Create the step that erases a connector's polled rows."""
    gateway, name = connector.gateway, connector.name
    pool = connector_pool(gateway, name)

    def erase(run: _ErasureRun) -> Metadata:
        from lakehouse.erasure.redaction import erase_landed

        erased = erase_landed(run.spark, {gateway: run.due_requests().get(gateway, [])}, run.lake.names, name)
        return {"landed": erased.landed, "known": erased.known}

    # Named by the pool, whose name is unique: Dagster replaces special characters, and two connectors' names may
    # differ only in these.
    return _erasure_step(
        (INGEST, pool), pool, f"What `{name}` brought to gateway `{gateway}`, without erased rows.", erase
    )


def _snapshot_step(table: str) -> dg.OpDefinition:
    """Create the step that deletes old Iceberg snapshots of `landing` (polled rows) or `known` (their newest state)."""

    def erase(run: _ErasureRun) -> Metadata:
        from lakehouse.erasure.redaction import drop_old_landings, erase_landed

        requests, names = run.due_requests(), run.lake.names
        if not requests:
            return {"past_forgotten": False}
        erase_landed(run.spark, requests, names)  # also rows of connectors that were removed
        name = names.landing if table == "landing" else names.known
        are_snapshots_deleted = drop_old_landings(run.spark, name, names)
        return {"past_forgotten": are_snapshots_deleted}

    description = f"The table `{table}` without the snapshots that have erased rows."
    return _erasure_step((INGEST, table), f"lakesync_{table}", description, erase)


def _backend_step(asset: dg.AssetKey, pool: str, description: str, erasures: "Erasures") -> dg.OpDefinition:
    """Create a step that erases in backends.

    Args:
        asset: the asset whose step writes to the backends; it gives the step its name.
        pool: pool of that step.
        description: what the step leaves behind, for Dagster's pages.
        erasures: returns the erasures in these backends.
    """

    def erase(run: _ErasureRun) -> Metadata:
        from lakehouse.backends.erasures import ErasedCounts, erase_in_backends, redactions

        due = run.due_requests()
        requests = redactions(run.spark, due, run.lake.names) if due else ()
        erased = erase_in_backends(run.spark, erasures(run.store, requests)) if requests else ErasedCounts()
        counts = {"deltas": erased.deltas, "rows": erased.rows}
        run.run_state.erased[asset.to_user_string()] = counts
        return {**counts}

    return _erasure_step(asset.path, pool, description, erase, is_retried=False)
