"""The values that a client stores: its position, known rows and edits; and the changes that one step commits.

The core creates them, and a `ClientStore` stores them.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from lakesync.model.errors import ConfigurationError
from lakesync.model.merge import RowState
from lakesync.model.types import RowDelta, RowKey

EditStatus = Literal["waiting", "sent", "refused"]

SOURCE_GENERATION = 0
"""The generation of rows from a named source (an adapter beside the gateway's own feed): no resync removes them."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """How far the client has synchronised: one small record, stored as a JSON array of the fields in this order."""

    client_id: str = ""
    """The client that owns the database; empty until the first commit."""
    cursor: int = 0
    """The arrival (the gateway's timestamp of receipt) up to which pages are applied; 0 when a full pull starts."""
    caught_up: bool = False
    """Whether the newest page was the last one: the gateway had nothing more at that moment."""
    generation: int = 1
    """How often the client has started from cursor 0. A row of an older generation was not in the newest full pull."""
    in_full_pull: bool = False
    """Whether a pull from cursor 0 is in progress; at its end, rows of older generations are removed."""
    hlc: int = 0
    """The highest hlc (hybrid logical clock) issued to an edit or observed in a page."""
    gateway_hlc: int = 0
    """The highest hlc that the gateway accepted from this client or sent to it."""
    edit_count: int = 0
    """Number of edits ever made: the number of the newest one."""
    own_writes_up_to: int = 0
    """Every write of this client up to this hlc is in this database. It advances with every commit once a pull was
    complete in this process. A file restored from a backup lacks later writes; the first pull asks for them."""
    gateway: str = ""
    """The id of the gateway with which this database is synchronised; empty until it is known."""

    def bound_to(self, client_id: str, gateway: str = "") -> Position:
        """Return this position with its client and gateway set.

        Args:
            client_id: the client that opens the database.
            gateway: the gateway's id; empty to leave it unchanged.

        Raises:
            ConfigurationError: the database belongs to another client or gateway.
        """
        if self.client_id not in ("", client_id):
            raise ConfigurationError(
                f"the database belongs to client {self.client_id!r} and cannot be opened as {client_id!r}: use one "
                "file for each client"
            )
        if gateway and self.gateway not in ("", gateway):
            raise ConfigurationError(
                f"the database is synchronised with gateway {self.gateway!r}. Gateway {gateway!r} would receive its "
                "edits and remove its rows. Use another file for that gateway."
            )
        return replace(self, client_id=client_id, gateway=gateway or self.gateway)


class KnownRow(msgspec.Struct, gc=False):
    """A row as the gateway has it, as far as this client may see it: pages and accepted edits, merged.

    A row that does not exist, or that this client may not see, is kept only while it has edits, because they are
    compared with its tombstone.
    """

    state: RowState
    """The merged row; its delta ids and widths are not used."""
    generation: int
    """The generation of the newest full pull that named the row; SOURCE_GENERATION for a named source's row."""


_REPR_CHARACTERS = 80
"""Characters of each value in the repr of an edit, at most."""


class Edit(msgspec.Struct, frozen=True):
    """A local change that the gateway has not acknowledged."""

    number: int
    """From 1, in the order in which edits were made."""
    delta: RowDelta
    """What the app wrote, as it is pushed."""
    status: EditStatus = "waiting"
    """`waiting`: to be pushed. `sent`: in a push without a response, which is repeated unchanged. `refused`: the
    gateway rejected it; it is kept until it is retried or dropped."""
    code: str = ""
    """The error code of the rejection; empty unless `refused`."""
    message: str = ""
    """The gateway's explanation of the rejection."""

    def __repr__(self) -> str:
        """Return a short description, with long values cut: `<Edit 7 waiting: UPDATE todos/t1 {'done': True}>`."""
        delta, reason = self.delta, f" {self.code}: {self.message}" if self.code else ""
        values = ", ".join(f"{name!r}: {value!r:.{_REPR_CHARACTERS}}" for name, value in self.values.items())
        return f"<Edit {self.number} {self.status}: {delta.op} {delta.table}/{delta.row_id} {{{values}}}{reason}>"

    @property
    def id(self) -> str:
        """The delta id, under which the gateway knows it too."""
        return self.delta.delta_id

    @property
    def values(self) -> dict[str, Any]:
        """The written columns with their decoded values."""
        return {cell.column: cell.decoded() for cell in self.delta.columns}


class LocalChange(NamedTuple):
    """A change that the app made to a row."""

    table: str
    row_id: str
    before: dict[str, Any] | None
    """The row's columns before the change; None if the row did not exist."""
    after: dict[str, Any] | None
    """The row's columns after the change; None if the row was deleted."""
    at: int | None = None
    """When the change was made, in milliseconds of this machine's clock; None for now."""


class BulkChanges(Protocol):
    """The part of a page that a store applies by itself: rows without edits, which need not be merged one by one."""

    @property
    def tables(self) -> set[str]:
        """The tables with changed rows."""

    @property
    def count(self) -> int:
        """The number of changed rows."""

    @property
    def renewed_rows(self) -> AbstractSet[RowKey]:
        """Rows of older generations that move to the page's generation."""


class Changes(msgspec.Struct):
    """What one step of the core changes. A store commits all of it or nothing."""

    position: Position | None = None
    """The new position; None if it did not change."""
    known: dict[RowKey, KnownRow | None] = {}
    """Known rows, each complete; None deletes the record."""
    rows: dict[RowKey, dict[str, Raw] | None] = {}
    """The app's rows, each complete, without columns that have no value; None deletes the row."""
    edits: dict[int, Edit | None] = {}
    """Edits by number; None deletes an edit that was accepted or dropped."""
    bulk: BulkChanges | None = None
    """Further rows, as `ClientStore.prepare` returned them."""

    @property
    def tables(self) -> set[str]:
        """The tables with changed rows."""
        tables = {table for table, _ in self.rows}
        return tables if self.bulk is None else tables | self.bulk.tables

    @property
    def count(self) -> int:
        """The number of changed rows."""
        return len(self.rows) + (self.bulk.count if self.bulk is not None else 0)
