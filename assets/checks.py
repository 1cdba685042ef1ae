"""Creates the Dagster asset checks of the history, the state tables and the checkpoints.

The history is the Iceberg table `deltas` of all changes (deltas) that clients pushed to gateways; a gateway is one
app's stream of deltas. A state table has the current rows of one synced table, merged from the history. A checkpoint is
a gateway's rows in files, from which new clients start. `assets.lake_checks` lists the checks. The code location
(`lakesync_dagster.definitions`) calls `checks`.

A run for some UTC days of arrival (when gateways received the deltas) checks these days; a run without days, such as
the audit (a nightly job that runs every check), checks everything. If a run of the flush sensor finds a fault, only the
checkpoints of the affected gateways are delayed: the failure is deferred, which means that the run continues, and fails
at its end.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import dagster as dg
import msgspec

from assets.asset_metadata import Metadata
from assets.failure_policy import brief, defer_failure, failure_policy, is_final
from assets.lake_checks import CHECKPOINT_CHECKS, HISTORY_CHECKS, Check, CheckInputs, table_checks
from assets.names import AUDIT, CHECKPOINT, DELTAS, SNAPSHOTS, check_step, continues_on_failure, state_key
from assets.partitions import days_in_tags
from lakehouse.faults import Fault
from lakehouse.marks import audit_mark
from lakehouse.run_state import RunState, Unmerged
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import Visit, checkpoint_state
from lakesync.model.errors import IntegrityError
from resources.spark import SparkConnectResource
from resources.stores import LakeResource, StagingResource


class _Outcome(NamedTuple):
    """What a check has found."""

    check: Check
    faults: Sequence[Fault] = ()
    not_run: str = ""
    """Why the check could not run; empty if it did."""


CHECKPOINT_CHECK = dg.AssetCheckKey(CHECKPOINT, "checkpoint_equals_snapshots")
"""The check of checkpoints, which the job of flushes runs after it has made them."""
FAULTS_IN_DESCRIPTION = 3
"""Number of faults that a check's description names. The metadata has all that were found, 100 at most."""


def checks(snapshot: SchemaSnapshot) -> list[dg.AssetChecksDefinition]:
    """Create the checks of the history, of each state table and of the checkpoints; those of one asset are one step.

    Args:
        snapshot: the registered tables and connectors.
    """
    return [
        _checks_of(DELTAS, HISTORY_CHECKS),
        *(
            _checks_of(state_key(schema.table, namespace), table_checks(schema.table), schema.table, namespace)
            for schema, namespace in snapshot.states
        ),
        _checks_of(CHECKPOINT, CHECKPOINT_CHECKS, after=[SNAPSHOTS]),
    ]


def summary(faults: Sequence[Fault]) -> str:
    """Return the first faults as text (`Fault.name`). Alerts contain it, so it has no values of rows.

    Args:
        faults: what a check has found.
    """
    first = [fault.name for fault in faults[:FAULTS_IN_DESCRIPTION]]
    more = len(faults) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


def _checks_of(
    key: dg.AssetKey,
    own_checks: Sequence[Check],
    table: str = "",
    namespace: str = "",
    after: Sequence[dg.AssetKey] = (),
) -> dg.AssetChecksDefinition:
    """Create the checks of an asset as one step.

    Args:
        key: the asset.
        own_checks: the asset's checks.
        table: name of the state table; empty for another asset.
        namespace: namespace of the state table's gateways; empty for the shared one.
        after: further assets that must be materialised before the step runs.
    """

    @dg.multi_asset_check(
        name=check_step(key),
        specs=[
            dg.AssetCheckSpec(
                each.name, asset=key, description=each.description, blocking=each.blocking, additional_deps=after
            )
            for each in own_checks
        ],
        can_subset=True,
    )
    def run_checks(
        context: dg.AssetCheckExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> Iterator[dg.AssetCheckResult]:
        wanted = [
            check for check in own_checks if dg.AssetCheckKey(key, check.name) in context.selected_asset_check_keys
        ]
        with failure_policy(context, pyspark):
            inputs = CheckInputs(
                key,
                table,
                namespace,
                pyspark.spark_session,
                lake,
                staging.store,
                run_state,
                days=None if key == CHECKPOINT else days_in_tags(context.run.tags),  # its partition is a gateway
                seed=int(context.run.run_id[:8], 16),  # a retried step compares the same sample
                is_flush=continues_on_failure(context.run),  # only runs that the flush sensor requested do
            )
            # The asset's state and the time, stored after an audit without faults. The next audit is due when the state
            # has changed, or after some time.
            visit = Visit(_asset_state(inputs), staging.now_ms()) if context.run.job_name == AUDIT else None
            outcomes = [_run_check(context, inputs, check) for check in wanted]
            run_state.checked.add(key.to_user_string())
            has_failed = any(each.not_run or (each.check.blocking and each.faults) for each in outcomes)
            if visit is not None and not has_failed:
                staging.store.put_mark(audit_mark(key.to_user_string()), msgspec.json.encode(visit).decode())
        for outcome in outcomes:
            yield _result(context, inputs, outcome)

    return run_checks


def _run_check(context: dg.AssetCheckExecutionContext, inputs: CheckInputs, check: Check) -> _Outcome:
    """Run a check, and return its faults, or why it could not run.

    Raises:
        Exception: any error after which Dagster retries the step.
    """
    try:
        return _Outcome(check, check.find(inputs))
    except Exception as error:
        if not is_final(context, error):
            raise
        could_not_run = f"{check.name} of {inputs.key.to_user_string()} could not run"
        if inputs.counts_as_unmerged:  # no gateway gets a checkpoint with unchecked rows
            reason = f"{check.name} could not run: {brief(error)}"
            inputs.run_state.unmerged.setdefault((inputs.namespace, inputs.table), Unmerged(reason, gateways=None))
            defer_failure(context, inputs.run_state, error, could_not_run)
        else:
            context.log.exception(could_not_run)
        return _Outcome(check, not_run=brief(error))


def _asset_state(inputs: CheckInputs) -> str:
    """Return a text that changes whenever the asset is written, such as its snapshot id."""
    from lakehouse.table_access import version_if_there

    if inputs.key == CHECKPOINT:
        return checkpoint_state(inputs.store.backlog())
    name = inputs.lake.names_in(inputs.namespace).state(inputs.table) if inputs.table else inputs.lake.names.deltas
    version = version_if_there(inputs.spark, name)
    return str(version.snapshot_id if version is not None else None)


def _result(context: dg.AssetCheckExecutionContext, inputs: CheckInputs, outcome: _Outcome) -> dg.AssetCheckResult:
    """Return a check's result, which passes if no fault was found. In a flush, faults delay checkpoints."""
    check, faults = outcome.check, outcome.faults
    is_blocking = check.blocking
    problem: str | None = None
    metadata: Metadata = {}
    if outcome.not_run:
        problem = f"It could not be read: {outcome.not_run}. {check.remedy}"
        is_blocking = check.blocking and not inputs.counts_as_unmerged
    else:
        if faults:
            problem = f"{len(faults)} found: {summary(faults)}. {check.remedy}"
            if check.blocking and inputs.key != CHECKPOINT and inputs.is_flush:
                _delay_checkpoints(context, inputs, outcome)
                is_blocking = False
        metadata = {
            "count": len(faults),
            "looked_at": "everything" if inputs.days is None else ", ".join(day.isoformat() for day in inputs.days),
            "found": dg.MetadataValue.json([msgspec.to_builtins(fault) for fault in faults]),
        }
    return dg.AssetCheckResult(
        passed=problem is None,
        asset_key=inputs.key,
        check_name=check.name,
        severity=dg.AssetCheckSeverity.ERROR if is_blocking else dg.AssetCheckSeverity.WARN,
        description=problem,
        metadata=metadata,
    )


def _delay_checkpoints(context: dg.AssetCheckExecutionContext, inputs: CheckInputs, outcome: _Outcome) -> None:
    """Have the run make no new checkpoints of gateways with faults, or of any gateway if not all faults are listed."""
    from lakehouse.checks import MAX_RESULTS

    faults, run_state = outcome.faults, inputs.run_state
    is_whole_list = len(faults) < MAX_RESULTS
    # None: all gateways
    gateways: set[str | None] = {fault.gateway for fault in faults} if is_whole_list else {None}
    name = f"{outcome.check.name} of {inputs.key.to_user_string()}"
    for gateway in gateways:
        run_state.faults.setdefault(gateway, []).append(f"{name} found {len(faults)}")
    if inputs.key == DELTAS:
        run_state.gateways_with_faulty_history |= gateways
    defer_failure(context, run_state, IntegrityError(f"{len(faults)} found: {summary(faults)}"), f"{name} failed")
