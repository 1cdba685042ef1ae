"""The schemas and sync rules of gateways, kept in the lake: `lakesync staging rebuild` restores a lost store from them.

Table `gateways` of the system namespace has one row for each gateway. A property of the table holds the digest of each
row, so that an unchanged configuration costs no Spark job.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as sf

from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import NAMES, LakeNames, ensure_gateways, set_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakesync.staging.records import GatewayConfig

DIGEST_PROPERTY = "lakesync.config-digest."
"""Followed by the gateway id."""


@lake_errors
def keep_config(spark: SparkSession, gateway: str, config: GatewayConfig, names: LakeNames = NAMES) -> bool:
    """Write a gateway's configuration to the lake where it has changed.

    Args:
        spark: a session.
        gateway: the gateway's id.
        config: its schemas and rules. They travel as a column's value, never as SQL text.
        names: of the lake's tables.

    Returns:
        Whether it had changed.

    Raises:
        LakeUnavailableError: Spark is gone.
    """
    if config.version == 0:
        return False
    text = msgspec.json.encode(config).decode()
    key, digest = f"{DIGEST_PROPERTY}{gateway}", hashlib.sha256(text.encode()).hexdigest()
    if ensure_gateways(spark, names).properties.get(key) == digest:
        return False
    if "config" not in spark.table(names.gateways).columns:
        spark.sql(f"ALTER TABLE {names.gateways} ADD COLUMNS (config string COMMENT 'schemas and rules, as JSON')")
    new = spark.createDataFrame([(gateway, text)], "new_gateway string, new_config string")
    values = {"gateway": sf.col("new_gateway"), "config": sf.col("new_config")}
    writer = new.mergeInto(names.gateways, sf.col("gateway") == sf.col("new_gateway"))
    writer.whenMatched().update(values).whenNotMatched().insert(values).merge()
    set_properties(spark, names.gateways, {key: digest})
    return True
