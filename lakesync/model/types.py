"""The messages of the protocol: deltas, pushes, pulls and their responses, actions, connectors.

A *gateway* is one app's stream of changes; a *delta* is a client's change of some columns of one row. A *push* sends
deltas to the gateway; a *pull* requests a *page* of the changes that the client lacks, from a *cursor*: the number up
to which it has them. An *hlc* is a timestamp of a hybrid logical clock. *Claims* are the fields of a client's token,
and *sync rules* decide by them which rows it sees. All packages use these values. They are created when a request is
decoded, and later code does not check their form again. `rename="camel"` gives the fields their names in JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

Op = Literal["INSERT", "UPDATE", "DELETE"]
"""The operation of a delta."""

Operator = Literal["eq", "neq", "in", "gt", "lt", "gte", "lte"]
"""The comparisons of filters in sync rules, and of conditions of flows (copies from one database to another);
`rules.model.holds` has their meaning."""

Stamp = tuple[int, str]
"""`(hlc, client id)` of a write, where hlc is the client's timestamp: ordered by hlc, then by client id in code point
order."""

RowKey = tuple[str, str]
"""`(table, row id)`."""


def row_ids_by_table(keys: Iterable[RowKey]) -> dict[str, list[str]]:
    """Return the row ids of keys, by table."""
    result: dict[str, list[str]] = {}
    for table, row_id in keys:
        result.setdefault(table, []).append(row_id)
    return result


Claims = dict[str, str | list[str]]
"""A token's claims that are strings or lists of strings, with `sub`."""

DEFAULT_MAX_DELTAS = 100
"""`SyncPull.max_deltas` of a pull that names no limit."""


class ColumnValue(msgspec.Struct, frozen=True, gc=False):
    """A column's name and its value, as the JSON text that was received."""

    column: str
    value: msgspec.Raw

    @classmethod
    def of(cls, column: str, value: Any) -> ColumnValue:
        """Create a ColumnValue from a Python value that can be written as JSON.

        Args:
            column: the column's name.
            value: the value.
        """
        return cls(column, msgspec.Raw(msgspec.json.encode(value)))

    def decoded(self) -> Any:
        """Return the value as a Python object."""
        return msgspec.json.decode(self.value)


class DeltaProperties:
    """The base class of `RowDelta` and `wire.pages.PageDelta`: the properties that are computed from their fields."""

    __slots__ = ()
    table: str
    row_id: str
    client_id: str
    hlc: int

    @property
    def stamp(self) -> Stamp:
        """The stamp that merges compare: the greatest one wins a column."""
        return (self.hlc, self.client_id)

    @property
    def key(self) -> RowKey:
        """Table and row id."""
        return (self.table, self.row_id)


class RowDelta(DeltaProperties, msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A change of some columns of one row."""

    op: Op
    table: str
    row_id: str
    client_id: str
    """The client that made the change."""
    columns: tuple[ColumnValue, ...]
    """The changed columns; none for a DELETE."""
    hlc: int
    """The client's timestamp of the change: a hybrid logical clock, see `model.hlc`."""
    delta_id: str
    """The hash of the delta's content (`model.delta.delta_id`), by which a repeated delta is recognised."""

    @property
    def is_empty_update(self) -> bool:
        """Whether the delta is an UPDATE without columns, as an erasure leaves it; clients may push such deltas too."""
        return self.op == "UPDATE" and not self.columns


def column_names(deltas: Sequence[RowDelta]) -> list[tuple[str, ...]]:
    """Return the column names of each delta, in order; one tuple object if all deltas have the same.

    Args:
        deltas: the deltas, at least one.
    """
    first = tuple([cell.column for cell in deltas[0].columns])
    # many pushes have the same columns in each delta, and one comparison is faster than a tuple for each
    if {len(delta.columns) for delta in deltas} == {len(first)}:
        names = [cell.column for delta in deltas for cell in delta.columns]
        if names == [*first] * len(deltas):
            return [first] * len(deltas)
    return [tuple([cell.column for cell in delta.columns]) for delta in deltas]


class SyncPush(msgspec.Struct, frozen=True, rename="camel"):
    """A client's push."""

    client_id: str
    deltas: tuple[RowDelta, ...]
    last_seen_hlc: int = 0
    """The client's cursor: it has everything up to it. 0 if it never pulled."""


class SyncPull(msgspec.Struct, frozen=True, rename="camel"):
    """A client's pull."""

    client_id: str
    since_hlc: int
    """The client's cursor: the `server_hlc` of the last response, never a timestamp of the client. 0 at first."""
    max_deltas: int = DEFAULT_MAX_DELTAS
    """The number of deltas at which the page is full; it may have a few more, because it never splits a row."""
    source: str | None = None
    """The name of a source (a database beside the gateway's own feed) to pull from; None for the gateway's feed."""
    own_hlc: int | None = None
    """The hlc up to which the client has its own writes; later ones are lost, for example because its database was
    restored from a backup, and are sent back to it. None if it has all of them."""


class SyncResponse(msgspec.Struct, frozen=True, rename="camel"):
    """A page of what a client lacks, and the cursor after it."""

    deltas: tuple[RowDelta, ...]
    server_hlc: int
    """The cursor with which the client requests the next page."""
    has_more: bool = False
    """Whether more pages follow now."""


class SyncPage(NamedTuple):
    """A `SyncResponse` as the engine creates it. Its deltas may still be encoded; they are decoded when read."""

    deltas: Sequence[RowDelta]
    server_hlc: int
    """The cursor with which the client requests the next page."""
    has_more: bool = False
    """Whether more pages follow now."""

    def decoded(self) -> SyncResponse:
        """Return the page with decoded deltas."""
        return SyncResponse(tuple(self.deltas), self.server_hlc, self.has_more)


class PushResult(msgspec.Struct, frozen=True, rename="camel"):
    """The response to a push."""

    server_hlc: int
    """The client's new cursor."""
    accepted: int
    """The number of accepted deltas, those that were accepted before included."""
    deltas: tuple[RowDelta, ...] = ()
    """A field of the protocol's message; this gateway leaves it empty."""


class Action(msgspec.Struct, frozen=True, rename="camel"):
    """A command of a client to an external system, for example "create an issue"."""

    client_id: str
    hlc: int
    """The client's timestamp of the request."""
    connector: str
    """The name of the connector, which describes the external system."""
    action_type: str
    """What to do, of the types that the connector executes."""
    params: msgspec.Raw
    """A JSON object, as text: use `msgspec.json.decode(action.params)`."""
    action_id: str
    """The hash of the action's content, by which a repeated action is recognised."""
    idempotency_key: str | None = None
    """Actions of a client with the same key are executed once; None if only the id counts."""


class ActionPush(msgspec.Struct, frozen=True, rename="camel"):
    """A client's request to execute actions, in their order."""

    client_id: str
    actions: tuple[Action, ...]


class ActionResult(msgspec.Struct, frozen=True, rename="camel"):
    """The outcome of an action that succeeded."""

    action_id: str
    data: msgspec.Raw
    """The handler's result: a JSON object."""
    server_hlc: int
    """The gateway's clock when the action was done. It is no cursor."""

    def decoded(self) -> Any:
        """Return the data as a Python object."""
        return msgspec.json.decode(self.data)


class ActionFailure(msgspec.Struct, frozen=True, rename="camel"):
    """The outcome of an action that failed."""

    action_id: str
    code: str
    """The error's code, see `model.errors`."""
    message: str
    retryable: bool
    """Whether the action may be sent again, with the same id, and may succeed then."""


ActionOutcome = ActionResult | ActionFailure
"""An action's result or failure; a retryable failure may also mean that it is still running."""


class ActionResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The response to an action request: one outcome for each action, in their order."""

    results: tuple[ActionOutcome, ...]
    server_hlc: int
    """The gateway's clock when the response was made. It is no cursor."""


class StoredConnector(msgspec.Struct, frozen=True):
    """A connector (a configured external system) that was registered at run time, as stores keep it."""

    name: str
    type: str
    """The connector's type, for example `jira`."""
    settings: dict[str, Any]
    """The settings, which fit the type's JSON Schema. A secret is encrypted, or a reference (`env:NAME`,
    `file:PATH`)."""
    ingest: dict[str, Any] | None = None
    """How the connector is polled; None if it is not."""


class Position(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A position in a database's order of deltas: after the delta that it names, and before the next one.

    Deltas are read in the order of their arrival (the gateway's timestamp of a commit) or of their hlc. Positions of
    one order compare in that order.
    """

    value: int
    """The delta's arrival or hlc, whichever the order is."""
    hlc: int
    client_id: str
    delta_id: str
    gateway: str
    """The id of the delta's gateway, because a database may contain several."""
