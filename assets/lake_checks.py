"""Lists the checks of the history, the state tables and the checkpoints, whose steps `assets.checks` creates.

A `Check` says what is compared, which function of `lakehouse` finds the faults, and how to mend one. `assets.checks`
explains the terms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import dagster as dg
from pyspark.sql import SparkSession

from lakehouse.faults import Fault
from lakehouse.run_state import RunState
from lakesync.staging.store.pipeline import PipelineStore
from resources.stores import LakeResource

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
