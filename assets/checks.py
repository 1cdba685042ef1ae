"""The checks of the history, the state tables and the checkpoints. `lakehouse` finds the faults.

In a run for some days the checks look at those days; in a run without days, such as the nightly audit, at everything.
A fault found in a run of the flush sensor delays the checkpoints of its gateways only. Values that do not fit their
column are warnings.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import dagster as dg
import msgspec
from pyspark.sql import SparkSession

from assets.asset_metadata import (
    AUDIT,
    CHECKPOINT,
    CUT,
    DELTAS,
    check_step,
    continues_on_failure,
    days_in_tags,
    state_key,
)
from assets.failure_policy import brief, failure_policy, is_final, set_aside
from lakehouse.mark_names import audit_mark
from lakehouse.run_state import RunState, Unmerged
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import Visit, checkpoint_state
from lakesync.model.errors import IntegrityError
from lakesync.staging.store import PipelineStore
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakehouse.checks import HistoryFaults

LIMIT = 100
"""Faults that a check lists at most."""
PUBLISHED = dg.AssetCheckKey(CHECKPOINT, "checkpoint_equals_cut")
"""The check of checkpoints, which a flush runs after it has made them."""
NAMED = 3
"""Faults that a check's description names. Its metadata lists all."""


@dataclass(frozen=True)
class Scope:
    """What a check reads, and which days it looks at."""

    spark: SparkSession
    lake: LakeResource
    store: PipelineStore
    run_state: RunState
    days: list[date] | None
    """UTC days of arrival; None: all."""
    seed: int
    """Chooses the sample of rows."""
    is_flush: bool
    """Whether the run is one of the flush sensor, which checks a sample of the checkpoints."""

    @cached_property
    def history(self) -> "HistoryFaults":
        """The faults of the history. Its checks share one Spark job."""
        from lakehouse.checks import history_faults

        return history_faults(self.spark, self.store, self.lake.names, self.days)

    @property
    def altered_deltas(self) -> Sequence[msgspec.Struct]:
        """Days of the history with deltas whose id is not the hash of their contents; searched in the audit only."""
        from lakehouse.checks import altered_deltas

        return altered_deltas(self.spark, self.lake.names) if self.days is None else []


class Check(NamedTuple):
    """One check of an asset."""

    name: str
    description: str
    find: Callable[[Scope], Sequence[msgspec.Struct]]
    """Returns the faults; empty if there are none."""
    remedy: str
    blocking: bool = True
    """Whether a fault stops downstream assets; otherwise it is a warning."""


def checks(snapshot: SchemaSnapshot) -> list[dg.AssetChecksDefinition]:
    """Create the checks of the history, of each state table and of the checkpoints; those of one asset are one step.

    Args:
        snapshot: names the state tables.
    """
    return [
        _checks_of(DELTAS, _HISTORY_CHECKS),
        *(
            _checks_of(state_key(schema.table, where), _table_checks(schema.table, where), (where, schema.table))
            for schema, where in snapshot.states
        ),
        _checks_of(CHECKPOINT, _CHECKPOINT_CHECKS, after=[CUT]),
    ]


_HISTORY_CHECKS = (
    Check(
        "ledger_equals_lake",
        "On every day of arrival the lake has exactly the deltas that flushes have confirmed.",
        lambda scope: scope.history.differences,
        "Staging trims confirmed deltas only: compare the day's batches in `deltas` with staging's ledger.",
    ),
    Check(
        "delta_once",
        "No client's delta is in the history twice.",
        lambda scope: scope.history.duplicates,
        "It does not change state tables, only counts over `deltas`: see which `batch_id` each copy has.",
    ),
    Check(
        "no_future_hlc",
        "No delta is stamped further ahead of its arrival than a gateway accepts.",
        lambda scope: scope.history.future,
        "Such a delta wins until that time: compare its writer's clock with the gateway's.",
    ),
    Check(
        "ids_equal_contents",
        "In the audit: the id of each delta is the hash of its contents.",
        lambda scope: scope.altered_deltas,
        "Do not rebuild tables from these days: restore their files from a backup.",
        blocking=False,
    ),
)


def _table_checks(table: str, namespace: str) -> tuple[Check, ...]:
    def doubled_rows(scope: Scope) -> Sequence[msgspec.Struct]:
        from lakehouse.checks import duplicate_keys

        report = scope.run_state.merged.get((namespace, table))
        if report is not None and report.duplicates == 0:  # the merge has checked the rows that it read
            return []
        return duplicate_keys(scope.spark, table, scope.lake.names_in(namespace))

    def unmerged_rows(scope: Scope) -> Sequence[msgspec.Struct]:
        from lakehouse.tables.state_audit import rows_unlike_merge

        report = scope.run_state.merged.get((namespace, table))
        if report is not None and report.differences == 0:  # the merge has compared a row of each slice
            return []
        names, whose = scope.lake.names_in(namespace), scope.run_state.gateways_in(namespace)
        return rows_unlike_merge(scope.spark, table, names, gateways=whose, days=scope.days, seed=scope.seed)

    def unlike_whole_history(scope: Scope) -> Sequence[msgspec.Struct]:
        from lakehouse.tables.history_check import unlike_history

        if scope.days is not None:  # a run for some days has compared what it merged
            return []
        names, whose = scope.lake.names_in(namespace), scope.run_state.gateways_in(namespace)
        return unlike_history(scope.spark, table, names, gateways=whose)

    def unfit(scope: Scope) -> Sequence[msgspec.Struct]:
        from lakehouse.checks import unfit_values

        return unfit_values(scope.spark, table, scope.lake.names_in(namespace))

    remedy = "Launch the job `tables` with `rebuild: true` for this table, which merges it again from the history."
    return (
        Check("row_once", f"No row of `{table}` is stored twice.", doubled_rows, remedy),
        Check(
            "state_equals_merge",
            f"A sample of rows of `{table}` equals the gateway's own merge of their deltas.",
            unmerged_rows,
            remedy,
        ),
        Check(
            "state_equals_history",
            f"In the audit: `{table}` has the rows and values of its whole history, by gateway and day.",
            unlike_whole_history,
            remedy,
        ),
        Check(
            "values_fit",
            f"Every value of `{table}` is of its column's type.",
            unfit,
            "The column has null there, and `lakesync.rejected` the value: write a value of the schema's type.",
            blocking=False,
        ),
    )


def _checkpoint_differencess(scope: Scope) -> Sequence[msgspec.Struct]:
    from lakehouse.checkpoints.published import checkpoint_differences

    newest = [scope.store.newest_checkpoint(gateway) for gateway in scope.store.gateways()]
    return [
        difference
        for cut in newest
        if cut is not None
        for difference in checkpoint_differences(
            scope.spark, cut, scope.run_state.names_of(cut.gateway), seed=scope.seed, whole=not scope.is_flush
        )
    ]


_CHECKPOINT_CHECKS = (
    Check(
        "checkpoint_equals_cut",
        "Each gateway's newest frames have the rows of the snapshots that they were made of; all are compared in the "
        "audit, a sample in a flush.",
        _checkpoint_differencess,
        "New clients receive these frames: flush the gateway, which makes newer ones, and check the storage.",
    ),
)


def summary(found: Sequence[msgspec.Struct]) -> str:
    """Return the first faults as text: gateway, what it is, and day. It has no values, because alerts contain it."""
    first = [" ".join(_name(one)) for one in found[:NAMED]]
    return ", ".join(first) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")


def _name(one: msgspec.Struct) -> Iterator[str]:
    first = msgspec.structs.astuple(one)[:2]
    yield from map(str, first)
    day = getattr(one, "day", "")
    if day and day not in first:
        yield day


def _checks_of(
    key: dg.AssetKey,
    checks: Sequence[Check],
    table: tuple[str, str] | None = None,
    after: Sequence[dg.AssetKey] = (),
) -> dg.AssetChecksDefinition:
    """Create the checks of an asset as one step.

    Args:
        key: the asset.
        checks: its checks.
        table: namespace and name of a state table; None for another asset.
        after: further assets after which the step runs.
    """
    by_key = {dg.AssetCheckKey(key, check.name): check for check in checks}

    @dg.multi_asset_check(
        name=check_step(key),
        specs=[
            dg.AssetCheckSpec(
                one.name, asset=key, description=one.description, blocking=one.blocking, additional_deps=after
            )
            for one in checks
        ],
        can_subset=True,
    )
    def check(
        context: dg.AssetCheckExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> Iterator[dg.AssetCheckResult]:
        seed = int(context.run.run_id[:8], 16)
        days = None if key == CHECKPOINT else days_in_tags(context.run.tags)  # whose partitions are gateways
        wanted = {one: by_key[one] for one in by_key if one in context.selected_asset_check_keys}
        found: dict[dg.AssetCheckKey, Sequence[msgspec.Struct]] = {}
        with failure_policy(context, pyspark):
            is_flush = continues_on_failure(context.run)
            scope = Scope(pyspark.spark_session, lake, staging.store, run_state, days, seed, is_flush)
            visit = Visit(_state(scope, key, table), staging.now_ms())
            unreadable: dict[dg.AssetCheckKey, str] = {}
            for one, check in wanted.items():
                try:
                    found[one] = check.find(scope)
                except Exception as error:
                    if not is_final(context, error):
                        raise
                    unreadable[one] = brief(error)
                    if table is None or not is_flush:
                        context.log.exception("%s cannot be checked", one.to_user_string())
                        continue
                    run_state.unmerged.setdefault(table, Unmerged(f"{one.name} could not run: {brief(error)}", None))
                    set_aside(context, run_state, error, f"{one.name} of {key.to_user_string()} could not run")
            faults = [one for one, check in wanted.items() if check.blocking and found.get(one)]
            if context.run.job_name == AUDIT and not (unreadable or faults):
                staging.store.put_mark(audit_mark(key.to_user_string()), msgspec.json.encode(visit).decode())
        for one, check in wanted.items():
            if one in unreadable:
                is_blocking = check.blocking and (table is None or not is_flush)
                yield dg.AssetCheckResult(
                    passed=False,
                    asset_key=one.asset_key,
                    check_name=one.name,
                    severity=dg.AssetCheckSeverity.ERROR if is_blocking else dg.AssetCheckSeverity.WARN,
                    description=f"It could not be read: {unreadable[one]}. {check.remedy}",
                )
                continue
            is_blocking = check.blocking
            if found[one] and check.blocking and key != CHECKPOINT and continues_on_failure(context.run):
                _delay_checkpoints(context, run_state, one, found[one])
                is_blocking = False
            yield _result(one, check, found[one], days, blocking=is_blocking)

    return check


def _state(scope: Scope, key: dg.AssetKey, table: tuple[str, str] | None) -> str:
    """Return an asset's state as text, which changes whenever the asset is written."""
    from lakehouse.table_definitions import version_if_there

    if key == CHECKPOINT:
        return checkpoint_state(scope.store.backlog())
    name = scope.lake.names.deltas if table is None else scope.lake.names_in(table[0]).state(table[1])
    version = version_if_there(scope.spark, name)
    return str(version.snapshot_id if version is not None else None)


def _delay_checkpoints(
    context: dg.AssetCheckExecutionContext,
    run_state: RunState,
    key: dg.AssetCheckKey,
    found: Sequence[msgspec.Struct],
) -> None:
    """Keep the checkpoints of the gateways with faults; of all gateways if not every fault is listed."""
    gateways = {getattr(one, "gateway", None) for one in found} if len(found) < LIMIT else {None}
    check = f"{key.name} of {key.asset_key.to_user_string()}"
    for gateway in gateways:
        run_state.faults.setdefault(gateway, []).append(f"{check} found {len(found)}")
    if key.asset_key == DELTAS:
        run_state.doubted |= gateways
    set_aside(context, run_state, IntegrityError(f"{len(found)} found: {summary(found)}"), f"{check} failed")


def _result(
    key: dg.AssetCheckKey,
    check: Check,
    found: Sequence[msgspec.Struct],
    days: list[date] | None,
    *,
    blocking: bool,
) -> dg.AssetCheckResult:
    checked_days = "everything" if days is None else ", ".join(day.isoformat() for day in days)
    return dg.AssetCheckResult(
        passed=not found,
        asset_key=key.asset_key,
        check_name=key.name,
        severity=dg.AssetCheckSeverity.ERROR if blocking else dg.AssetCheckSeverity.WARN,
        description=f"{len(found)} found: {summary(found)}. {check.remedy}" if found else None,
        metadata={
            "count": len(found),
            "looked_at": checked_days,
            "found": dg.MetadataValue.json([msgspec.to_builtins(one) for one in found]),
        },
    )
