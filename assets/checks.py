"""What must hold before anything follows: nothing lost, nothing twice, state equal to history, frames to their cut.

Values that do not fit their column are told, and hold nothing up.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from typing import NamedTuple

import dagster as dg
import msgspec

from assets.labels import CHECKPOINT, DELTAS, days_asked, state_key
from assets.outcome import outcome
from resources.pipeline import Pipeline
from resources.snapshot import SchemaSnapshot

NAMED = 3
"""Of what was found, told in a check's description; its metadata have them all."""


class Scope(NamedTuple):
    """What of a table is looked at: the days that the run is about, or all, and where samples begin."""

    days: list[date] | None
    seed: int


class Check(NamedTuple):
    """One thing that must hold."""

    name: str
    description: str
    find: Callable[[Pipeline, Scope], Sequence[msgspec.Struct]]
    """Looks for what must not be; empty when all is well."""
    remedy: str
    blocking: bool = True
    """Whether what follows is not made; else it is a warning."""


def checks(snapshot: SchemaSnapshot) -> list[dg.AssetChecksDefinition]:
    """Those of the history, of each state table and of the checkpoint; each asset's in one step.

    In a run for some days they look at those; in one for none, such as the nightly audit, at everything.
    """
    return [
        _held(DELTAS, _OF_HISTORY),
        *(_held(state_key(schema.table, where), _of_table(schema.table, where)) for schema, where in snapshot.states),
        _held(CHECKPOINT, _OF_CHECKPOINT),
    ]


def _unequal_days(pipeline: Pipeline, scope: Scope) -> Sequence[msgspec.Struct]:
    from resources.lake.checks import ledger_against_lake

    return ledger_against_lake(pipeline.spark, pipeline.store, pipeline.names, scope.days)


def _doubled_deltas(pipeline: Pipeline, scope: Scope) -> Sequence[msgspec.Struct]:
    from resources.lake.checks import duplicate_deltas

    return duplicate_deltas(pipeline.spark, pipeline.names, days=scope.days)


def _future_deltas(pipeline: Pipeline, scope: Scope) -> Sequence[msgspec.Struct]:
    from resources.lake.checks import future_deltas

    return future_deltas(pipeline.spark, pipeline.names, days=scope.days)


_OF_HISTORY = (
    Check(
        "ledger_equals_lake",
        "On every day of arrival the lake holds what the gateway acknowledged and the flush confirmed: nothing lost.",
        _unequal_days,
        "What is not confirmed is not trimmed: compare the day's batches in `deltas` with staging's ledger.",
    ),
    Check(
        "delta_once",
        "No client's delta is in the history twice.",
        _doubled_deltas,
        "State tables are not changed by it, counts over `deltas` are: look which `batch_id` each copy has.",
    ),
    Check(
        "no_future_hlc",
        "No delta is stamped further ahead of its arrival than a gateway lets pass.",
        _future_deltas,
        "Such a delta wins until that time: look at its writer's clock, and at the gateway's.",
    ),
)


def _of_table(table: str, namespace: str) -> tuple[Check, ...]:
    def doubled_rows(pipeline: Pipeline, _scope: Scope) -> Sequence[msgspec.Struct]:
        from resources.lake.checks import duplicate_keys

        return duplicate_keys(pipeline.spark, table, pipeline.names_in(namespace))

    def unmerged_rows(pipeline: Pipeline, scope: Scope) -> Sequence[msgspec.Struct]:
        from resources.lake.state.samples import unlike_merge

        names, whose = pipeline.names_in(namespace), pipeline.gateways_in(namespace)
        return unlike_merge(pipeline.spark, table, names, gateways=whose, days=scope.days, seed=scope.seed)

    def unfit(pipeline: Pipeline, _scope: Scope) -> Sequence[msgspec.Struct]:
        from resources.lake.checks import unfit_values

        return unfit_values(pipeline.spark, table, pipeline.names_in(namespace))

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
            "values_fit",
            f"Every value of `{table}` is of its column's type.",
            unfit,
            "The column has null there, and `lakesync.rejected` the value: have it written as what the schema says.",
            blocking=False,
        ),
    )


def _unlike_cuts(pipeline: Pipeline, scope: Scope) -> Sequence[msgspec.Struct]:
    from resources.lake.cuts.published import unlike_cut

    newest = [pipeline.store.newest_cut(gateway) for gateway in pipeline.store.gateways()]
    return [
        difference
        for cut in newest
        if cut is not None
        for difference in unlike_cut(pipeline.spark, cut, pipeline.names_of(cut.gateway), seed=scope.seed)
    ]


_OF_CHECKPOINT = (
    Check(
        "checkpoint_equals_cut",
        "Each gateway's newest frames hold the rows of the snapshots that its cut names.",
        _unlike_cuts,
        "Clients are served these frames: flush the gateway again, which makes a newer cut, and look at the storage.",
    ),
)


def named(found: Sequence[msgspec.Struct]) -> str:
    """The first of what was found, each by its gateway and what it is there; no values, as alerts carry it away."""
    first = [" ".join(str(value) for value in msgspec.structs.astuple(one)[:2]) for one in found[:NAMED]]
    return ", ".join(first) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")


def _held(key: dg.AssetKey, held: Sequence[Check]) -> dg.AssetChecksDefinition:
    by_key = {dg.AssetCheckKey(key, check.name): check for check in held}

    @dg.multi_asset_check(
        name=f"{'__'.join(key.path)}_checks",
        specs=[
            dg.AssetCheckSpec(one.name, asset=key, description=one.description, blocking=one.blocking) for one in held
        ],
        can_subset=True,
    )
    def check(
        context: dg.AssetCheckExecutionContext, pipeline: dg.ResourceParam[Pipeline]
    ) -> Iterator[dg.AssetCheckResult]:
        scope = Scope(days_asked(context.run.tags), seed=int(context.run.run_id[:8], 16))
        wanted = {one: by_key[one] for one in by_key if one in context.selected_asset_check_keys}
        with outcome(context, pipeline):
            found = {one: check.find(pipeline, scope) for one, check in wanted.items()}
        for one, check in wanted.items():
            yield _result(one, check, found[one], scope)

    return check


def _result(key: dg.AssetCheckKey, check: Check, found: Sequence[msgspec.Struct], scope: Scope) -> dg.AssetCheckResult:
    looked_at = "everything" if scope.days is None else ", ".join(day.isoformat() for day in scope.days)
    return dg.AssetCheckResult(
        passed=not found,
        asset_key=key.asset_key,
        check_name=key.name,
        severity=dg.AssetCheckSeverity.ERROR if check.blocking else dg.AssetCheckSeverity.WARN,
        description=f"{len(found)} found: {named(found)}. {check.remedy}" if found else None,
        metadata={
            "count": len(found),
            "looked_at": looked_at,
            "found": dg.MetadataValue.json([msgspec.to_builtins(one) for one in found]),
        },
    )
