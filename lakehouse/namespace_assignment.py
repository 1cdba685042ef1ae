"""In which namespace each gateway's rows are, kept in the lake: one that moved would be merged, and erased, by halves.

A property of the table `gateways` for each gateway that has a namespace of its own, written before its first merge.
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
    """Return the gateways whose rows are in another namespace than the configuration says, each with that namespace.

    One whose rows are nowhere yet, as it has not begun to be cut, gets the declared namespace for good.

    Args:
        spark: a session.
        has_begun: whether a gateway was ever cut.
        namespaces: of the gateways' tables.
        names: the lake's names.

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
