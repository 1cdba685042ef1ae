"""The lake's table `gateways`: each gateway's configuration, and the namespace of its state tables.

A gateway is one app's stream of changes. The table has one row for each, with its schemas, its sync rules (which say
what a client may see) and its connectors (polled external systems). `lakesync staging rebuild` restores them from there
if the staging store is lost. Secrets of connectors are encrypted, or references such as `env:NAME`. A property of the
table has the digest of each row, so an unchanged configuration costs no Spark job. A *state table* has the current rows
of one synced table; a *checkpoint* is a copy of a gateway's rows for new clients.

Another property has the Iceberg namespace of each gateway that does not share one. It is written before the gateway's
first merge: if the gateway were configured for another namespace later, only a part of its rows would be merged and
erased there. Making a checkpoint calls `store_config`; `lakehouse.run_state`, for each run, `assign_namespaces`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as sf

from lakehouse.spark_errors import lake_errors
from lakehouse.table_access import version_if_there
from lakehouse.table_creation import ensure_gateways, set_properties
from lakehouse.table_definitions import LakeNames
from lakesync.analysis.catalogue import NAMESPACE_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from lakesync.model.namespaces import Namespaces
    from lakesync.model.types import StoredConnector
    from lakesync.staging.records import GatewayConfig


DIGEST_PROPERTY = "lakesync.config-digest."
"""Prefix of the name of the table property with a row's digest; the gateway id follows."""
_COLUMNS = {"config": "schemas and rules, as JSON", "connectors": "registered connectors, as JSON"}
"""Column → its comment."""


@lake_errors
def store_config(
    spark: SparkSession,
    gateway: str,
    config: GatewayConfig,
    connectors: Sequence[StoredConnector],
    names: LakeNames,
) -> bool:
    """Write a gateway's configuration to the lake if it has changed.

    Args:
        spark: an open Spark session.
        gateway: the gateway's id.
        config: the gateway's schemas and sync rules.
        connectors: the gateway's registered connectors.
        names: catalogue and namespaces of the lake's tables.

    Returns:
        Whether it has changed since it was last written.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    if config.version == 0 and not connectors:  # nothing was ever registered
        return False
    values = zip(_COLUMNS, (config, connectors), strict=True)
    texts = {name: msgspec.json.encode(value).decode() for name, value in values}
    key, digest = f"{DIGEST_PROPERTY}{gateway}", hashlib.sha256("\0".join(texts.values()).encode()).hexdigest()
    if ensure_gateways(spark, names).properties.get(key) == digest:
        return False
    existing = spark.table(names.gateways).columns
    for name, comment in _COLUMNS.items():
        if name not in existing:
            spark.sql(f"ALTER TABLE {names.gateways} ADD COLUMNS ({name} string COMMENT '{comment}')")
    columns = ("gateway", *_COLUMNS)
    new = spark.createDataFrame([(gateway, *texts.values())], ", ".join(f"new_{name} string" for name in columns))
    changes = {name: sf.col(f"new_{name}") for name in columns}
    writer = new.mergeInto(names.gateways, sf.col("gateway") == sf.col("new_gateway"))
    writer.whenMatched().update(changes).whenNotMatched().insert(changes).merge()
    set_properties(spark, names.gateways, {key: digest})
    return True


@lake_errors
def assign_namespaces(
    spark: SparkSession, has_checkpoint: Callable[[str], bool], namespaces: Namespaces, names: LakeNames
) -> dict[str, str]:
    """Record the configured namespace of each new gateway, which it then keeps, and return the misplaced gateways.

    A gateway is new if it never had a checkpoint, so that no rows of it were merged.

    Args:
        spark: an open Spark session.
        has_checkpoint: returns whether a gateway ever had a checkpoint.
        namespaces: the configured namespaces.
        names: catalogue and namespaces of the lake's tables.

    Returns:
        Gateway → the namespace where its rows are, for gateways that are now configured for another one.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    version = version_if_there(spark, names.gateways)
    recorded = {
        key.removeprefix(NAMESPACE_PROPERTY): value
        for key, value in (version.properties if version is not None else {}).items()
        if key.startswith(NAMESPACE_PROPERTY)
    }
    unrecorded = sorted(namespaces.own.keys() - recorded.keys())
    new = {gateway: namespaces.of(gateway) for gateway in unrecorded if not has_checkpoint(gateway)}
    if new:
        ensure_gateways(spark, names)
        set_properties(spark, names.gateways, {f"{NAMESPACE_PROPERTY}{gateway}": new[gateway] for gateway in new})
    # a gateway that had a checkpoint before a namespace was configured for it has its rows in the shared one
    assigned = {**dict.fromkeys(unrecorded, namespaces.shared), **recorded, **new}
    return {gateway: namespace for gateway, namespace in assigned.items() if namespace != namespaces.of(gateway)}
