"""The messages of the protocol: deltas, pushes, pulls and their responses, actions, connectors.

All are frozen msgspec Structs, created when a request is decoded; later code does not check their form again. Their
fields have the wire's names in camelCase through `rename`, so that JSON needs no mapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

Op = Literal["INSERT", "UPDATE", "DELETE"]

Stamp = tuple[int, str]
"""`(hlc, client id)`: ordered by hlc, then by client id in code point order."""

RowKey = tuple[str, str]
"""`(table, row id)`."""

Claims = dict[str, str | list[str]]
"""A token's claims that are strings or lists of strings, with `sub`."""


class ColumnValue(msgspec.Struct, frozen=True, gc=False):
    """One column's value, as the JSON text that was received."""

    column: str
    value: msgspec.Raw

    @classmethod
    def of(cls, column: str, value: Any) -> ColumnValue:
        """Create one from a Python value that can be written as JSON."""
        return cls(column, msgspec.Raw(msgspec.json.encode(value)))

    def decoded(self) -> Any:
        """Return the value as a Python object."""
        return msgspec.json.decode(self.value)


class OfRow:
    """A change of one row: the properties that deltas have in common."""

    __slots__ = ()
    table: str
    row_id: str
    client_id: str
    hlc: int

    @property
    def stamp(self) -> Stamp:
        """The stamp that merges compare."""
        return (self.hlc, self.client_id)

    @property
    def key(self) -> RowKey:
        """Table and row id."""
        return (self.table, self.row_id)


class RowDelta(OfRow, msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A column-level change of one row."""

    op: Op
    table: str
    row_id: str
    client_id: str
    columns: tuple[ColumnValue, ...]
    hlc: int
    delta_id: str


class SyncPush(msgspec.Struct, frozen=True, rename="camel"):
    """A client's push."""

    client_id: str
    deltas: tuple[RowDelta, ...]
    last_seen_hlc: int = 0


class SyncPull(msgspec.Struct, frozen=True, rename="camel"):
    """A client's pull: `since_hlc` is a cursor (an arrival), never a client's hlc."""

    client_id: str
    since_hlc: int
    max_deltas: int = 100
    source: str | None = None
    own_hlc: int | None = None
    """Of its own writes, the client has those up to this hlc only, for example after its database was restored. None:
    all."""


class SyncResponse(msgspec.Struct, frozen=True, rename="camel"):
    """A page of what a client lacks, and the cursor after it."""

    deltas: tuple[RowDelta, ...]
    server_hlc: int
    has_more: bool = False


class SyncPage(NamedTuple):
    """A page as the engine creates it: its deltas may be encoded still, and are decoded when they are read."""

    deltas: Sequence[RowDelta]
    server_hlc: int
    has_more: bool = False


class PushResult(msgspec.Struct, frozen=True, rename="camel"):
    """The response to a push; `accepted` includes repeated deltas."""

    server_hlc: int
    accepted: int
    deltas: tuple[RowDelta, ...] = ()


class Action(msgspec.Struct, frozen=True, rename="camel"):
    """An imperative request to a connector."""

    client_id: str
    hlc: int
    connector: str
    action_type: str
    params: msgspec.Raw
    """A JSON object, as text: use `msgspec.json.decode(action.params)`."""
    action_id: str
    idempotency_key: str | None = None


class ActionPush(msgspec.Struct, frozen=True, rename="camel"):
    """A client's actions."""

    client_id: str
    actions: tuple[Action, ...]


class ActionResult(msgspec.Struct, frozen=True, rename="camel"):
    """An action that was executed."""

    action_id: str
    data: msgspec.Raw
    """A JSON object."""
    server_hlc: int

    def decoded(self) -> Any:
        """Return the data as a Python object."""
        return msgspec.json.decode(self.data)


class ActionFailure(msgspec.Struct, frozen=True, rename="camel"):
    """An action that failed; if it is retryable, it may be sent again with the same id."""

    action_id: str
    code: str
    message: str
    retryable: bool


class ActionResponse(msgspec.Struct, frozen=True, rename="camel"):
    """One outcome per action, in order."""

    results: tuple[ActionResult | ActionFailure, ...]
    server_hlc: int


class StoredConnector(msgspec.Struct, frozen=True):
    """A connector registered at run time."""

    name: str
    type: str
    settings: dict[str, Any]
    """By the type's JSON Schema; a secret is a reference or sealed, never plain."""
    ingest: dict[str, Any] | None = None


class Position(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A position after one delta and before the next. Positions compare in the order of reading."""

    value: int
    """Arrival or hlc, by the order of reading."""
    hlc: int
    client_id: str
    delta_id: str
    gateway: str
