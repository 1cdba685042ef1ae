"""The catalogue that a session writes to, opened by pyiceberg in this process: what a commit costs without Spark.

Both commit by exchanging the place of a table's metadata for another, if it is still the one that was read: neither can
undo the other's.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

_SQLITE, _POSTGRES = "jdbc:sqlite:file:", "jdbc:postgresql:"
_S3 = "s3."


@contextmanager
def iceberg_table(spark: SparkSession, name: str) -> Iterator[Table | None]:
    """A table of the lake as it is now, by its full, quoted name; None where only Spark knows its catalogue.

    Raises:
        pyiceberg.exceptions.NoSuchTableError: there is none.
    """
    catalogue, namespace, table = name.replace("`", "").split(".")
    opened = _opened(catalogue, _settings(spark, catalogue))
    if opened is None:
        yield None
        return
    try:
        yield opened.load_table((namespace, table))
    finally:
        opened.close()


def _settings(spark: SparkSession, catalogue: str) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{catalogue}."
    return {key.removeprefix(prefix): value for key, value in spark.conf.getAll.items() if key.startswith(prefix)}


def _opened(name: str, settings: Mapping[str, str]) -> Catalog | None:
    kind, uri = settings.get("type"), settings.get("uri", "")
    given = {**_s3(settings), "warehouse": settings.get("warehouse", "")}
    if kind == "rest":
        from pyiceberg.catalog.rest import RestCatalog

        return RestCatalog(name, uri=uri, **given)
    database = _database(uri, settings) if kind == "jdbc" else None
    if database is None:
        return None
    from pyiceberg.catalog.sql import SqlCatalog

    return SqlCatalog(name, uri=database, init_catalog_tables="false", **given)


def _s3(settings: Mapping[str, str]) -> dict[str, str]:
    """How S3 is reached: as the catalogue's settings say, else as the variables of AWS do, which tasks go by too."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    found = {"s3.endpoint": os.environ.get("AWS_ENDPOINT_URL"), "s3.region": settings.get("client.region", region)}
    found |= {key: value for key, value in settings.items() if key.startswith(_S3)}
    return {key: value for key, value in found.items() if value is not None}


def _database(uri: str, settings: Mapping[str, str]) -> str | None:
    """What SQLAlchemy takes for a JDBC address."""
    if uri.startswith(_SQLITE):
        return f"sqlite:///{uri.removeprefix(_SQLITE)}"
    if not uri.startswith(_POSTGRES):
        return None
    user, password = (quote(settings.get(f"jdbc.{part}", ""), safe="") for part in ("user", "password"))
    place = uri.removeprefix(f"{_POSTGRES}//")
    return f"postgresql+psycopg://{user}{f':{password}' if password else ''}{'@' if user else ''}{place}"
