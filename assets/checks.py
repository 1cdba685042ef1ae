"""What must hold before anything follows: nothing lost, nothing twice, state equal to history, frames to their cut.

Values that do not fit their column are reported, and hold nothing up. A run that merges a table takes the merge's own
checks of it; the nightly audit looks at everything.
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
"""Findings that a check lists at most."""
PUBLISHED = dg.AssetCheckKey(CHECKPOINT, "checkpoint_equals_cut")
"""The check of checkpoints, which a flush runs behind its cut."""
NAMED = 3
"""Findings in a check's description; its metadata has all of them."""


@dataclass(frozen=True)
class Scope:
    """What a check looks at, and with what."""

    spark: SparkSession
    lake: LakeResource
    store: PipelineStore
    run_state: RunState
    days: list[date] | None
    """The days that the run is about; None: all days."""
    seed: int
    """Chooses the sample of rows."""
    of_flush: bool
    """Whether the run carries deltas too, so that the check of the checkpoints looks at a sample."""

    @cached_property
    def history(self) -> "HistoryFaults":
        """What is wrong with the history: its checks share one Spark job."""
        from lakehouse.checks import history_faults

        return history_faults(self.spark, self.store, self.lake.names, self.days)

    @property
    def altered_deltas(self) -> Sequence[msgspec.Struct]:
        """Days of the history with deltas whose ids are not those of their contents; looked for in the audit alone."""
        from lakehouse.checks import altered_deltas

        return altered_deltas(self.spark, self.lake.names) if self.days is None else []


class Check(NamedTuple):
    """One thing that must hold."""

    name: str
    description: str
    find: Callable[[Scope], Sequence[msgspec.Struct]]
    """Looks for what must not be; empty when all is well."""
    remedy: str
    blocking: bool = True
    """Whether what follows is not made; else it is a warning."""


def checks(snapshot: SchemaSnapshot) -> list[dg.AssetChecksDefinition]:
    """Those of the history, of each state table and of the checkpoint; each asset's in one step.

    In a run for some days they look at those; in one for none, such as the nightly audit, at everything. What they find
    in a run of the flush sensor holds up the checkpoints of the gateways that it is about, and nobody else's.
    """
    return [
        _held(DELTAS, _OF_HISTORY),
        *(
            _held(state_key(schema.table, where), _of_table(schema.table, where), (where, schema.table))
            for schema, where in snapshot.states
        ),
        _held(CHECKPOINT, _OF_CHECKPOINT, behind=[CUT]),
    ]


_OF_HISTORY = (
    Check(
        "ledger_equals_lake",
        "On every day of arrival the lake holds what the gateway acknowledged and the flush confirmed: nothing lost.",
        lambda scope: scope.history.differences,
        "What is not confirmed is not trimmed: compare the day's batches in `deltas` with staging's ledger.",
    ),
    Check(
        "delta_once",
        "No client's delta is in the history twice.",
        lambda scope: scope.history.duplicates,
        "State tables are not changed by it, counts over `deltas` are: look which `batch_id` each copy has.",
    ),
    Check(
        "no_future_hlc",
        "No delta is stamped further ahead of its arrival than a gateway lets pass.",
        lambda scope: scope.history.future,
        "Such a delta wins until that time: look at its writer's clock, and at the gateway's.",
    ),
    Check(
        "ids_equal_contents",
        "In the audit: each delta has the contents that its id is the hash of.",
        lambda scope: scope.altered_deltas,
        "Do not rebuild tables from these days: put their files back from a backup.",
        blocking=False,
    ),
)


def _of_table(table: str, namespace: str) -> tuple[Check, ...]:
    def doubled_rows(scope: Scope) -> Sequence[msgspec.Struct]:
        from lakehouse.checks import duplicate_keys

        report = scope.run_state.merged.get((namespace, table))
        if report is not None and report.duplicates == 0:  # the merge has looked at the rows that it read
            return []
        return duplicate_keys(scope.spark, table, scope.lake.names_in(namespace))

    def unmerged_rows(scope: Scope) -> Sequence[msgspec.Struct]:
        from lakehouse.tables.state_audit import unlike_merge

        report = scope.run_state.merged.get((namespace, table))
        if report is not None and report.differences == 0:  # the merge has compared a row of each slice
            return []
        names, whose = scope.lake.names_in(namespace), scope.run_state.gateways_in(namespace)
        return unlike_merge(scope.spark, table, names, gateways=whose, days=scope.days, seed=scope.seed)

    def unlike_whole_history(scope: Scope) -> Sequence[msgspec.Struct]:
        from lakehouse.tables.history_check import unlike_history

        if scope.days is not None:  # a run for some days has compared what it merged
            return []
        names, whose = scope.lake.names_in(namespace), scope.run_state.gateways_in(namespace)
        return unlike_history(scope.spark, table, names, gateways=whose)

    def unfit(scope: Scope) -> Sequence[msgspec.Struct]:
        from lakehouse.checks import unfit_values

        return unfit_values(scope.spark, table, scope.lake.names_in(namespace))

    remedy = "Launch the job `tables` with `rebuild: true` for this table: it is made again from the history."
    return (
        Check("row_once", f"No row of `{table}` is there twice.", doubled_rows, remedy),
        Check(
            "state_equals_merge",
            f"A sample of rows of `{table}` is what the gateway's own merge makes of their deltas.",
            unmerged_rows,
            remedy,
        ),
        Check(
            "state_equals_history",
            f"In the audit: `{table}` has the rows and values that its whole history makes, by gateway and day.",
            unlike_whole_history,
            remedy,
        ),
        Check(
            "values_fit",
            f"Every value of `{table}` is of its column's type.",
            unfit,
            "The column has null there, and `lakesync.rejected` the value: have it written as what the schema says.",
            blocking=False,
        ),
    )


def _unlike_cuts(scope: Scope) -> Sequence[msgspec.Struct]:
    from lakehouse.checkpoints.published import unlike_cut

    newest = [scope.store.newest_cut(gateway) for gateway in scope.store.gateways()]
    return [
        difference
        for cut in newest
        if cut is not None
        for difference in unlike_cut(
            scope.spark, cut, scope.run_state.names_of(cut.gateway), seed=scope.seed, whole=not scope.of_flush
        )
    ]


_OF_CHECKPOINT = (
    Check(
        "checkpoint_equals_cut",
        "Each gateway's newest frames hold the rows of the snapshots that its cut names; all of them in the audit, a "
        "sample in a flush.",
        _unlike_cuts,
        "Clients are served these frames: flush the gateway again, which makes a newer cut, and look at the storage.",
    ),
)


def named(found: Sequence[msgspec.Struct]) -> str:
    """The first of what was found, each by its gateway, what it is there, and its day; no values, as alerts tell it."""
    first = [" ".join(_name(one)) for one in found[:NAMED]]
    return ", ".join(first) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")


def _name(one: msgspec.Struct) -> Iterator[str]:
    first = msgspec.structs.astuple(one)[:2]
    yield from map(str, first)
    day = getattr(one, "day", "")
    if day and day not in first:
        yield day


def _held(
    key: dg.AssetKey,
    held: Sequence[Check],
    table: tuple[str, str] | None = None,
    behind: Sequence[dg.AssetKey] = (),
) -> dg.AssetChecksDefinition:
    """The checks of an asset as one step.

    Args:
        key: the asset.
        held: the checks.
        table: the namespace and the name of a state table.
        behind: further assets after which the step runs.
    """
    by_key = {dg.AssetCheckKey(key, check.name): check for check in held}

    @dg.multi_asset_check(
        name=check_step(key),
        specs=[
            dg.AssetCheckSpec(
                one.name, asset=key, description=one.description, blocking=one.blocking, additional_deps=behind
            )
            for one in held
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
            of_flush = continues_on_failure(context.run)
            scope = Scope(pyspark.spark_session, lake, staging.store, run_state, days, seed, of_flush)
            visit = Visit(_state(scope, key, table), staging.now_ms())
            unread: dict[dg.AssetCheckKey, str] = {}
            for one, check in wanted.items():
                try:
                    found[one] = check.find(scope)
                except Exception as error:
                    if not is_final(context, error):
                        raise
                    unread[one] = brief(error)
                    if table is None or not of_flush:
                        context.log.exception("%s cannot be checked", one.to_user_string())
                        continue
                    run_state.unmerged.setdefault(table, Unmerged(f"{one.name} could not look: {brief(error)}", None))
                    set_aside(context, run_state, error, f"{one.name} of {key.to_user_string()} could not look")
            faults = [one for one, check in wanted.items() if check.blocking and found.get(one)]
            if context.run.job_name == AUDIT and not (unread or faults):
                staging.store.put_mark(audit_mark(key.to_user_string()), msgspec.json.encode(visit).decode())
        for one, check in wanted.items():
            if one in unread:
                holds_up = check.blocking and (table is None or not of_flush)
                yield dg.AssetCheckResult(
                    passed=False,
                    asset_key=one.asset_key,
                    check_name=one.name,
                    severity=dg.AssetCheckSeverity.ERROR if holds_up else dg.AssetCheckSeverity.WARN,
                    description=f"It could not be read: {unread[one]}. {check.remedy}",
                )
                continue
            holds_up = check.blocking
            if found[one] and check.blocking and key != CHECKPOINT and continues_on_failure(context.run):
                _hold_back(context, run_state, one, found[one])
                holds_up = False
            yield _result(one, check, found[one], days, blocking=holds_up)

    return check


def _state(scope: Scope, key: dg.AssetKey, table: tuple[str, str] | None) -> str:
    """The state of an asset, which differs once it was written."""
    from lakehouse.table_definitions import version_if_there

    if key == CHECKPOINT:
        return checkpoint_state(scope.store.backlog())
    name = scope.lake.names.deltas if table is None else scope.lake.names_in(table[0]).state(table[1])
    version = version_if_there(scope.spark, name)
    return str(version.snapshot_id if version is not None else None)


def _hold_back(
    context: dg.AssetCheckExecutionContext,
    run_state: RunState,
    key: dg.AssetCheckKey,
    found: Sequence[msgspec.Struct],
) -> None:
    """Have the gateways that something was found of keep their checkpoints; all where not everything is listed."""
    gateways = {getattr(one, "gateway", None) for one in found} if len(found) < LIMIT else {None}
    check = f"{key.name} of {key.asset_key.to_user_string()}"
    for gateway in gateways:
        run_state.faults.setdefault(gateway, []).append(f"{check} found {len(found)}")
    if key.asset_key == DELTAS:
        run_state.doubted |= gateways
    set_aside(context, run_state, IntegrityError(f"{len(found)} found: {named(found)}"), f"{check} failed")


def _result(
    key: dg.AssetCheckKey,
    check: Check,
    found: Sequence[msgspec.Struct],
    days: list[date] | None,
    *,
    blocking: bool,
) -> dg.AssetCheckResult:
    looked_at = "everything" if days is None else ", ".join(day.isoformat() for day in days)
    return dg.AssetCheckResult(
        passed=not found,
        asset_key=key.asset_key,
        check_name=key.name,
        severity=dg.AssetCheckSeverity.ERROR if blocking else dg.AssetCheckSeverity.WARN,
        description=f"{len(found)} found: {named(found)}. {check.remedy}" if found else None,
        metadata={
            "count": len(found),
            "looked_at": looked_at,
            "found": dg.MetadataValue.json([msgspec.to_builtins(one) for one in found]),
        },
    )
