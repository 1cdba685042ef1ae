"""Rejects names of tables and columns that differ from known names only in case.

The engines that read the lake, and the databases of clients and destinations, ignore case. So each namespace of the
lake has one spelling of each name: that of the gateway that used it first. Pushes and schema registrations are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from lakesync.model.errors import Rejection, SchemaError, SchemaMismatchError
from lakesync.model.schema import TableSchema
from lakesync.model.types import RowDelta
from lakesync.staging.records import GatewayConfig
from lakesync.staging.store.push import NameCommit, NameView

_KNOWN = 100_000


class Names:
    """The names of all gateways of an engine."""

    def __init__(self, namespace_of: Callable[[str], str] = lambda _: "") -> None:
        """Create an empty cache.

        Args:
            namespace_of: returns a gateway's namespace in the lake.
        """
        self._namespace_of = namespace_of
        self._known: set[tuple[str, str]] = set()
        """Namespace and name, spelled as in a durable commit."""

    def check_push(self, commit: NameCommit, deltas: Sequence[RowDelta]) -> None:
        """Reject deltas whose table or column has a name that differs from a known one only in case.

        Tables with a schema are skipped: their names were checked when it was registered.

        Args:
            commit: of the push.
            deltas: of the push.

        Raises:
            SchemaMismatchError: names every rejected delta.
        """
        used = {delta.table for delta in deltas}
        tables = used - commit.config.schemas.keys()
        if not tables:
            return
        if len(used) == 1:  # mostly so, and quicker than with pairs
            (table,) = used
            named = {f"{table}.{column}" for column in {cell.column for delta in deltas for cell in delta.columns}}
        else:
            cells = {(delta.table, cell.column) for delta in deltas for cell in delta.columns}
            named = {f"{table}.{column}" for table, column in cells if table in tables}
        faults = self._faults(commit, tables | named)
        if not faults:
            return
        refused = [
            Rejection(delta.delta_id, SchemaMismatchError.code, fault)
            for delta in deltas
            if delta.table in tables
            for fault in [faults[name] for name in _names_of(delta) if name in faults][:1]
        ]
        raise SchemaMismatchError(f"{len(refused)} of {len(deltas)} deltas refused: {refused[0].message}", refused)

    def check_schema(self, commit: NameCommit, schema: TableSchema) -> None:
        """Reject a schema whose table or columns differ from known names only in case.

        Args:
            commit: of the gateway.
            schema: the new schema.

        Raises:
            SchemaError: the message has both names.
        """
        registered = commit.config.schemas.get(schema.table)
        before = set(_names_in(registered.schema)) if registered is not None else set()
        faults = self._faults(commit, set(_names_in(schema)) - before)
        if faults:
            raise SchemaError(faults[min(faults)])

    def missing(self, view: NameView) -> bool:
        """Return whether names of a gateway's schemas are missing in the store: earlier versions did not store them."""
        names = set(_names_of_schemas(view.config))
        return len(view.spelled_names(self._namespace_of(view.gateway), names)) < len({each.lower() for each in names})

    def add_registered(self, commit: NameCommit) -> None:
        """Add the names of a gateway's schemas."""
        commit.spell_names(self._namespace_of(commit.gateway), set(_names_of_schemas(commit.config)))

    def _faults(self, commit: NameCommit, names: set[str]) -> Mapping[str, str]:
        """Return, by name, what is wrong with names; those of tables must be among them."""
        namespace = self._namespace_of(commit.gateway)
        new = {name for name in names if (namespace, name) not in self._known}
        if not new:
            return {}
        there = commit.spelled_names(namespace, new)
        spelled = there if len(there) == len(new) else commit.spell_names(namespace, new)
        faults: dict[str, str] = {}
        for name in new:
            held = spelled[name.lower()]
            if held.rpartition(".")[2] != name.rpartition(".")[2]:
                faults[name] = f"{_told(name)} differs from {_told(held)} only in case: use that name, or another one"
            elif there.get(name.lower()) == name and len(self._known) < _KNOWN:
                self._known.add((namespace, name))
        return faults


def _names_of(delta: RowDelta) -> Iterator[str]:
    return _names(delta.table, (cell.column for cell in delta.columns))


def _names_in(schema: TableSchema) -> Iterator[str]:
    return _names(schema.table, (column.name for column in schema.columns))


def _names(table: str, columns: Iterable[str]) -> Iterator[str]:
    yield table
    for column in columns:
        yield f"{table}.{column}"


def _names_of_schemas(config: GatewayConfig) -> Iterable[str]:
    return (name for registered in config.schemas.values() for name in _names_in(registered.schema))


def _told(name: str) -> str:
    table, _, column = name.partition(".")
    return f"column {column!r} of table {table!r}" if column else f"table {table!r}"
