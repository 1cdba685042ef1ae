"""The address and settings of the lake's Iceberg catalogue: Spark's, and the same for pyiceberg.

`lakesync.analysis.catalogue` opens the catalogue with them, and `lakesync.adapters.backend_config` the table of all
deltas (changes of rows), which flows, migrations and sources read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakesync.config.settings import Config

_SHARED_SETTINGS = (
    *("s3.", "header.", "oauth2-server-uri", "credential", "token", "scope", "prefix"),
    *("rest.sigv4-enabled", "rest.signing-"),
)
"""Prefixes of settings that Iceberg in Java and pyiceberg have in common."""
_RENAMED_SETTINGS = {
    "client.region": "s3.region",
    "rest.access-key-id": "client.access-key-id",
    "rest.secret-access-key": "client.secret-access-key",
    "rest.session-token": "client.session-token",
}
"""Setting of Iceberg in Java → the same setting of pyiceberg."""


def catalogue_uri(config: Config) -> str:
    """Return the catalogue's URI as pyiceberg reads it: with the driver psycopg, if the catalogue is in Postgres."""
    return config.lake.catalog_uri.replace("postgresql://", "postgresql+psycopg://", 1)


def catalogue_settings(config: Config) -> dict[str, str]:
    """Return the settings below `spark.sql.catalog.NAME.` of `[spark.settings]`, without this prefix."""
    prefix = f"spark.sql.catalog.{config.lake.catalog}."
    settings = config.spark.settings.items()
    return {key.removeprefix(prefix): value for key, value in settings if key.startswith(prefix)}


def pyiceberg_properties(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with which pyiceberg opens a catalogue of Spark: access to S3 and to a REST catalogue.

    Args:
        settings: the settings below `spark.sql.catalog.NAME.`.
    """
    properties = {_RENAMED_SETTINGS[key]: value for key, value in settings.items() if key in _RENAMED_SETTINGS}
    if settings.get("rest.auth.type") == "sigv4":
        properties["rest.sigv4-enabled"] = "true"
    return properties | {key: value for key, value in settings.items() if key.startswith(_SHARED_SETTINGS)}
