"""The lake's tables as pyiceberg reads them, each loaded once: a query sees one version of it."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import requests
from pyiceberg.exceptions import NoSuchNamespaceError, RESTError
from pyiceberg.table import Table
from sqlalchemy.exc import SQLAlchemyError

from lakesync.analysis.opening import open_iceberg
from lakesync.model.errors import LakeUnavailableError

if TYPE_CHECKING:
    from types import TracebackType

    from pyiceberg.catalog import Catalog

    from lakesync.config import Config

MARKS_PROPERTY = "lakesync.merged"
NAMESPACE_PROPERTY = "lakesync.namespace."
"""Property of the table `gateways`: followed by a gateway's id, the namespace in which its rows are."""
UNFILLED_PROPERTY = "lakesync.unfilled"
CUT_TAG = "cut-"
"""Begins a tag's name; `GATEWAY-ARRIVAL` follows."""


def open_catalogue(config: Config) -> Catalog:
    """The Iceberg catalogue that the configuration names, as Spark has it too: a database, or a REST service.

    Raises:
        LakeUnavailableError: it is a REST service, and does not answer.
    """
    lake = config.lake
    prefix = f"spark.sql.catalog.{lake.catalog}."
    settings = config.spark.settings.items()
    own = {key.removeprefix(prefix): value for key, value in settings if key.startswith(prefix)}
    uri = lake.catalog_uri.replace("postgresql://", "postgresql+psycopg://", 1)
    try:
        return open_iceberg(lake.catalog, uri, {"warehouse": lake.warehouse, **own})
    except (RESTError, requests.ConnectionError) as error:
        raise _missing(config) from error


def has_catalogue(config: Config) -> bool:
    """Whether there may be a catalogue: one in a file is made by the first flush."""
    _, is_file, path = config.lake.catalog_uri.partition("sqlite:///")
    return not is_file or (Path(path).is_file() and Path(path).stat().st_size > 0)


class Lake:
    """One reading of the lake; close it."""

    def __init__(self, config: Config) -> None:
        """Raises: LakeUnavailableError: as `open_catalogue`."""
        self._config = config
        self.system = config.lake.system_namespace
        self.namespaces = config.namespaces
        self._is_there = has_catalogue(config)
        self._catalogue = open_catalogue(config)
        self._loaded: dict[tuple[str, str], Table] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._catalogue.close()

    @cached_property
    def states(self) -> dict[str, tuple[str, str]]:
        """How each state table is called, `TABLE` or `NAMESPACE.TABLE`, and its namespace and name.

        Raises:
            LakeUnavailableError: there is no catalogue.
        """
        where = self.namespaces
        found = ((place, name) for place in (where.shared, *where.apart) for name in sorted(self._names(place)))
        return {where.called(place, name): (place, name) for place, name in found}

    @property
    def deltas(self) -> Table | None:
        """The history; None before the first flush."""
        return self._load(self.system, "deltas") if "deltas" in self._names(self.system) else None

    @property
    def rejected(self) -> Table | None:
        """Live values that do not fit their column; None where there never was one."""
        return self._load(self.system, "rejected") if "rejected" in self._names(self.system) else None

    @property
    def gateways(self) -> Table | None:
        """What the lake keeps about gateways; None before the first checkpoint."""
        return self._load(self.system, "gateways") if "gateways" in self._names(self.system) else None

    def state(self, called: str) -> Table | None:
        """A state table, as it is called; None where there is none."""
        return self._load(*self.states[called]) if called in self.states else None

    def state_of(self, gateway: str, table: str) -> Table | None:
        """The state table that has a gateway's rows of a table."""
        return self.state(self.namespaces.called(self.namespaces.of(gateway), table))

    def snapshot_of(self, namespace: str, name: str) -> int | None:
        """Return the newest snapshot of any of the lake's tables; None where there is none.

        Args:
            namespace: of the table.
            name: of the table.
        """
        snapshot = self._load(namespace, name).current_snapshot() if name in self._names(namespace) else None
        return snapshot.snapshot_id if snapshot is not None else None

    def _load(self, namespace: str, name: str) -> Table:
        if (namespace, name) not in self._loaded:
            self._loaded[namespace, name] = self._catalogue.load_table((namespace, name))
        return self._loaded[namespace, name]

    def _names(self, namespace: str) -> list[str]:
        if not self._is_there:  # asking SQLite would make an empty one
            raise _missing(self._config)
        try:
            return [name for *_, name in self._catalogue.list_tables(namespace)]
        except NoSuchNamespaceError:
            return []
        except (SQLAlchemyError, RESTError, requests.ConnectionError) as error:
            raise _missing(self._config) from error


def _missing(config: Config) -> LakeUnavailableError:
    place = config.lake.catalog_uri.rpartition("@")[2]
    return LakeUnavailableError(
        f"there is no Iceberg catalogue at {place}: name the folder of a `lakesync up` with --data, or set "
        "LAKESYNC_LAKE_CATALOG_URI"
    )


def marks_of(table: Table) -> dict[str, int]:
    """Gateway → the arrival up to which all of its deltas are merged into a state table."""
    marks: dict[str, int] = json.loads(table.properties.get(MARKS_PROPERTY, "{}"))
    return marks


def unfilled_of(table: Table) -> set[str]:
    """The columns of a state table that were added, and that rows merged before lack yet."""
    return set(json.loads(table.properties.get(UNFILLED_PROPERTY, "[]")))


def cuts_of(table: Table) -> dict[str, dict[int, int]]:
    """Gateway → arrival of a cut → the snapshot of a state table that holds exactly that."""
    found: dict[str, dict[int, int]] = {}
    for name, ref in table.metadata.refs.items():
        gateway, _, arrival = name.removeprefix(CUT_TAG).rpartition("-")
        if name.startswith(CUT_TAG) and arrival.isdecimal():
            found.setdefault(gateway, {})[int(arrival)] = ref.snapshot_id
    return found
