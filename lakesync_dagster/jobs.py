"""The jobs: a flush with all that follows it, and the state tables alone."""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition


def flush_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """Log → `deltas` → state tables → cut → checkpoint."""
    return dg.define_asset_job(
        "flush",
        selection=dg.AssetSelection.groups("flush", "tables", "cut", "checkpoint"),
        description="Carries what waits into the lake, merges the state tables and publishes a checkpoint.",
        tags={"dagster/max_runtime": str(max_seconds)},
    )


def tables_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """The state tables of the days that are asked for, or anew with `rebuild`."""
    return dg.define_asset_job(
        "tables",
        selection=dg.AssetSelection.groups("tables"),
        description="Merges the state tables again from the history, for the chosen days of arrival or from nothing.",
        tags={"dagster/max_runtime": str(max_seconds)},
    )
