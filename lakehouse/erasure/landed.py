"""Erases rows in `landing` and `known`, the tables of polled rows, and deletes the snapshots that still have them.

A landed row keeps its stamp and becomes a row of the kind `gone`. A known row is deleted, so the source's next version
of it counts as new, in a replay too. No poll may run meanwhile. The steps of the asset `erasure` call it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakehouse.erasure.conditions import landed_by
from lakehouse.erasure.redaction import forget_past, has_past
from lakehouse.landing.landed_files import OLD_MARK
from lakehouse.landing.rows import GONE, ROW
from lakehouse.landing.tables import known_name, landing_name
from lakehouse.spark_errors import lake_errors
from lakesync.model.crash_points import crash_point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from lakehouse.table_definitions import LakeNames
    from lakesync.staging.records import Erasure


class ErasedLandings(msgspec.Struct, frozen=True):
    """Number of rows that were erased in each of the two tables."""

    landed: int = 0
    known: int = 0


@lake_errors
def erase_landed(
    spark: SparkSession, requests: Mapping[str, Sequence[Erasure]], names: LakeNames, connector: str | None = None
) -> ErasedLandings:
    """Erase the rows that requests cover in both tables.

    Args:
        spark: a session.
        requests: gateway → its requests. The request of a client covers the rows of a connector with its client id.
        names: the lake's names.
        connector: only rows of this connector; None: of all, also of those that are no longer declared.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    landed = known = 0
    for each in (one for mine in requests.values() for one in mine):
        covered = landed_by(each, connector)
        if covered is None or not spark.catalog.tableExists(known_name(names)):
            continue
        of_rows = covered.narrowed("kind = {} AND hlc <= {}", ROW, each.hlc)
        found = of_rows.select(spark, landing_name(names)).count()
        if found:
            of_rows.execute(spark, f"UPDATE {landing_name(names)} SET kind = '{GONE}', columns = NULL")
        crash_point("erasure.landing")
        forgotten = covered.narrowed("row_id <> {}", OLD_MARK)
        rows = forgotten.select(spark, known_name(names)).count()
        if rows:
            forgotten.execute(spark, f"DELETE FROM {known_name(names)}")
        landed, known = landed + found, known + rows
    return ErasedLandings(landed, known)


@lake_errors
def forget_landed(spark: SparkSession, name: str, names: LakeNames) -> bool:
    """Delete all snapshots of `landing` or `known` except the newest, and return whether there were others.

    Args:
        spark: a session.
        name: the table's full, quoted name.
        names: the lake's names.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    if not spark.catalog.tableExists(name) or not has_past(spark, name):
        return False
    forget_past(spark, name, names)
    return True
