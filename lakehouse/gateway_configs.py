"""Stores the configurations of gateways in the lake: schemas, sync rules and connectors.

`lakesync staging rebuild` restores them from there if the staging store is lost. Secrets of connectors are references
or encrypted. The table `gateways` of the system namespace has one row for each gateway. Its properties have a digest
of each row, so an unchanged configuration costs no Spark job. Making a checkpoint calls this module.
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
"""Prefix of the name of the table property with a row's digest; the gateway id follows."""
_COLUMNS = {"config": "schemas and rules, as JSON", "connectors": "registered connectors, as JSON"}
"""Column → its comment."""


@lake_errors
def store_config(
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
        config: the gateway's schemas and sync rules.
        connectors: the gateway's registered connectors.
        names: catalogue and namespaces of the lake's tables.

    Returns:
        Whether it has changed since it was last written.

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
