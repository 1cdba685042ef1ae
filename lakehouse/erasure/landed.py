"""Erases polled rows in the tables `landing` and `known`, and deletes the snapshots that still have them.

`landing` has what polls read, `known` the current row of each row id, with which the next poll is compared. A landed
row loses its columns and becomes one that reports a delete. A known row is deleted, so that the source's next version
counts as new. No poll may run meanwhile. The steps of the asset `erasure` call it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakehouse.erasure.conditions import landed_by
from lakehouse.erasure.redaction import drop_old_snapshots, has_old_snapshots
from lakehouse.landing.rows import GONE, OLD_MARK, ROW
from lakehouse.landing.tables import known_name, landing_name
from lakehouse.spark_errors import lake_errors
from lakesync.model.crash_points import crash_point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from lakehouse.table_definitions import LakeNames
    from lakesync.staging.records import Erasure


class ErasedLandings(msgspec.Struct, frozen=True):
    """Number of rows that were erased in `landing` and in `known`."""

    landed: int = 0
    known: int = 0


@lake_errors
def erase_landed(
    spark: SparkSession, requests: Mapping[str, Sequence[Erasure]], names: LakeNames, connector: str | None = None
) -> ErasedLandings:
    """Erase the rows that requests cover in `landing` and `known`.

    Args:
        spark: an open Spark session.
        requests: gateway → its requests. The erasure of the client `connector:NAME` covers that connector's rows.
        names: catalogue and namespaces of the lake's tables.
        connector: name of the connector whose rows are erased; None for all, also those that were removed.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    landed = known = 0
    for each in (one for mine in requests.values() for one in mine):
        covered = landed_by(each, connector)
        if covered is None or not spark.catalog.tableExists(known_name(names)):
            continue
        in_landing = covered.narrowed("kind = {} AND hlc <= {}", ROW, each.hlc)
        landed_rows = in_landing.select(spark, landing_name(names)).count()
        if landed_rows:
            in_landing.execute(spark, f"UPDATE {landing_name(names)} SET kind = '{GONE}', columns = NULL")
        crash_point("erasure.landing")
        in_known = covered.narrowed("row_id <> {}", OLD_MARK)
        known_rows = in_known.select(spark, known_name(names)).count()
        if known_rows:
            in_known.execute(spark, f"DELETE FROM {known_name(names)}")
        landed, known = landed + landed_rows, known + known_rows
    return ErasedLandings(landed, known)


@lake_errors
def drop_old_landings(spark: SparkSession, name: str, names: LakeNames) -> bool:
    """Delete all snapshots of `landing` or `known` except the newest, and return whether there were others.

    Args:
        spark: an open Spark session.
        name: the full, quoted name of `landing` or `known`. The table may be missing.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    if not spark.catalog.tableExists(name) or not has_old_snapshots(spark, name):
        return False
    drop_old_snapshots(spark, name, names)
    return True
