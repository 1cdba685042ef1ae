"""Opens adapters, which read and write deltas at a database or an object store, by URI. The scheme names their kind.

`backend_config`, the flush without a pipeline, and the CLI call it.

A package adds a scheme with an entry point in the group `lakesync.adapters`. The entry point's name is the scheme, its
value a function from the URI to the adapter:

    [project.entry-points."lakesync.adapters"]
    azure = "my_package:open_azure"
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from lakesync.adapters.base import DatabaseAdapter
from lakesync.adapters.object_store.base import LakeAdapter
from lakesync.adapters.object_store.delta_files import FlushFormat
from lakesync.adapters.object_store.deltas import ObjectDeltas
from lakesync.adapters.uri import split_uri
from lakesync.model.errors import ConfigurationError
from lakesync.model.secrets import without_password

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Adapter = DatabaseAdapter | LakeAdapter
"""A database, or an object store (`LakeAdapter`)."""

GROUP = "lakesync.adapters"
"""The group of entry points in which packages declare adapters."""

Factory = Callable[[str], Adapter]
"""Opens an adapter by its URI."""


def open_adapter(uri: str) -> Adapter:
    """Open the adapter of a URI.

    Args:
        uri: `file:///ABSOLUTE/FOLDER` (objects on disk), `s3://BUCKET/PREFIX`, `sqlite:///ABSOLUTE/FILE`,
            `postgresql://…`, `mysql://…`, `bigquery://PROJECT/DATASET`, `iceberg://NAMESPACE?…` (read only), or a
            scheme of an installed package.

    Raises:
        ConfigurationError: no adapter has this scheme, or its package cannot be loaded.
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
    """Return every scheme that `open_adapter` supports."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def is_object_store(adapter: Adapter) -> TypeIs[LakeAdapter]:
    """Return whether an adapter is an object store rather than a database."""
    return hasattr(adapter, "put_object")


def as_database(adapter: Adapter, flush_format: FlushFormat = "parquet") -> DatabaseAdapter:
    """Return an adapter as a `DatabaseAdapter`; an object store is wrapped in `ObjectDeltas`.

    Args:
        adapter: a database, which is returned as it is, or an object store.
        flush_format: how new objects in an object store are encoded.
    """
    return ObjectDeltas(adapter, flush_format) if is_object_store(adapter) else adapter


def _installed(scheme: str) -> Factory | None:
    """Return the factory that an installed package declares for a scheme; None if none does.

    Raises:
        ConfigurationError: it cannot be loaded.
    """
    for point in entry_points(group=GROUP, name=scheme):
        try:
            factory: Factory = point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"the adapter {scheme!r} ({point.value}) cannot be loaded: {error}") from error
        return factory
    return None


def _path(uri: str) -> Path:
    """Return the absolute path of a `file:` or `sqlite:` URI.

    Raises:
        ConfigurationError: the URI has a host, or no absolute path.
    """
    parts, _ = split_uri(uri)
    if parts.query:
        raise ConfigurationError(
            f"the adapter URI {without_password(uri)!r} has an option, but there is none: write ? in a path as %3F"
        )
    if parts.netloc or not parts.path.startswith("/") or not parts.path.strip("/"):
        raise ConfigurationError(
            f"the adapter URI {without_password(uri)!r} has no absolute path: write {parts.scheme}:///ABSOLUTE/PATH"
        )
    return Path("/") / unquote(parts.path).lstrip("/")


# Each function imports its module itself, because a driver is slow to import and may not be installed.


def _local(uri: str) -> Adapter:
    from lakesync.adapters.object_store.local import LocalDisk

    return LocalDisk(_path(uri))


def _sqlite(uri: str) -> Adapter:
    from lakesync.adapters.backends.sqlite import SqliteAdapter

    return SqliteAdapter(_path(uri))


def _postgres(uri: str) -> Adapter:
    from lakesync.adapters.backends.postgres import PostgresAdapter

    return PostgresAdapter(uri)


def _mysql(uri: str) -> Adapter:
    from lakesync.adapters.backends.mysql import MySqlAdapter

    return MySqlAdapter(uri)


def _s3(uri: str) -> Adapter:
    from lakesync.adapters.object_store.s3 import S3Objects

    return S3Objects.of(uri)


def _bigquery(uri: str) -> Adapter:
    from lakesync.adapters.backends.bigquery import BigQueryAdapter

    return BigQueryAdapter(uri)


def _iceberg(uri: str) -> Adapter:
    from lakesync.adapters.backends.iceberg import IcebergDeltas

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
