"""The values that travel: deltas, pushes, pulls and their answers.

All are frozen msgspec Structs, made once at the edge; code past the edge never checks their shape again.
Field names are the wire's own (camelCase) through `rename`, so that JSON needs no mapping.
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
"""A token's string and list claims, `sub` among them."""


class ColumnValue(msgspec.Struct, frozen=True, gc=False):
    """One column's value, as the raw JSON text that came in."""

    column: str
    value: msgspec.Raw

    @classmethod
    def of(cls, column: str, value: Any) -> ColumnValue:
        """Make one from a Python value that JSON can spell."""
        return cls(column, msgspec.Raw(msgspec.json.encode(value)))

    def decoded(self) -> Any:
        """The value as Python reads it."""
        return msgspec.json.decode(self.value)


class OfRow:
    """A change of one row, whatever its columns are."""

    __slots__ = ()
    table: str
    row_id: str
    client_id: str
    hlc: int

    @property
    def stamp(self) -> Stamp:
        """What the merge compares."""
        return (self.hlc, self.client_id)

    @property
    def key(self) -> RowKey:
        """The row it changes."""
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
    """A client's pull: `since_hlc` is an arrival cursor, never a client's hlc."""

    client_id: str
    since_hlc: int
    max_deltas: int = 100
    source: str | None = None
    own_hlc: int | None = None
    """The client has what it wrote itself up to this hlc, and no more: its database was put back, perhaps. None: all.
    """


class SyncResponse(msgspec.Struct, frozen=True, rename="camel"):
    """A page of what a client lacks, and the cursor after it."""

    deltas: tuple[RowDelta, ...]
    server_hlc: int
    has_more: bool = False


class SyncPage(NamedTuple):
    """What a `SyncResponse` holds, as the engine makes it: the deltas may be JSON yet, decoded when looked at."""

    deltas: Sequence[RowDelta]
    server_hlc: int
    has_more: bool = False


class PushResult(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to a push; a repeat counts in `accepted`."""

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
    """A JSON object, as text: `msgspec.json.decode(action.params)`."""
    action_id: str
    idempotency_key: str | None = None


class ActionPush(msgspec.Struct, frozen=True, rename="camel"):
    """A client's actions."""

    client_id: str
    actions: tuple[Action, ...]


class ActionResult(msgspec.Struct, frozen=True, rename="camel"):
    """An action that was done."""

    action_id: str
    data: msgspec.Raw
    """A JSON object."""
    server_hlc: int

    def decoded(self) -> Any:
        """The data as Python reads them."""
        return msgspec.json.decode(self.data)


class ActionFailure(msgspec.Struct, frozen=True, rename="camel"):
    """An action that was not done; a retryable one may be sent again under the same id."""

    action_id: str
    code: str
    message: str
    retryable: bool


class ActionResponse(msgspec.Struct, frozen=True, rename="camel"):
    """One outcome an action, in order."""

    results: tuple[ActionResult | ActionFailure, ...]
    server_hlc: int


class StoredConnector(msgspec.Struct, frozen=True):
    """A connector registered at run time."""

    name: str
    type: str
    settings: dict[str, Any]
    """By the type's JSON Schema; a secret is a reference or sealed, never plain."""
    ingest: dict[str, Any] | None = None
