"""The history of a row, as far as this client knows it: what `Client.history` returns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from lakesync.client.core import Edit, KnownRow
from lakesync.model.hlc import wall_of


class Version(msgspec.Struct, frozen=True):
    """One write to a row: by any client if the gateway has it, else by this client."""

    hlc: int
    """The write's hybrid logical clock."""
    client_id: str
    """The client that made the write."""
    columns: dict[str, Any]
    """Column values, decoded. `synced`: only columns whose value no later write replaced; else all that it writes."""
    status: Literal["synced", "waiting", "sent", "refused"]
    """`synced`: the gateway has it. `waiting`: not pushed yet. `sent`: pushed, but not acknowledged. `refused`: the
    gateway rejected it."""
    deleted: bool = False
    """Whether the write deleted the row."""

    @property
    def at(self) -> datetime:
        """When the write was made, by the clock of the client that made it, in UTC."""
        return datetime.fromtimestamp(wall_of(self.hlc) / 1000, UTC)


def versions(row: KnownRow | None, edits: list[Edit]) -> list[Version]:
    """Return the writes to a row, oldest first.

    Args:
        row: the row as the gateway has it; None if the gateway does not have the row.
        edits: this client's unacknowledged changes of the row.
    """
    result: list[Version] = []
    if row is not None:
        for write in row.state.live:
            values = {name: msgspec.json.decode(value) for name, value in write.columns.items()}
            result.append(Version(write.hlc, write.client_id, values, "synced"))
        if not row.state.cells and row.state.inserted is not None:  # a row without values shows only its INSERT
            result.append(Version(*row.state.inserted, {}, "synced"))
    for edit in edits:
        delta = edit.delta
        values = {cell.column: cell.decoded() for cell in delta.columns}
        result.append(Version(delta.hlc, delta.client_id, values, edit.status, deleted=delta.op == "DELETE"))
    return sorted(result, key=lambda version: (version.hlc, version.client_id))
