"""An Iceberg catalogue opened by pyiceberg as Spark has it: by the settings that Spark's own catalogue is given."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog import Catalog

_BOTH = ("s3.", "header.", "oauth2-server-uri", "credential", "token", "scope", "prefix")
"""Settings, or how they begin, that mean the same to Iceberg in Java and to pyiceberg."""
_LOCAL = {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
"""Opens local files without pyarrow, which takes 80 MiB to import: metadata needs none of it, a scan of rows does."""


def open_iceberg(name: str, uri: str, settings: Mapping[str, str]) -> Catalog:
    """Open one; nothing is asked of a database yet, of a REST catalogue its configuration.

    Args:
        name: what Spark calls it.
        uri: `http(s)://…` of a REST catalogue, or a database as SQLAlchemy takes it.
        settings: those of `spark.sql.catalog.NAME.`, without that; what they leave open of S3 the variables of AWS say,
            by which tasks go too.

    Raises:
        requests.ConnectionError: no REST catalogue answers.
    """
    given = {**_s3(settings), **{key: value for key, value in settings.items() if key.startswith(_BOTH)}}
    given["warehouse"] = settings.get("warehouse", "")
    if given["warehouse"].startswith("file:"):
        given |= _LOCAL
    if uri.startswith(("http://", "https://")):
        from pyiceberg.catalog.rest import RestCatalog

        return RestCatalog(name, uri=uri, **given)
    from pyiceberg.catalog.sql import SqlCatalog

    return SqlCatalog(name, uri=uri, init_catalog_tables="false", **given)


def _s3(settings: Mapping[str, str]) -> dict[str, str]:
    region = settings.get("client.region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    found = {"s3.endpoint": os.environ.get("AWS_ENDPOINT_URL"), "s3.region": region}
    return {key: value for key, value in found.items() if value}
