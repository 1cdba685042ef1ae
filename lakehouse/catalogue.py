"""The catalogue that a session writes to, opened by pyiceberg in this process: what a commit costs without Spark.

Both commit by exchanging the place of a table's metadata for another, if it is still the one that was read: neither can
undo the other's.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from lakesync.analysis.opening import open_iceberg

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

_SQLITE, _POSTGRES = "jdbc:sqlite:file:", "jdbc:postgresql:"


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
    if kind == "jdbc":
        uri = _database(uri, settings) or ""
    elif kind != "rest":
        uri = ""
    return open_iceberg(name, uri, settings) if uri else None


def _database(uri: str, settings: Mapping[str, str]) -> str | None:
    """What SQLAlchemy takes for a JDBC address."""
    if uri.startswith(_SQLITE):
        return f"sqlite:///{uri.removeprefix(_SQLITE)}"
    if not uri.startswith(_POSTGRES):
        return None
    user, password = (quote(settings.get(f"jdbc.{part}", ""), safe="") for part in ("user", "password"))
    place = uri.removeprefix(f"{_POSTGRES}//")
    return f"postgresql+psycopg://{user}{f':{password}' if password else ''}{'@' if user else ''}{place}"
