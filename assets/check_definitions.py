"""Defines the checks of the history, the state tables and the checkpoints: what each finds, and how to mend it.

Functions of `lakehouse` find the faults. `assets.checks` turns the definitions into asset checks of Dagster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyspark.sql import SparkSession

from lakehouse.run_state import RunState
from lakesync.staging.store.pipeline import PipelineStore
from resources.lake import LakeResource

if TYPE_CHECKING:
    from lakehouse.checks import HistoryFaults


@dataclass(frozen=True)
class CheckScope:
    """What a check reads: the connections of its run, and the days of arrival to look at."""

    spark: SparkSession
    lake: LakeResource
    store: PipelineStore
    run_state: RunState
    days: list[date] | None
    """UTC days of arrival; None for all, as in the audit."""
    seed: int
    """Chooses the sample of rows."""
    is_flush: bool
    """Whether the flush sensor requested the run. Then only a sample of each checkpoint is compared."""

    @cached_property
    def history(self) -> "HistoryFaults":
        """The faults of the history. Its checks share one Spark job."""
        from lakehouse.checks import history_faults

        return history_faults(self.spark, self.store, self.lake.names, self.days)

    @property
    def altered_deltas(self) -> Sequence[msgspec.Struct]:
        """Days of the history with deltas whose id is not the hash of their contents. Only the audit searches them."""
        from lakehouse.checks import altered_deltas

        return altered_deltas(self.spark, self.lake.names) if self.days is None else []


class Check(NamedTuple):
    """One check of an asset."""

    name: str
    description: str
    find: Callable[[CheckScope], Sequence[msgspec.Struct]]
    """Returns the faults; empty if the check passes."""
    remedy: str
    """What to do about a fault."""
    blocking: bool = True
    """Whether a fault stops downstream assets; if not, it is a warning."""


HISTORY_CHECKS = (
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


def table_checks(table: str, namespace: str) -> tuple[Check, ...]:
    """Return the checks of a state table.

    Args:
        table: the state table's name.
        namespace: namespace of its gateways; empty for the shared one.
    """

    def duplicate_rows(scope: CheckScope) -> Sequence[msgspec.Struct]:
        from lakehouse.checks import duplicate_keys

        report = scope.run_state.merged.get((namespace, table))
        if report is not None and report.duplicates == 0:  # the merge has checked the rows that it read
            return []
        return duplicate_keys(scope.spark, table, scope.lake.names_in(namespace))

    def unmerged_rows(scope: CheckScope) -> Sequence[msgspec.Struct]:
        from lakehouse.tables.audit import rows_unlike_merge

        report = scope.run_state.merged.get((namespace, table))
        if report is not None and report.differences == 0:  # the merge has compared a row of each slice
            return []
        names, gateways = scope.lake.names_in(namespace), scope.run_state.gateways_in(namespace)
        return rows_unlike_merge(scope.spark, table, names, gateways=gateways, days=scope.days, seed=scope.seed)

    def unlike_whole_history(scope: CheckScope) -> Sequence[msgspec.Struct]:
        from lakehouse.tables.audit import unlike_history

        if scope.days is not None:  # the whole table is compared only in the audit
            return []
        names, gateways = scope.lake.names_in(namespace), scope.run_state.gateways_in(namespace)
        return unlike_history(scope.spark, table, names, gateways=gateways)

    def unfit(scope: CheckScope) -> Sequence[msgspec.Struct]:
        from lakehouse.checks import unfit_values

        return unfit_values(scope.spark, table, scope.lake.names_in(namespace))

    remedy = "Launch the job `tables` with `rebuild: true` for this table, which merges it again from the history."
    return (
        Check("row_once", f"No row of `{table}` is stored twice.", duplicate_rows, remedy),
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


def _checkpoint_differences(scope: CheckScope) -> Sequence[msgspec.Struct]:
    """Return the differences between each gateway's newest checkpoint and the state tables that it was made from."""
    from lakehouse.checkpoints.published import checkpoint_differences

    newest = [scope.store.newest_checkpoint(gateway) for gateway in scope.store.gateways()]
    return [
        difference
        for each in newest
        if each is not None
        for difference in checkpoint_differences(
            scope.spark, each, scope.run_state.names_of(each.gateway), seed=scope.seed, whole=not scope.is_flush
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
