"""A client's durable state: the values that it stores, the protocol `ClientStore`, and `MemoryStore`.

The values are the client's position (how far it has pulled), known rows (rows as the gateway has them), and edits
(changes that the gateway has not acknowledged). An edit is a *delta*: a change of some columns of one row. The *stamp*
of a delta is its hlc (hybrid logical clock) and client id; in a merge, the greater stamp wins. A *page* is a set of
deltas that the gateway sends. The core (`lakesync.client.core`) is the client's state machine. It computes what each
step changes, and calls the store to commit that. `SqliteClientStore` implements the protocol in the app's file.
`MemoryStore` keeps the state in memory, for tests and for apps that keep nothing after the process ends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from lakesync.model.errors import ConfigurationError
from lakesync.model.merge import RowState, decode_state, encode_state
from lakesync.model.types import RowDelta, RowKey

EditStatus = Literal["waiting", "sent", "refused"]
"""Explained at `Edit.status`."""

SOURCE_GENERATION = 0
"""The generation of rows from a named source (an adapter from which clients pull, beside the gateway's own changes).
They are not part of a full pull, so no full pull removes them."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """How far the client has synchronised: one small record, stored as a JSON array of the fields in this order."""

    client_id: str = ""
    """The client that owns the database; empty until the first commit."""
    cursor: int = 0
    """The gateway's cursor after the newest applied page; 0 when a full pull starts."""
    caught_up: bool = False
    """Whether the newest page was the last one: the gateway had nothing more at that moment."""
    generation: int = 1
    """Number of the latest full pull (all pages from cursor 0), from 1. A row of an older generation was not in it."""
    in_full_pull: bool = False
    """Whether a pull from cursor 0 is in progress; at its end, rows of older generations are removed."""
    hlc: int = 0
    """The highest hlc issued to an edit or observed in a page."""
    gateway_hlc: int = 0
    """The highest hlc that the gateway accepted from this client or sent to it."""
    edit_count: int = 0
    """Number of edits ever made: the number of the newest one."""
    own_writes_up_to: int = 0
    """Every write of this client up to this hlc is in this database. The gateway normally does not send a client its
    own writes. But a file that was restored from a backup lacks some of them, so the first pull of each process asks
    for the writes above this hlc. Once such a pull is complete, the value advances with every commit."""
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

    A row that does not exist, or that this client may not see, is kept only while it has edits, because the edits are
    compared with the stamp of its DELETE.
    """

    state: RowState
    """The merged row. The client uses only its values and stamps."""
    generation: int
    """The generation of the newest full pull that named the row; SOURCE_GENERATION for a named source's row."""


_REPR_CHARACTERS = 80
"""Characters of each value in the repr of an edit, at most."""


class Edit(msgspec.Struct, frozen=True):
    """A local change that the gateway has not acknowledged."""

    number: int
    """From 1, in the order in which edits were made; 0 for a rejected delta that the app put into its own queue."""
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
    """A change that the app made to a row. The core makes an edit of it."""

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
        """The rows of older generations that this page moves to the current one, so that they are not removed."""


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
    """The part of a page that the store applies by itself, as `ClientStore.prepare` returned it."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return self.position is None and not (self.known or self.rows or self.edits or self.bulk)

    @property
    def tables(self) -> set[str]:
        """The tables with changed rows."""
        tables = {table for table, _ in self.rows}
        return tables if self.bulk is None else tables | self.bulk.tables

    @property
    def count(self) -> int:
        """The number of changed rows."""
        return len(self.rows) + (self.bulk.count if self.bulk is not None else 0)


class ClientStore(Protocol):
    """A client's durable state, beside the app's own rows. Callers may modify every object that they read.

    A settled row is a row without edits. The app's table has its values, so a store needs to keep only the stamps
    of its columns. For a row with edits, the store also keeps the values that the gateway has.
    """

    def position(self) -> Position:
        """Return the stored position; `Position()` in a new store."""

    def known(self, keys: Collection[RowKey]) -> dict[RowKey, KnownRow]:
        """Return copies of these rows as the gateway has them; unknown rows are absent. The caller may change them."""

    def older_than(self, generation: int) -> list[RowKey]:
        """Return the known rows of generations from 1 up to, not including, `generation`.

        Rows of named sources have generation 0 and are not returned.
        """

    def edits(self, status: EditStatus | None = None, limit: int | None = None) -> list[Edit]:
        """Return edits in order of their numbers.

        Args:
            status: only edits with this status; None for all.
            limit: edits, at most.
        """

    def edits_of(self, keys: Collection[RowKey]) -> dict[RowKey, list[Edit]]:
        """Return the edits of these rows in order of their numbers; rows without edits are absent."""

    def prepare(self, deltas: Sequence[RowDelta], generation: int) -> tuple[BulkChanges | None, Sequence[RowDelta]]:
        """Select the part of a page that the store applies by itself when it commits, faster than row by row.

        Args:
            deltas: the page's deltas.
            generation: the generation of the page's rows, as for `rows.page_changes`. The rows must become the same.

        Returns:
            The store's part, or None if it applies nothing by itself; and the deltas that the core merges.
        """

    def commit(self, changes: Changes) -> None:
        """Store all of the changes, or none if it raises. `changes.bulk` is what `prepare` returned."""


class MemoryStore:
    """Implements `ClientStore`. Row states are kept encoded, so that callers cannot modify them by accident."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, dict[str, bytes]] = {}
        """The app's rows: the JSON text of each column."""
        self._position = Position()
        self._known: dict[RowKey, tuple[bytes, int]] = {}
        self._edits: dict[int, Edit] = {}

    def position(self) -> Position:
        """See `ClientStore.position`."""
        return self._position

    def known(self, keys: Collection[RowKey]) -> dict[RowKey, KnownRow]:
        """See `ClientStore.known`."""
        stored = {key: self._known[key] for key in keys if key in self._known}
        return {key: KnownRow(decode_state(state), generation) for key, (state, generation) in stored.items()}

    def older_than(self, generation: int) -> list[RowKey]:
        """See `ClientStore.older_than`."""
        return [
            key for key, (_, row_generation) in self._known.items() if SOURCE_GENERATION < row_generation < generation
        ]

    def edits(self, status: EditStatus | None = None, limit: int | None = None) -> list[Edit]:
        """See `ClientStore.edits`."""
        ordered = (self._edits[number] for number in sorted(self._edits))
        return list(islice((edit for edit in ordered if status is None or edit.status == status), limit))

    def edits_of(self, keys: Collection[RowKey]) -> dict[RowKey, list[Edit]]:
        """See `ClientStore.edits_of`."""
        result: dict[RowKey, list[Edit]] = {}
        for edit in self.edits():
            if edit.delta.key in keys:
                result.setdefault(edit.delta.key, []).append(edit)
        return result

    def prepare(self, deltas: Sequence[RowDelta], generation: int) -> tuple[None, Sequence[RowDelta]]:  # noqa: ARG002
        """Leave the whole page to the core. See `ClientStore.prepare`."""
        return None, deltas

    def commit(self, changes: Changes) -> None:
        """See `ClientStore.commit`."""
        if changes.position is not None:
            self._position = changes.position
        for key, known in changes.known.items():
            if known is None:
                self._known.pop(key, None)
            else:
                self._known[key] = (encode_state(known.state), known.generation)
        for key, values in changes.rows.items():
            if values is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = {column: bytes(value) for column, value in values.items()}
        for number, edit in changes.edits.items():
            if edit is None:
                self._edits.pop(number, None)
            else:
                self._edits[number] = edit

    def values(self, table: str, row_id: str) -> dict[str, object] | None:
        """Return an app's row with decoded values; None if it does not exist.

        Args:
            table: the row's table.
            row_id: the row's id.
        """
        row = self.rows.get((table, row_id))
        return None if row is None else {column: msgspec.json.decode(Raw(text)) for column, text in row.items()}
