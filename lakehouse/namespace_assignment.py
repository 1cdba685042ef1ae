"""Records in the lake which namespace each gateway's state tables are in, and finds gateways configured differently.

Such a gateway would be merged and erased only in part. A property of the table `gateways` has the namespace of each
gateway that does not share one; it is written before the first merge. `lakehouse.run_state` calls it.
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
def misplaced_gateways(
    spark: SparkSession, has_begun: Callable[[str], bool], namespaces: Namespaces, names: LakeNames = NAMES
) -> dict[str, str]:
    """Return gateway → the namespace of its rows, for gateways with another configured namespace.

    A new gateway, which never had a checkpoint, is assigned the configured namespace permanently.

    Args:
        spark: an open Spark session.
        has_begun: returns whether a gateway ever had a checkpoint, so that its rows are in some namespace.
        namespaces: the configured namespaces.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    found = version_if_there(spark, names.gateways)
    properties = found.properties if found is not None else {}
    recorded = {
        key.removeprefix(NAMESPACE_PROPERTY): value
        for key, value in properties.items()
        if key.startswith(NAMESPACE_PROPERTY)
    }
    unknown = sorted(namespaces.own.keys() - recorded.keys())
    new = {gateway: namespaces.of(gateway) for gateway in unknown if not has_begun(gateway)}
    if new:
        ensure_gateways(spark, names)
        set_properties(spark, names.gateways, {f"{NAMESPACE_PROPERTY}{gateway}": new[gateway] for gateway in new})
    assigned = {**dict.fromkeys(unknown, namespaces.shared), **recorded, **new}
    return {gateway: namespace for gateway, namespace in assigned.items() if namespace != namespaces.of(gateway)}
