"""What gateways were told, kept in the lake: a lost staging store gets its schemas and rules back from here.

Table `gateways` of the system namespace has no rows. Each gateway's configuration is a property, so that it is read
without a scan and written only where it changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import NAMES, LakeNames, ensure_gateways, read_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakesync.staging.records import GatewayConfig

CONFIG_PROPERTY = "lakesync.config."
"""Followed by the gateway id; `lakesync staging rebuild` reads it too."""


@lake_errors
def keep_config(spark: SparkSession, gateway: str, config: GatewayConfig, names: LakeNames = NAMES) -> bool:
    """Keep a gateway's schemas and rules in the lake; False where it has them already.

    Raises:
        LakeUnavailableError: Spark is gone.
    """
    if config.version == 0:
        return False
    text = msgspec.json.encode(config).decode()
    key = f"{CONFIG_PROPERTY}{gateway}"
    ensure_gateways(spark, names)
    if read_version(spark, names.gateways).properties.get(key) == text:
        return False
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    spark.sql(f"ALTER TABLE {names.gateways} SET TBLPROPERTIES ('{key}' = '{quoted}')")
    return True
