"""Creates the Dagster asset checks of the history, the state tables and the checkpoints.

The history is the Iceberg table `deltas` of all changes (deltas) that clients pushed to gateways; a gateway is one
app's stream of deltas. A state table has the current rows of one synced table, merged from the history. A checkpoint is
a gateway's rows in files, from which new clients start. A `Check` says what is compared, which function of `lakehouse`
finds the faults, and how to mend one. The code location (`lakesync_dagster.definitions`) calls `checks`.

A run for some UTC days of arrival (when gateways received the deltas) checks these days; a run without days, such as
the audit (a nightly job that runs every check), checks everything. If a run of the flush sensor finds a fault, only the
checkpoints of the affected gateways are delayed: the failure is deferred, which means that the run continues, and fails
at its end.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import dagster as dg
import msgspec
from pyspark.sql import SparkSession

from assets.asset_metadata import Metadata
from assets.failure_policy import brief, defer_failure, failure_policy, is_final
from assets.names import AUDIT, CHECKPOINT, DELTAS, SNAPSHOTS, check_step, continues_on_failure, state_key
from assets.partitions import days_in_tags
from lakehouse.faults import Fault
from lakehouse.marks import audit_mark
from lakehouse.run_state import RunState, Unmerged
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import Visit, checkpoint_state
from lakesync.model.errors import IntegrityError
from lakesync.staging.store.pipeline import PipelineStore
from resources.spark import SparkConnectResource
from resources.stores import LakeResource, StagingResource

if TYPE_CHECKING:
    from lakehouse.checks import HistoryFaults


@dataclass(frozen=True)
class CheckInputs:
    """What the checks of one step read: their asset, the connections of their run, and the days to look at."""

    key: dg.AssetKey
    """The asset."""
    table: str
    """Name of the state table; empty for another asset."""
    namespace: str
    """Namespace of the state table's gateways; empty for the shared one, and for another asset."""
    spark: SparkSession
    lake: LakeResource
    store: PipelineStore
    run_state: RunState
    """What the run's earlier steps merged, and which failures they deferred."""
    days: list[date] | None
    """UTC days of arrival to check; None for all, as in the audit."""
    seed: int
    """Chooses the sample of rows."""
    is_flush: bool
    """Whether the flush sensor requested the run. Then only a sample of each checkpoint's rows is compared."""

    @property
    def counts_as_unmerged(self) -> bool:
        """Whether a check that could not run counts as if its table was not merged: in a flush."""
        return self.is_flush and bool(self.table)

    @cached_property
    def history(self) -> "HistoryFaults":
        """The faults of the history. Its checks share one Spark job."""
        from lakehouse.checks import history_faults

        return history_faults(self.spark, self.store, self.lake.names, self.days)

    def altered_deltas(self) -> Sequence[Fault]:
        """Search the history for days with deltas whose id is not the hash of their contents; in the audit only."""
        from lakehouse.altered_deltas import altered_deltas

        return altered_deltas(self.spark, self.lake.names) if self.days is None else []


class Check(NamedTuple):
    """One check of an asset."""

    name: str
    description: str
    find: Callable[[CheckInputs], Sequence[Fault]]
    """Returns the faults; empty if the check passes."""
    remedy: str
    """What to do about a fault."""
    blocking: bool = True
    """Whether a fault stops downstream assets; if not, it is a warning."""


class _Outcome(NamedTuple):
    """What a check has found."""

    check: Check
    faults: Sequence[Fault] = ()
    not_run: str = ""
    """Why the check could not run; empty if it did."""


HISTORY_CHECKS = (
    Check(
        "ledger_equals_lake",
        "On every day of arrival the lake has exactly the deltas that flushes have confirmed.",
        lambda inputs: inputs.history.differences,
        "Staging trims confirmed deltas only: compare the day's batches in `deltas` with staging's ledger.",
    ),
    Check(
        "delta_once",
        "No client's delta is in the history twice.",
        lambda inputs: inputs.history.duplicates,
        "It does not change state tables, only counts over `deltas`: see which `batch_id` each copy has.",
    ),
    Check(
        "no_future_hlc",
        "No delta is stamped further ahead of its arrival than a gateway accepts.",
        lambda inputs: inputs.history.future,
        "Such a delta wins until that time: compare its writer's clock with the gateway's.",
    ),
    Check(
        "ids_equal_contents",
        "In the audit: the id of each delta is the hash of its contents.",
        CheckInputs.altered_deltas,
        "Do not rebuild tables from these days: restore their files from a backup.",
        blocking=False,
    ),
)


def _duplicate_rows(inputs: CheckInputs) -> Sequence[Fault]:
    """Return the rows that the state table has more than once."""
    from lakehouse.checks import duplicate_keys

    report = inputs.run_state.merged.get((inputs.namespace, inputs.table))
    if report is not None and report.duplicates == 0:  # this run's merge has checked the rows that it read
        return []
    return duplicate_keys(inputs.spark, inputs.table, inputs.lake.names_in(inputs.namespace))


def _rows_unlike_gateway_merge(inputs: CheckInputs) -> Sequence[Fault]:
    """Return rows of a sample of the state table that differ from the gateway's own merge."""
    from lakehouse.tables.audit import rows_unlike_merge

    report = inputs.run_state.merged.get((inputs.namespace, inputs.table))
    if report is not None and report.differences == 0:  # this run's merge has compared a sample itself
        return []
    names, gateways = inputs.lake.names_in(inputs.namespace), inputs.run_state.gateways_in(inputs.namespace)
    return rows_unlike_merge(inputs.spark, inputs.table, names, gateways=gateways, days=inputs.days, seed=inputs.seed)


def _days_unlike_whole_history(inputs: CheckInputs) -> Sequence[Fault]:
    """Return the days on which the state table differs from its whole history; in the audit only."""
    from lakehouse.tables.audit import days_unlike_history

    if inputs.days is not None:
        return []
    names, gateways = inputs.lake.names_in(inputs.namespace), inputs.run_state.gateways_in(inputs.namespace)
    return days_unlike_history(inputs.spark, inputs.table, names, gateways=gateways)


def _values_unlike_type(inputs: CheckInputs) -> Sequence[Fault]:
    """Return the state table's values that do not fit their column."""
    from lakehouse.checks import unfit_values

    return unfit_values(inputs.spark, inputs.table, inputs.lake.names_in(inputs.namespace))


def table_checks(table: str) -> tuple[Check, ...]:
    """Return the checks of a state table.

    Args:
        table: the state table's name.
    """
    remedy = "Launch the job `tables` with `rebuild: true` for this table, which merges it again from the history."
    return (
        Check("row_once", f"No row of `{table}` is stored twice.", _duplicate_rows, remedy),
        Check(
            "state_equals_merge",
            f"A sample of rows of `{table}` equals the gateway's own merge of their deltas.",
            _rows_unlike_gateway_merge,
            remedy,
        ),
        Check(
            "state_equals_history",
            f"In the audit: `{table}` has the rows and values of its whole history, by gateway and day.",
            _days_unlike_whole_history,
            remedy,
        ),
        Check(
            "values_fit",
            f"Every value of `{table}` is of its column's type.",
            _values_unlike_type,
            "The column has null there, and `lakesync.rejected` the value: write a value of the schema's type.",
            blocking=False,
        ),
    )


def _checkpoint_differences(inputs: CheckInputs) -> Sequence[Fault]:
    """Return the differences between each gateway's newest checkpoint and the state tables that it was made from."""
    from lakehouse.checkpoints.audit import checkpoint_differences

    newest = [inputs.store.newest_checkpoint(gateway) for gateway in inputs.store.gateways()]
    return [
        difference
        for each in newest
        if each is not None
        for difference in checkpoint_differences(
            inputs.spark, each, inputs.run_state.names_of(each.gateway), seed=inputs.seed, all_rows=not inputs.is_flush
        )
    ]


CHECKPOINT_CHECKS = (
    Check(
        "checkpoint_equals_snapshots",
        "Each gateway's newest frames have the rows of the snapshots that they were made of; all are compared in the "
        "audit, a sample in a flush.",
        _checkpoint_differences,
        "New clients receive these frames: flush the gateway, which makes newer ones, and check the storage.",
    ),
)


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
    """Return the first faults as text: gateway, row or table, and day. Alerts contain it, so it has no values of rows.

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
