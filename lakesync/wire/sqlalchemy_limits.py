"""Limits in database URLs for SQLAlchemy, so that a connection fails if Postgres sends nothing for too long.

pyiceberg opens an Iceberg catalogue in a database by a URL only. So the limits are parts of the URL (`with_limits`):
connection settings, and a plugin of SQLAlchemy by which the engine opens its connections as
`lakesync.wire.postgres.BoundedConnection`. `wire.compat_pyiceberg` and `analysis.catalogue` call this module.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, CreateEnginePlugin, Engine, event, make_url
from sqlalchemy.dialects import plugins

_PLUGIN = "lakesync_bounded"
"""Name of the plugin in a URL."""


class BoundedEnginePlugin(CreateEnginePlugin):
    """Makes an engine for `postgresql+psycopg` open its connections as `BoundedConnection`."""

    def update_url(self, url: URL) -> URL:
        """Return the URL unchanged: the plugin has no settings in it."""
        return url

    def engine_created(self, engine: Engine) -> None:
        """Replace how the engine connects."""
        event.listen(engine, "do_connect", _connect)


plugins.register(_PLUGIN, __name__, BoundedEnginePlugin.__name__)


def with_limits(uri: str) -> str:
    """Return a database URL with limits for a dead or silent server. Only a URL of Postgres is changed.

    Args:
        uri: a database URL of SQLAlchemy. Its own connection settings take precedence.
    """
    url = make_url(uri)
    if url.get_backend_name() != "postgresql":
        return uri
    from lakesync.wire.postgres import CONNECT_SECONDS, KEEPALIVE

    limits = {name: str(value) for name, value in {"connect_timeout": CONNECT_SECONDS, **KEEPALIVE}.items()}
    bounded = {"plugin": _PLUGIN} if url.get_driver_name() == "psycopg" else {}
    return url.set(query={**limits, **url.query, **bounded}).render_as_string(hide_password=False)


def _connect(_dialect: Any, _record: Any, arguments: list[Any], parameters: dict[str, Any]) -> Any:
    """Open a connection; SQLAlchemy calls it with the arguments for psycopg's `connect`."""
    from lakesync.wire.postgres import BoundedConnection

    return BoundedConnection.connect(*arguments, **parameters)
