"""Opens pyiceberg's REST catalogue so that a call fails, instead of waiting for ever, if the server is silent.

pyiceberg 0.12 sets no timeout for its requests (apache/iceberg-python#2772). A later version has a property for it
(apache/iceberg-python#3418). This module, which overrides private methods, can then be deleted.
`lakesync.analysis.catalogue` and the adapter for `iceberg://` use it.

One request has no timeout: that for a token if pyiceberg's configuration file has `auth` with the type `oauth2`.
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

    The limits are those of `http_sessions` and `sqlalchemy_limits`. Others, such as SQLite or Glue, have none.

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
    """A REST catalogue whose requests have the timeouts of `http_sessions`."""

    def _config_headers(self, session: Session) -> None:
        """Give a new session the timeout; pyiceberg calls this before the session's first request."""
        mount(session, BoundedAdapter())
        super()._config_headers(session)

    def _init_sigv4(self, session: Session) -> None:
        """Give signed requests the timeout too: pyiceberg mounts an adapter of its own for the catalogue's URI.

        pyiceberg retries them 10 times, or `rest.sigv4.max-retries` times; the timeout applies to each attempt.
        """
        super()._init_sigv4(session)
        signing = type(session.get_adapter(self.uri))
        bounded = type("BoundedSigV4Adapter", (BoundedAdapter, signing), {})
        session.mount(self.uri, bounded(**self.properties))
