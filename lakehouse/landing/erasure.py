"""What an erasure takes from `landing` and `known`: rows as connectors brought them, and every snapshot that has them.

A landed row keeps its place and stamp and says from then on that the row was gone; a known one is forgotten, so that
the source's next word of it is news, in a replay too. No poll may run meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakehouse.erasure.redaction import forget_past, has_past, text
from lakehouse.landing.landed_files import OLD_MARK
from lakehouse.landing.rows import GONE, ROW
from lakehouse.landing.tables import known_name, landing_name
from lakehouse.spark_errors import lake_errors
from lakesync.crash import crash_point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from lakehouse.table_definitions import LakeNames
    from lakesync.staging.records import Erasure

_CLIENT = "connector:"


class ErasedLandings(msgspec.Struct, frozen=True):
    """What was taken."""

    landed: int = 0
    known: int = 0


@lake_errors
def erase_landed(
    spark: SparkSession, requests: Mapping[str, Sequence[Erasure]], names: LakeNames, connector: str | None = None
) -> ErasedLandings:
    """Take what requests cover from both tables.

    Args:
        spark: a session.
        requests: by gateway; one of a client covers a connector's rows where the client is that connector.
        names: of the lake.
        connector: this one's rows alone; None: every connector's, also of those that are no longer declared.

    Raises:
        LakeUnavailableError: Spark is gone.
    """
    landed = known = 0
    for each in (one for mine in requests.values() for one in mine):
        mine = _covered(each)
        if mine is None or not spark.catalog.tableExists(known_name(names)):
            continue
        if connector is not None:
            mine += f" AND connector = {text(connector)}"
        of_rows = f"{mine} AND kind = '{ROW}' AND hlc <= {each.hlc}"
        found = spark.table(landing_name(names)).where(of_rows).count()
        if found:
            spark.sql(f"UPDATE {landing_name(names)} SET kind = '{GONE}', columns = NULL WHERE {of_rows}")
        crash_point("erasure.landing")
        forgotten = f"{mine} AND row_id <> '{OLD_MARK}'"
        rows = spark.table(known_name(names)).where(forgotten).count()
        if rows:
            spark.sql(f"DELETE FROM {known_name(names)} WHERE {forgotten}")
        landed, known = landed + found, known + rows
    return ErasedLandings(landed, known)


@lake_errors
def forget_landed(spark: SparkSession, name: str, names: LakeNames) -> bool:
    """Leave `landing`, or `known`, its newest snapshot alone; whether it had others.

    Raises:
        LakeUnavailableError: Spark is gone.
    """
    if not spark.catalog.tableExists(name) or not has_past(spark, name):
        return False
    forget_past(spark, name, names)
    return True


def _covered(request: Erasure) -> str | None:
    """A condition over both tables; None where the request does not concern them."""
    gateway = f"gateway = {text(request.gateway)}"
    if request.client_id is None:
        return f"{gateway} AND table_name = {text(request.table or '')} AND row_id = {text(request.row_id or '')}"
    if not request.client_id.startswith(_CLIENT):
        return None
    return f"{gateway} AND connector = {text(request.client_id.removeprefix(_CLIENT))}"
