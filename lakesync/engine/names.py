"""Rejects names of tables and columns that differ from known names only in case, such as `Orders` beside `orders`.

The *lake* is the Iceberg tables of all synced rows; a *state table* has the current rows of one. The SQL engines that
read it, and the databases of clients and destinations, ignore case. A *gateway* is one app's stream of changes. So each
namespace of the lake (an Iceberg namespace, which gateways may share) has one spelling of each name: the one that was
used first. `SyncGateway` checks schemas when they are registered. `engine.pushing` checks the *deltas* (changes of
rows) of each push. Both do so in their transaction, which also stores new names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from lakesync.model.errors import Rejection, SchemaError, SchemaMismatchError
from lakesync.model.schema import TableSchema
from lakesync.model.types import RowDelta
from lakesync.staging.records import GatewayConfig
from lakesync.staging.store.push import NameCommit, NameView

_MAX_KNOWN = 100_000
"""The most names in the cache of `Names`; later ones are looked up in the store at each use."""


class Names:
    """Checks names against the spellings in the store, and caches those. The gateways of an engine share one."""

    def __init__(self, namespace_of: Callable[[str], str] = lambda _: "") -> None:
        """Create an empty cache.

        Args:
            namespace_of: returns the namespace of a gateway's state tables in the lake, given the gateway's id; by
                default all gateways share one.
        """
        self.namespace_of = namespace_of
        self.known: set[tuple[str, str]] = set()
        """Namespace and name (a table, or `table.column`), as in a durable commit; about `_MAX_KNOWN` at most."""

    def check_schema(self, commit: NameCommit, schema: TableSchema) -> None:
        """Reject a schema whose table or columns differ from known names only in case; store its new names.

        Args:
            commit: the open transaction in the gateway's store.
            schema: the new schema; names that its registered version has already are accepted.

        Raises:
            SchemaError: a name differs only in case; the message has both spellings.
        """
        registered = commit.config.schemas.get(schema.table)
        before = set(_names_of_schema(registered.schema)) if registered is not None else set()
        faults = _add_names(commit, self.namespace_of(commit.gateway), set(_names_of_schema(schema)) - before)
        if faults:
            raise SchemaError(faults[min(faults)])

    def lacks_registered(self, view: NameView) -> bool:
        """Return whether the store lacks names of a gateway's schemas.

        A store that was rebuilt from the lake has none, and earlier versions did not store them.
        `SyncGateway.add_names` calls this and `add_registered` when the engine opens.
        """
        names = set(_names_of_config(view.config))
        return len(view.name_spellings(self.namespace_of(view.gateway), names)) < len({name.lower() for name in names})

    def add_registered(self, commit: NameCommit) -> None:
        """Store the names in a gateway's registered schemas."""
        commit.add_spellings(self.namespace_of(commit.gateway), set(_names_of_config(commit.config)))


class PushNames:
    """Checks the names of one push, and caches them after its commit. `SyncGateway` creates one for each push.

    `engine.pushing` calls `check` in the commit. The gateway adds `add_durable` to the push's future.
    """

    def __init__(self, names: Names) -> None:
        """Create the check.

        Args:
            names: the engine's cache, to which the push's names are added.
        """
        self._names = names
        self._checked: set[tuple[str, str]] = set()
        """Pairs of namespace and name that the push has, and that were not cached."""

    def check(self, commit: NameCommit, deltas: Sequence[RowDelta], columns: Collection[str]) -> None:
        """Reject deltas whose table or column has a name that differs from a known one only in case.

        Tables with a schema are skipped: their names were checked when it was registered.

        Args:
            commit: the open transaction that stores the push.
            deltas: the push's deltas.
            columns: the names of all of their columns.

        Raises:
            SchemaMismatchError: names differ only in case; its `rejected` names every delta that uses one.
        """
        self._checked = set()
        pushed_tables = {delta.table for delta in deltas}
        tables = pushed_tables - commit.config.schemas.keys()
        if not tables:
            return
        if len(pushed_tables) == 1:  # the common case, which needs no pairs of table and column, so it is faster
            (table,) = pushed_tables
            column_names = {f"{table}.{column}" for column in columns}
        else:
            cells = {(delta.table, cell.column) for delta in deltas for cell in delta.columns}
            column_names = {f"{table}.{column}" for table, column in cells if table in tables}
        namespace = self._names.namespace_of(commit.gateway)
        new = {name for name in tables | column_names if (namespace, name) not in self._names.known}
        faults = _add_names(commit, namespace, new)
        if not faults:
            self._checked = {(namespace, name) for name in new}
            return
        rejected = [  # each delta with the first of its faults
            Rejection(delta.delta_id, SchemaMismatchError.code, fault)
            for delta in deltas
            if delta.table in tables
            for fault in [faults[name] for name in _names_of_delta(delta) if name in faults][:1]
        ]
        raise SchemaMismatchError(f"{len(rejected)} of {len(deltas)} deltas rejected: {rejected[0].message}", rejected)

    @property
    def has_new(self) -> bool:
        """Whether the push has names that were not cached, and so perhaps not stored before."""
        return bool(self._checked)

    def add_durable(self, push: Future[Any]) -> None:
        """Add the checked names to the known ones if the push was committed.

        Args:
            push: the completed future of the push; it may have failed or be cancelled.
        """
        if not push.cancelled() and push.exception() is None and len(self._names.known) < _MAX_KNOWN:
            self._names.known |= self._checked


def _add_names(commit: NameCommit, namespace: str, names: set[str]) -> Mapping[str, str]:
    """Store names that the namespace lacks, and return an error message for each name that is stored in another case.

    Args:
        commit: the open transaction of the push or registration that uses the names.
        namespace: the namespace of the gateway's state tables in the lake.
        names: tables, and columns as `table.column`. The table of each column is among them, or was checked before.

    Returns:
        An error message by name.
    """
    if not names:
        return {}
    spellings = commit.add_spellings(namespace, names)
    faults: dict[str, str] = {}
    for name in names:
        stored = spellings[name.lower()]
        # of `table.column` only the column is compared: the table is checked by its own name
        if stored.rpartition(".")[2] != name.rpartition(".")[2]:
            faults[name] = (
                f"{_describe(name)} differs from {_describe(stored)} only in case: use that name, or another one"
            )
    return faults


def _names_of_delta(delta: RowDelta) -> Iterator[str]:
    """Yield the names that a delta uses."""
    return _names(delta.table, (cell.column for cell in delta.columns))


def _names_of_schema(schema: TableSchema) -> Iterator[str]:
    """Yield the names in a schema."""
    return _names(schema.table, (column.name for column in schema.columns))


def _names(table: str, columns: Iterable[str]) -> Iterator[str]:
    """Yield a table's name, and its columns' as `table.column`."""
    yield table
    for column in columns:
        yield f"{table}.{column}"


def _names_of_config(config: GatewayConfig) -> Iterable[str]:
    """Return the names in all registered schemas of a gateway."""
    return (name for registered in config.schemas.values() for name in _names_of_schema(registered.schema))


def _describe(name: str) -> str:
    """Return a name for an error message."""
    table, _, column = name.partition(".")
    return f"column {column!r} of table {table!r}" if column else f"table {table!r}"
