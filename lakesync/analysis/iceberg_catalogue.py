"""Opens an Iceberg catalogue by pyiceberg with the settings of Spark's catalogue, and reads the bounds of its files.

pyiceberg is imported when a function is called, so that Spark's tasks can import this module without it. `lakehouse`
uses it too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_SHARED_SETTINGS = ("s3.", "header.", "oauth2-server-uri", "credential", "token", "scope", "prefix")
"""Prefixes of settings that Iceberg in Java and pyiceberg have in common."""
_LOCAL_FILE_IO = {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
"""Opens local files without pyarrow, whose import takes 80 MiB. Metadata can be read without it; a scan imports it."""


def open_iceberg(name: str, uri: str, settings: Mapping[str, str]) -> Catalog:
    """Open an Iceberg catalogue with the settings of Spark's catalogue. Does not connect to a database yet.

    Args:
        name: the catalogue's name in Spark.
        uri: `http(s)://…` of a REST catalogue, or a database URL of SQLAlchemy.
        settings: the settings below `spark.sql.catalog.NAME.`. S3 settings that they omit come from the AWS variables,
            as in Spark's tasks.

    Raises:
        requests.ConnectionError: the REST catalogue does not answer.
    """
    properties = {
        **_s3_settings(settings),
        **{key: each for key, each in settings.items() if key.startswith(_SHARED_SETTINGS)},
    }
    properties["warehouse"] = settings.get("warehouse", "")
    if properties["warehouse"].startswith("file:"):
        properties |= _LOCAL_FILE_IO
    if uri.startswith(("http://", "https://")):
        from pyiceberg.catalog.rest import RestCatalog

        return RestCatalog(name, uri=uri, **properties)
    from pyiceberg.catalog.sql import SqlCatalog

    return SqlCatalog(name, uri=uri, init_catalog_tables="false", **properties)


def _s3_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return pyiceberg's settings for S3 from the variables that AWS's own tools read."""
    region = settings.get("client.region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    found = {"s3.endpoint": os.environ.get("AWS_ENDPOINT_URL"), "s3.region": region}
    return {key: value for key, value in found.items() if value}


def column_bounds(table: Table, file: DataFile, column: str) -> tuple[str | int | None, str | int | None]:
    """Return the lower and upper bound of a column in a data file, as its manifest records them.

    Args:
        table: the file's table.
        file: a data file.
        column: a column of strings or integers. Bounds of long strings may be truncated, unless the table's property
            `write.metadata.metrics.column.COLUMN` is `full`.

    Returns:
        The bounds; None for a bound that was not recorded.
    """
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import PrimitiveType

    field = table.schema().find_field(column)
    low, high = ((bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    kind = field.field_type
    assert isinstance(kind, PrimitiveType)
    return (None if low is None else from_bytes(kind, low), None if high is None else from_bytes(kind, high))
