"""What must hold before anything follows: ledger equals lake, a delta once, a row once."""

from collections.abc import Callable, Sequence

import dagster as dg
import msgspec

from assets.labels import DELTAS, state_key
from assets.outcome import outcome
from resources.pipeline import Pipeline
from resources.snapshot import SchemaSnapshot

Finding = Callable[[Pipeline], Sequence[msgspec.Struct]]
"""Looks for what must not be; empty when all is well."""


def checks(snapshot: SchemaSnapshot) -> list[dg.AssetChecksDefinition]:
    """The history's two checks and one for each state table."""
    return [
        _check(
            DELTAS,
            "ledger_equals_lake",
            "On every day of arrival the lake holds what the gateway acknowledged and the flush confirmed.",
            _unequal_days,
        ),
        _check(
            DELTAS,
            "delta_once",
            "No client's delta is in the history twice.",
            _doubled_deltas,
        ),
        *(_row_once(schema.table) for schema in snapshot.tables),
    ]


def _unequal_days(pipeline: Pipeline) -> Sequence[msgspec.Struct]:
    from resources.lake.checks import ledger_against_lake

    return ledger_against_lake(pipeline.spark, pipeline.store, pipeline.names)


def _doubled_deltas(pipeline: Pipeline) -> Sequence[msgspec.Struct]:
    from resources.lake.checks import duplicate_deltas

    return duplicate_deltas(pipeline.spark, pipeline.names)


def _row_once(table: str) -> dg.AssetChecksDefinition:
    def doubled_rows(pipeline: Pipeline) -> Sequence[msgspec.Struct]:
        from resources.lake.checks import duplicate_keys

        return duplicate_keys(pipeline.spark, table, pipeline.names)

    return _check(state_key(table), "row_once", f"No row of `{table}` is there twice.", doubled_rows)


def _check(key: dg.AssetKey, name: str, description: str, find: Finding) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=key, name=name, description=description, blocking=True)
    def check(context: dg.AssetCheckExecutionContext, pipeline: dg.ResourceParam[Pipeline]) -> dg.AssetCheckResult:
        with outcome(context, pipeline):
            found = [msgspec.to_builtins(finding) for finding in find(pipeline)]
        return dg.AssetCheckResult(
            passed=not found,
            description=f"{len(found)} found" if found else None,
            metadata={"found": dg.MetadataValue.json(found)},
        )

    return check
