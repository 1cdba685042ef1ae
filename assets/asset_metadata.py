"""Metadata that a step reports with its result, for Dagster's pages: sizes, Spark's work, freshness and data versions.

The assets of the lake, of checkpoints and of destinations call it at the end of a step; the failure policy
(`assets.failure_policy`), which wraps every step, adds the figures of Spark's jobs. A delta is a change that a client
pushed, and *acknowledged* when its gateway (one app's stream of deltas) has accepted it. The history, the asset
`deltas`, has all flushed deltas. A state table has the current rows, merged from the history.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import dagster as dg
import msgspec
from pyspark.sql import SparkSession

from assets.partitions import nearest_key
from lakesync.model.hlc import wall_of
from resources.spark import SparkConnectResource

Metadata = dict[str, dg.MetadataValue | str | int | float]
"""Name → value. Names that begin with `dagster/` have a meaning for Dagster."""


def size_metadata(spark: SparkSession, name: str) -> Metadata:
    """Return the numbers of rows, files and bytes of an Iceberg table.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.
    """
    from lakehouse.spark_errors import lake_errors
    from lakehouse.table_access import table_size

    size = lake_errors(table_size)(spark, name)
    return {
        "dagster/row_count": size.rows,
        "files": size.data_files,
        "delete_files": size.delete_files,
        "bytes": size.bytes,
    }


def spark_metadata(resource: SparkConnectResource) -> Metadata:
    """Return the figures of the Spark jobs that a step ran, such as rows and bytes read.

    The entry `engine` is `none` if the step ran no job. If Spark's UI cannot be reached, there are no figures.

    Args:
        resource: the step's resource `pyspark`.
    """
    application, figures = resource.application, resource.job_figures()
    if application is None or (figures is not None and not figures.jobs):
        return {"engine": "none"}
    metadata: Metadata = {"engine": "spark", "spark/application": application}
    if figures is None or resource.ui_url is None:
        return metadata
    pages = f"{resource.ui_url.rstrip('/')}/jobs"
    links = ", ".join(f"[{job}]({pages}/job/?id={job})" for job in figures.jobs)
    metadata["spark/jobs"] = len(figures.jobs)
    sums = {name: total for name, total in figures._asdict().items() if name not in ("jobs", "is_complete")}
    metadata |= {f"spark/{name}": total for name, total in sums.items()}
    metadata["spark/ui"] = dg.MetadataValue.md(f"[All jobs]({pages}/): {links}")
    if not figures.is_complete:
        metadata["spark/incomplete"] = "Spark has forgotten older jobs of this step: raise spark.ui.retainedJobs"
    return metadata


def freshness_metadata(valid_through_ms: int | None, now_ms: int) -> Metadata:
    """Return the time up to which an asset has every acknowledged delta, and how long ago that is.

    Args:
        valid_through_ms: that time, in milliseconds of server wall time; None if it is unknown, for no metadata.
        now_ms: server wall time in milliseconds since 1970.
    """
    if valid_through_ms is None:
        return {}
    return {
        "valid_through": dg.MetadataValue.timestamp(valid_through_ms / 1000),
        "lag_seconds": round(max(now_ms - valid_through_ms, 0) / 1000, 1),
    }


def table_valid_through_ms(marks: Mapping[str, int], flushed: Mapping[str, int], valid_through_ms: int) -> int | None:
    """Return the server wall time in milliseconds up to which a state table has every acknowledged delta.

    It is that of the history, or earlier if the table is behind the history for some gateway. An arrival is the
    gateway's timestamp of a push.

    Args:
        marks: gateway → the arrival up to which the table is merged.
        flushed: gateway → the arrival up to which the history is flushed.
        valid_through_ms: the time up to which the history has every acknowledged delta.

    Returns:
        The time; None if a gateway's deltas were never merged.
    """
    if not flushed.keys() <= marks.keys():
        return None
    behind = [marks[gateway] for gateway, arrival in flushed.items() if marks[gateway] < arrival]
    return min([valid_through_ms, *map(wall_of, behind)])


def report_by_day(
    context: dg.AssetExecutionContext, names: Sequence[str], counts: Iterable[tuple[str, str, int]]
) -> None:
    """Add to each partition of a step the sums of its day's counts. Days outside the run count for the nearest one.

    Args:
        context: the step's context; its partitions are UTC days.
        names: names of the counts.
        counts: day (`YYYY-MM-DD`), name and number; several of one day and name are added up.
    """
    keys = context.partition_keys
    sums = {key: dict.fromkeys(names, 0) for key in keys}
    for day, name, count in counts:
        sums[nearest_key(day, keys)][name] += count
    for key, of_day in sums.items():
        context.add_asset_metadata(of_day, partition_key=key)


def content_version(content: object) -> dg.DataVersion:
    """Return a data version that is equal for equal content.

    Args:
        content: a value that msgspec can encode as JSON.
    """
    text = msgspec.json.encode(content, order="deterministic")
    return dg.DataVersion(hashlib.sha256(text).hexdigest()[:16])


def previous_data_version(context: dg.AssetExecutionContext, key: dg.AssetKey) -> dg.DataVersion | None:
    """Return the data version of an asset's newest materialisation; None if it was never materialised.

    A step that changed nothing reports it again, so that Dagster's pages show that nothing changed.

    Args:
        context: the step's context.
        key: the asset.
    """
    event = context.instance.get_latest_materialization_event(key)
    materialization = event.asset_materialization if event else None
    tags = (materialization.tags if materialization else None) or {}
    version = tags.get("dagster/data_version")
    return dg.DataVersion(version) if version else None
