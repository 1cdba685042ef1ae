"""Records in the lake in which namespace each gateway's rows are, and finds gateways whose configuration has changed.

Such a gateway would be merged and erased only in part. The record is a property of the table `gateways` for each
gateway with its own namespace, written before its first merge. `lakehouse.run_state` calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import NAMES, LakeNames, ensure_gateways, set_properties, version_if_there
from lakesync.analysis.catalogue import NAMESPACE_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from lakesync.model.namespaces import Namespaces


@lake_errors
def moved_gateways(
    spark: SparkSession, has_begun: Callable[[str], bool], namespaces: Namespaces, names: LakeNames = NAMES
) -> dict[str, str]:
    """Return the gateways whose rows are in another namespace than the configured one, each with that namespace.

    A gateway without rows, because it never had a checkpoint, gets the configured namespace permanently.

    Args:
        spark: an open Spark session.
        has_begun: returns whether a gateway ever had a checkpoint.
        namespaces: the configured namespaces.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    found = version_if_there(spark, names.gateways)
    properties = found.properties if found is not None else {}
    kept = {
        key.removeprefix(NAMESPACE_PROPERTY): value
        for key, value in properties.items()
        if key.startswith(NAMESPACE_PROPERTY)
    }
    unknown = sorted(namespaces.own.keys() - kept.keys())
    new = {gateway: namespaces.of(gateway) for gateway in unknown if not has_begun(gateway)}
    if new:
        ensure_gateways(spark, names)
        set_properties(spark, names.gateways, {f"{NAMESPACE_PROPERTY}{gateway}": new[gateway] for gateway in new})
    held = {**dict.fromkeys(unknown, namespaces.shared), **kept, **new}
    return {gateway: where for gateway, where in held.items() if where != namespaces.of(gateway)}
