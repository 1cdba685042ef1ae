"""Stores what is registered at gateways in the lake, from where `lakesync staging rebuild` restores a lost store.

These are schemas, sync rules and connectors; secrets of connectors are references or encrypted. The table `gateways` of
the system namespace has one row for each gateway. A property of the table has the digest of each row, so an unchanged
configuration costs no Spark job. Making a checkpoint calls it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as sf

from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import NAMES, LakeNames, ensure_gateways, set_properties

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from lakesync.model.types import StoredConnector
    from lakesync.staging.records import GatewayConfig

DIGEST_PROPERTY = "lakesync.config-digest."
"""Prefix of a table property; the gateway id follows."""
_COLUMNS = {"config": "schemas and rules, as JSON", "connectors": "registered connectors, as JSON"}


@lake_errors
def keep_config(
    spark: SparkSession,
    gateway: str,
    config: GatewayConfig,
    connectors: Sequence[StoredConnector],
    names: LakeNames = NAMES,
) -> bool:
    """Write a gateway's configuration to the lake if it has changed.

    Args:
        spark: an open Spark session.
        gateway: the gateway's id.
        config: its schemas and rules.
        connectors: its registered connectors.
        names: catalogue and namespaces of the lake's tables.

    Returns:
        Whether it had changed.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    if config.version == 0 and not connectors:
        return False
    values = zip(_COLUMNS, (config, connectors), strict=True)
    texts = {name: msgspec.json.encode(value).decode() for name, value in values}
    key, digest = f"{DIGEST_PROPERTY}{gateway}", hashlib.sha256("\0".join(texts.values()).encode()).hexdigest()
    if ensure_gateways(spark, names).properties.get(key) == digest:
        return False
    there = spark.table(names.gateways).columns
    for name, comment in _COLUMNS.items():
        if name not in there:
            spark.sql(f"ALTER TABLE {names.gateways} ADD COLUMNS ({name} string COMMENT '{comment}')")
    columns = ("gateway", *_COLUMNS)
    new = spark.createDataFrame([(gateway, *texts.values())], ", ".join(f"new_{name} string" for name in columns))
    changes = {name: sf.col(f"new_{name}") for name in columns}
    writer = new.mergeInto(names.gateways, sf.col("gateway") == sf.col("new_gateway"))
    writer.whenMatched().update(changes).whenNotMatched().insert(changes).merge()
    set_properties(spark, names.gateways, {key: digest})
    return True
