"""Adapters by URI: the scheme names the kind.

A package of its own brings a kind by an entry point in the group `lakesync.adapters`, whose name is the scheme and
whose value a function from the URI to the adapter:

    [project.entry-points."lakesync.adapters"]
    azure = "my_package:open_azure"
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lakesync.adapters.base import Adapter, DatabaseAdapter, is_object_store
from lakesync.adapters.objects import FlushFormat, ObjectDeltas
from lakesync.adapters.uri import without_password
from lakesync.model.errors import ConfigurationError

GROUP = "lakesync.adapters"

Factory = Callable[[str], Adapter]


def open_adapter(uri: str) -> Adapter:
    """The adapter that a URI names.

    Args:
        uri: `file:///ABSOLUTE/FOLDER` (objects on disk), `s3://BUCKET/PREFIX`, `sqlite:///ABSOLUTE/FILE`,
            `postgresql://…`, `mysql://…`, `bigquery://PROJECT/DATASET`, `iceberg://NAMESPACE?…` (read only), or a
            scheme that an installed package brings.

    Raises:
        ConfigurationError: no adapter has this scheme, or the package that brings it cannot be loaded.
        AdapterError: the backend cannot be opened.
    """
    scheme = uri.partition(":")[0]
    factory = _BUILT_IN.get(scheme) or _installed(scheme)
    if factory is None:
        raise ConfigurationError(
            f"no adapter has the scheme {scheme!r} (known: {', '.join(schemes())}): install the package that brings it"
        )
    return factory(uri)


def schemes() -> list[str]:
    """Every scheme that `open_adapter` knows."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def as_database(adapter: Adapter, flush_format: FlushFormat = "parquet") -> DatabaseAdapter:
    """The adapter as a place for deltas; of an object store, one object a batch in the format given."""
    return ObjectDeltas(adapter, flush_format) if is_object_store(adapter) else adapter


def _installed(scheme: str) -> Factory | None:
    for point in entry_points(group=GROUP, name=scheme):
        try:
            factory: Factory = point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"the adapter {scheme!r} ({point.value}) cannot be loaded: {error}") from error
        return factory
    return None


def _path(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.netloc or not parts.path.startswith("/") or not parts.path.strip("/"):
        raise ConfigurationError(
            f"the adapter URI {without_password(uri)!r} names no absolute path: write {parts.scheme}:///ABSOLUTE/PATH"
        )
    return Path("/") / unquote(parts.path).lstrip("/")


def _local(uri: str) -> Adapter:
    from lakesync.adapters.local import LocalDisk

    return LocalDisk(_path(uri))


def _sqlite(uri: str) -> Adapter:
    from lakesync.adapters.sqlite import SqliteAdapter

    return SqliteAdapter(_path(uri))


def _postgres(uri: str) -> Adapter:
    from lakesync.adapters.postgres import PostgresAdapter

    return PostgresAdapter(uri)


def _mysql(uri: str) -> Adapter:
    from lakesync.adapters.mysql import MySqlAdapter

    return MySqlAdapter(uri)


def _s3(uri: str) -> Adapter:
    from lakesync.adapters.s3 import S3Objects

    return S3Objects.of(uri)


def _bigquery(uri: str) -> Adapter:
    from lakesync.adapters.bigquery import BigQueryAdapter

    return BigQueryAdapter(uri)


def _iceberg(uri: str) -> Adapter:
    from lakesync.adapters.iceberg import IcebergDeltas

    return IcebergDeltas.of(uri)


_BUILT_IN: dict[str, Factory] = {
    "bigquery": _bigquery,
    "file": _local,
    "iceberg": _iceberg,
    "mysql": _mysql,
    "postgresql": _postgres,
    "s3": _s3,
    "sqlite": _sqlite,
}
