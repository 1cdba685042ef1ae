"""What a client keeps, as values."""

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

UNSWEPT = 0
"""The generation of rows that a named source sent: no resync removes them."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where the client stands: one small record."""

    client_id: str = ""
    """Whose database this is; empty until the first commit."""
    cursor: int = 0
    """The arrival up to which pages are applied; 0 before the first, and when starting again."""
    complete: bool = False
    """Whether nothing was left behind the cursor when it was handed out: no page mark of an unfinished walk."""
    generation: int = 1
    """How many times the client started from 0; a row that a finished walk did not name has an older one."""
    walking: bool = False
    """A walk that began at 0 is not finished; rows of older generations are removed at its end."""
    hlc: int = 0
    """The highest hlc handed out to an edit or seen in a page."""
    seen: int = 0
    """The highest hlc that the gateway accepted from this client or sent to it."""
    edits: int = 0
    """Edits ever made: the number of the newest."""
    own: int = 0
    """Of what this client ever wrote, all up to this hlc is here: as much as was certain when the newest was accepted,
    or a pull came to its end. A file that was put back from a backup lacks what was accepted after that."""
    gateway: str = ""
    """With which gateway this is in step; empty until it is known."""

    def claimed(self, client_id: str, gateway: str = "") -> Position:
        """The same, of this client and in step with this gateway; an empty one is as it was.

        Raises:
            ConfigurationError: it is another's.
        """
        if self.client_id not in ("", client_id):
            raise ConfigurationError(
                f"the database belongs to client {self.client_id!r}, not {client_id!r}: give each client its own"
            )
        if gateway and self.gateway not in ("", gateway):
            raise ConfigurationError(
                f"the database is kept in step with gateway {self.gateway!r}, not with {gateway!r}, which would be "
                "sent its changes and take its rows away: open another file for that one"
            )
        return replace(self, client_id=client_id, gateway=gateway or self.gateway)


class KnownRow(msgspec.Struct, gc=False):
    """A row as the gateway is known to have it, as far as this client may see: pages and accepted edits, merged.

    Ids and widths of the deltas in `state` mean nothing here. The tombstone of a row that is not visible is what its
    edits are measured by; such a row is kept only while it has edits.
    """

    state: RowState
    generation: int


_SHOWN = 80
"""Characters of a value that are shown to people."""


class Edit(msgspec.Struct, frozen=True):
    """A change by the user that the gateway is not known to have."""

    number: int
    """In the order in which edits were made, from 1."""
    delta: RowDelta
    status: EditStatus = "waiting"
    """`sent`: in a push whose outcome is unknown, which is repeated until it is known. `refused`: set aside."""
    code: str = ""
    """Why it was refused."""
    message: str = ""

    def __repr__(self) -> str:
        """What it does, for people, long values cut short: `<Edit 7 waiting: UPDATE todos/t1 {'done': True}>`."""
        delta, why = self.delta, f" {self.code}: {self.message}" if self.code else ""
        values = ", ".join(f"{name!r}: {value!r:.{_SHOWN}}" for name, value in self.values.items())
        return f"<Edit {self.number} {self.status}: {delta.op} {delta.table}/{delta.row_id} {{{values}}}{why}>"

    @property
    def id(self) -> str:
        """Its identity, there as here."""
        return self.delta.delta_id

    @property
    def values(self) -> dict[str, Any]:
        """The columns that it writes, as Python reads their JSON."""
        return {cell.column: cell.decoded() for cell in self.delta.columns}


class LocalChange(NamedTuple):
    """A row before and after the user's change; None where it is not there."""

    table: str
    row_id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    at: int | None = None
    """When it was made, in milliseconds on this machine's clock; None: now."""


class BulkChanges(Protocol):
    """What a store prepared of a page: rows without edits, in no need of being merged one by one."""

    @property
    def tables(self) -> set[str]:
        """Of which rows change."""

    @property
    def count(self) -> int:
        """How many rows change."""

    @property
    def brought_over(self) -> AbstractSet[RowKey]:
        """Rows of older generations that have the page's from then on."""


class Changes(msgspec.Struct):
    """What one step changes: a store makes all of it durable, or none."""

    position: Position | None = None
    known: dict[RowKey, KnownRow | None] = {}
    """Written whole; None: forgotten."""
    rows: dict[RowKey, dict[str, Raw] | None] = {}
    """The app's rows as they are now, whole, columns without a value left out; None: not there."""
    edits: dict[int, Edit | None] = {}
    """By number; None: no longer kept, accepted or dropped."""
    bulk: BulkChanges | None = None
    """Changes of further rows, as the store itself prepared them."""

    @property
    def tables(self) -> set[str]:
        """The tables of which rows changed."""
        tables = {table for table, _ in self.rows}
        return tables if self.bulk is None else tables | self.bulk.tables

    @property
    def count(self) -> int:
        """How many rows changed."""
        return len(self.rows) + (self.bulk.count if self.bulk is not None else 0)
