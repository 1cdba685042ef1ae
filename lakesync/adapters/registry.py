"""Opens adapters by URI, such as `postgresql://…` or `s3://…`. The scheme names the kind of database or object store.

Adapters store deltas, the changes of rows that clients have made. The pipeline and commands such as `lakesync migrate`
open them here. The gateway server does so for two purposes: without a pipeline it copies deltas to an adapter, and
clients can pull the rows of adapters that are declared as sources.

A package adds a scheme with an entry point in the group `lakesync.adapters`. The entry point's name is the scheme, its
value a function from the URI to the adapter:

    [project.entry-points."lakesync.adapters"]
    azure = "my_package:open_azure"
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from lakesync.adapters.base import DatabaseAdapter
from lakesync.adapters.object_store.base import LakeAdapter
from lakesync.adapters.object_store.delta_files import FlushFormat
from lakesync.adapters.object_store.deltas import ObjectDeltas
from lakesync.model.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Adapter = DatabaseAdapter | LakeAdapter
"""A database, or an object store (`LakeAdapter`)."""

GROUP = "lakesync.adapters"
"""The group of entry points in which packages declare adapters."""

_BUILT_IN = {
    "bigquery": "lakesync.adapters.backends.bigquery:BigQueryAdapter",
    "file": "lakesync.adapters.object_store.local:LocalDisk.of",
    "iceberg": "lakesync.adapters.backends.iceberg:IcebergDeltas.of",
    "mysql": "lakesync.adapters.backends.mysql:MySqlAdapter",
    "postgresql": "lakesync.adapters.backends.postgres:PostgresAdapter",
    "s3": "lakesync.adapters.object_store.s3:S3Objects.of",
    "sqlite": "lakesync.adapters.backends.sqlite:SqliteAdapter.of",
}
"""Scheme → the function that opens its adapters. It is imported on use, because a driver is slow to import."""


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
    if scheme in _BUILT_IN:
        open_uri: Callable[[str], Adapter] = resolve_name(_BUILT_IN[scheme])
        return open_uri(uri)
    for point in entry_points(group=GROUP, name=scheme):
        try:
            open_uri = point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"the adapter {scheme!r} ({point.value}) cannot be loaded: {error}") from error
        return open_uri(uri)
    raise ConfigurationError(
        f"no adapter has the scheme {scheme!r} (known: {', '.join(schemes())}): install the package that brings it"
    )


def schemes() -> list[str]:
    """Return every scheme that `open_adapter` supports."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def is_object_store(adapter: Adapter) -> TypeIs[LakeAdapter]:
    """Return whether an adapter is an object store rather than a database."""
    return hasattr(adapter, "put_object")


def as_database(adapter: Adapter, flush_format: FlushFormat = "parquet") -> DatabaseAdapter:
    """Return an adapter as a `DatabaseAdapter`. `ObjectDeltas`, which stores deltas as objects, wraps an object store.

    Args:
        adapter: a database, which is returned as it is, or an object store.
        flush_format: how the objects that are written to an object store are encoded.
    """
    return ObjectDeltas(adapter, flush_format) if is_object_store(adapter) else adapter
