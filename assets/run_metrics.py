"""Metadata of materialisations: numbers and moments that Dagster draws as series, and data versions."""

import hashlib
from collections.abc import Mapping

import dagster as dg
import msgspec
from pyspark.sql import SparkSession

from lakesync.model.hlc import wall_of
from resources.spark import SparkConnectResource

Metadata = dict[str, dg.MetadataValue | str | int | float]
"""A materialisation's metadata."""


def size_metadata(spark: SparkSession, name: str) -> Metadata:
    """Return rows, files and bytes of a table.

    Args:
        spark: an open Spark session.
        name: the table's full name.
    """
    from lakehouse.table_stats import table_size

    found = table_size(spark, name)
    return {
        "dagster/row_count": found.rows,
        "files": found.data_files,
        "delete_files": found.delete_files,
        "bytes": found.bytes,
    }


def spark_metadata(pyspark: SparkConnectResource) -> Metadata:
    """Return what Spark did for a step. Where Spark's UI cannot be reached, the table_size are missing."""
    application, work = pyspark.application, pyspark.work()
    if application is None or (work is not None and not work.jobs):
        return {"engine": "none"}
    metadata: Metadata = {"engine": "spark", "spark/application": application}
    if work is None or pyspark.ui_url is None:
        return metadata
    pages = f"{pyspark.ui_url.rstrip('/')}/jobs"
    metadata |= {
        "spark/jobs": len(work.jobs),
        "spark/stages": work.stages,
        "spark/tasks": work.tasks,
        "spark/failed_tasks": work.failed_tasks,
        "spark/rows_read": work.rows_read,
        "spark/rows_written": work.rows_written,
        "spark/bytes_read": work.bytes_read,
        "spark/bytes_written": work.bytes_written,
        "spark/shuffle_bytes": work.shuffle_bytes,
        "spark/ui": dg.MetadataValue.md(
            f"[All jobs]({pages}/): " + ", ".join(f"[{job}]({pages}/job/?id={job})" for job in work.jobs)
        ),
    }
    if not work.complete:
        metadata["spark/incomplete"] = "Spark has forgotten older jobs of this step: raise spark.ui.retainedJobs"
    return metadata


def freshness_metadata(moment_ms: int | None, now_ms: int) -> Metadata:
    """Return up to which server time everything acknowledged is in, and how long ago that is.

    Args:
        moment_ms: that time, in milliseconds; None gives no metadata.
        now_ms: server wall time.
    """
    if moment_ms is None:
        return {}
    return {
        "valid_through": dg.MetadataValue.timestamp(moment_ms / 1000),
        "lag_seconds": round(max(now_ms - moment_ms, 0) / 1000, 1),
    }


def merged_through(marks: Mapping[str, int], flushed: Mapping[str, int], settled_ms: int) -> int | None:
    """Return the server time in milliseconds up to which a table has every acknowledged delta.

    The table cannot be ahead of the lake's history. Gateways with deltas in the history that are not merged yet hold it
    back further.

    Args:
        marks: gateway → the arrival up to which the table is merged.
        flushed: gateway → the arrival up to which the history is flushed.
        settled_ms: server time up to which the history has every acknowledged delta.

    Returns:
        The time; None if a gateway's deltas were never merged.
    """
    lagging = [marks.get(gateway) for gateway, arrival in flushed.items() if marks.get(gateway, -1) < arrival]
    known = [wall_of(mark) for mark in lagging if mark is not None]
    return min([settled_ms, *known]) if len(known) == len(lagging) else None


def content_version(content: object) -> dg.DataVersion:
    """Return a data version that is equal for equal content."""
    text = msgspec.json.encode(content, order="deterministic")
    return dg.DataVersion(hashlib.sha256(text).hexdigest()[:16])


def kept_version(context: dg.AssetExecutionContext, key: dg.AssetKey) -> dg.DataVersion | None:
    """Return the data version of the newest materialisation, for a step that changed nothing; None before the first.

    No decision reads it. It shows readers of Dagster's pages that nothing changed.

    Args:
        context: the step's.
        key: the asset.
    """
    version = version_of(newest(context.instance, key))
    return dg.DataVersion(version) if version else None


def newest(instance: dg.DagsterInstance, key: dg.AssetKey) -> dg.AssetMaterialization | None:
    """Return the newest materialisation of an asset.

    Args:
        instance: Dagster's.
        key: the asset.
    """
    event = instance.get_latest_materialization_event(key)
    return event.asset_materialization if event else None


def version_of(made: dg.AssetMaterialization | None) -> str | None:
    """Return the data version of a materialisation."""
    return ((made.tags if made else None) or {}).get("dagster/data_version")
