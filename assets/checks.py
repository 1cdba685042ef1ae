"""Creates the Dagster asset checks of the history, the state tables and the checkpoints.

A run for some days checks these days; a run without days, such as the nightly audit, checks everything. If a run of the
flush sensor finds a fault, only the checkpoints of the affected gateways are delayed. The code location
(`lakesync_dagster.definitions`) calls this module.
"""

from collections.abc import Iterator, Sequence
from datetime import date

import dagster as dg
import msgspec

from assets.asset_metadata import (
    AUDIT,
    CHECKPOINT,
    DELTAS,
    SNAPSHOTS,
    check_step,
    continues_on_failure,
    days_in_tags,
    state_key,
)
from assets.check_definitions import CHECKPOINT_CHECKS, HISTORY_CHECKS, Check, CheckScope, table_checks
from assets.failure_policy import brief, failure_policy, is_final, set_aside
from lakehouse.marks import audit_mark
from lakehouse.run_state import RunState, Unmerged
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import Visit, checkpoint_state
from lakesync.model.errors import IntegrityError
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.spark import SparkConnectResource

MAX_FAULTS = 100
"""Number of faults that a check lists, at most. If it lists so many, there may be more."""
PUBLISHED = dg.AssetCheckKey(CHECKPOINT, "checkpoint_equals_snapshots")
"""The check of checkpoints, which a flush runs after it has made them."""
FAULTS_IN_DESCRIPTION = 3
"""Number of faults in a check's description. Its metadata lists all."""


def checks(snapshot: SchemaSnapshot) -> list[dg.AssetChecksDefinition]:
    """Create the checks of the history, of each state table and of the checkpoints; those of one asset are one step.

    Args:
        snapshot: the registered tables and connectors.
    """
    return [
        _checks_of(DELTAS, HISTORY_CHECKS),
        *(
            _checks_of(state_key(schema.table, where), table_checks(schema.table, where), (where, schema.table))
            for schema, where in snapshot.states
        ),
        _checks_of(CHECKPOINT, CHECKPOINT_CHECKS, after=[SNAPSHOTS]),
    ]


def summary(found: Sequence[msgspec.Struct]) -> str:
    """Return the first faults as text: gateway, key or table, and day. Alerts contain it, so it has no values of rows.

    Args:
        found: the faults.
    """
    first = [" ".join(_fault_name(fault)) for fault in found[:FAULTS_IN_DESCRIPTION]]
    more = len(found) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


def _fault_name(fault: msgspec.Struct) -> Iterator[str]:
    """Yield the parts of a fault's name. A fault's first two fields identify what it is about."""
    first = msgspec.structs.astuple(fault)[:2]
    yield from map(str, first)
    day = getattr(fault, "day", "")
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
        checks: the asset's checks.
        table: namespace and name, if the asset is a state table; None for another asset.
        after: further assets that must be materialised before the step runs.
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
        days = None if key == CHECKPOINT else days_in_tags(context.run.tags)  # a checkpoint's partition is a gateway
        wanted = {one: by_key[one] for one in by_key if one in context.selected_asset_check_keys}
        found: dict[dg.AssetCheckKey, Sequence[msgspec.Struct]] = {}
        with failure_policy(context, pyspark):
            is_flush = continues_on_failure(context.run)
            scope = CheckScope(pyspark.spark_session, lake, staging.store, run_state, days, seed, is_flush)
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


def _state(scope: CheckScope, key: dg.AssetKey, table: tuple[str, str] | None) -> str:
    """Return a text that changes whenever the asset is written, such as its snapshot id."""
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
    """Have the run make no new checkpoints of gateways with faults, or of any gateway if not all faults are listed."""
    gateways = {getattr(one, "gateway", None) for one in found} if len(found) < MAX_FAULTS else {None}
    check = f"{key.name} of {key.asset_key.to_user_string()}"
    for gateway in gateways:
        run_state.faults.setdefault(gateway, []).append(f"{check} found {len(found)}")
    if key.asset_key == DELTAS:
        run_state.gateways_with_faulty_history |= gateways
    set_aside(context, run_state, IntegrityError(f"{len(found)} found: {summary(found)}"), f"{check} failed")


def _result(
    key: dg.AssetCheckKey,
    check: Check,
    found: Sequence[msgspec.Struct],
    days: list[date] | None,
    *,
    blocking: bool,
) -> dg.AssetCheckResult:
    """Return a check's result with its faults."""
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
