"""The numbers and moments that materialisations tell, run after run, which Dagster draws as series."""

import hashlib
from collections.abc import Mapping

import dagster as dg
import msgspec

from lakesync.hlc import wall_of
from resources.pipeline import Pipeline

Told = dict[str, dg.MetadataValue | str | int | float]
"""A materialisation's metadata."""


def sized(pipeline: Pipeline, name: str) -> Told:
    """Rows, files and bytes of a table by its full name."""
    from resources.lake.figures import figures

    found = figures(pipeline.spark, name)
    return {
        "dagster/row_count": found.rows,
        "files": found.data_files,
        "delete_files": found.delete_files,
        "bytes": found.bytes,
    }


def through(pipeline: Pipeline, moment_ms: int | None) -> Told:
    """Up to which server time everything acknowledged is in, and how long ago that is; nothing where None."""
    if moment_ms is None:
        return {}
    return {
        "valid_through": dg.MetadataValue.timestamp(moment_ms / 1000),
        "lag_seconds": round(max(pipeline.now_ms() - moment_ms, 0) / 1000, 1),
    }


def merged_through(marks: Mapping[str, int], flushed: Mapping[str, int], settled_ms: int) -> int | None:
    """The server time up to which a table has everything.

    Where it is merged as far as the lake was flushed, that is as far as the lake is settled; else it is the mark of the
    gateway that lags most. None where a gateway was never merged.
    """
    lagging = [marks.get(gateway) for gateway, arrival in flushed.items() if marks.get(gateway, -1) < arrival]
    if not lagging:
        return settled_ms
    known = [wall_of(mark) for mark in lagging if mark is not None]
    return min(known) if len(known) == len(lagging) else None


def content_version(content: object) -> dg.DataVersion:
    """A data version that is equal for equal content."""
    text = msgspec.json.encode(content, order="deterministic")
    return dg.DataVersion(hashlib.sha256(text).hexdigest()[:16])


def kept_version(context: dg.AssetExecutionContext, key: dg.AssetKey) -> dg.DataVersion | None:
    """The version of the newest materialisation, for a step that changed nothing; None before the first."""
    version = version_of(newest(context.instance, key))
    return dg.DataVersion(version) if version else None


def newest(instance: dg.DagsterInstance, key: dg.AssetKey) -> dg.AssetMaterialization | None:
    """The newest materialisation of an asset."""
    event = instance.get_latest_materialization_event(key)
    return event.asset_materialization if event else None


def version_of(made: dg.AssetMaterialization | None) -> str | None:
    """The data version of a materialisation."""
    return ((made.tags if made else None) or {}).get("dagster/data_version")
