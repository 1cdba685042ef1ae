"""What a notebook can read besides the lake: the sources of the connectors, and the log before it is flushed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import structlog

from lakehouse.landing.connector_source import format_of, register_connectors
from lakehouse.log_source import FORMAT, register_log
from lakehouse.staging_connection import pipeline_store
from lakesync.connectors import Connectors
from lakesync.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakesync.config import Config
    from lakesync.connectors import ConnectorConfig

_log = structlog.get_logger(__name__)


def register_sources(spark: SparkSession, config: Config) -> list[str]:
    """Make the connectors of all gateways readable as `lakesync_TYPE`, and their log as `lakesync_log`.

    Args:
        spark: the session in which they are readable.
        config: says where staging is, and opens the connectors' secrets.

    Returns:
        The names of the formats.

    Raises:
        StagingUnavailableError: staging cannot be reached.
        ConfigurationError: where the gateway answers, or what to show it, is not configured.
    """
    types = Connectors.configured(config)
    found: dict[str, list[ConnectorConfig]] = defaultdict(list)
    with pipeline_store(config) as store:
        register_log(spark, store)
        for gateway in store.gateways():
            for stored in store.connectors(gateway):
                try:
                    found[stored.type].append(types.open(gateway, stored))
                except ConfigurationError as error:
                    _log.warning("connector_not_readable", gateway=gateway, connector=stored.name, error=str(error))
    for name, configs in found.items():
        kind = types.find(name)
        assert kind is not None, "a connector of an unknown type cannot be opened"
        register_connectors(spark, kind, configs)
    return [*map(format_of, sorted(found)), FORMAT]
