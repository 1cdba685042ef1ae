"""Opens pyiceberg's REST catalogue so that a call fails, instead of waiting for ever, if the server is silent.

pyiceberg 0.12 sets no timeout for its requests (apache/iceberg-python#2772). A later version has a property for it
(apache/iceberg-python#3418). This module, which overrides a private method, can then be deleted.
`lakesync.analysis.catalogue` and the adapter for `iceberg://` use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.utils.config import Config, merge_config

from lakesync.wire.http_sessions import BoundedAdapter, mount
from lakesync.wire.sqlalchemy_limits import with_limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from requests import Session


def load_bounded(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open a catalogue as pyiceberg's `load_catalog` does, with limits if it is a REST catalogue or in Postgres.

    Args:
        name: the catalogue's name.
        properties: pyiceberg's properties. Further ones come from its configuration file and variables.

    Raises:
        Exception: any error of pyiceberg or of the catalogue's driver.
    """
    merged = cast("dict[str, Any]", merge_config(Config().get_catalog_config(name) or {}, dict(properties)))
    uri = str(merged.get("uri", ""))
    if uri.startswith(("http://", "https://")) and merged.get("type", "rest") == "rest":
        return BoundedRestCatalog(name, **merged)
    if uri.startswith("postgresql"):
        merged["uri"] = with_limits(uri)
    return load_catalog(name, **merged)


class BoundedRestCatalog(RestCatalog):
    """A REST catalogue whose requests have a timeout."""

    def _config_headers(self, session: Session) -> None:
        """Give a new session the timeout; pyiceberg calls this before the first request, also one for a token."""
        mount(session, BoundedAdapter())
        super()._config_headers(session)
