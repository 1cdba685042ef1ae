"""What this client knows of how a row came to be as it is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from lakesync.client.core import Edit, KnownRow
from lakesync.model.hlc import wall_of


class Version(msgspec.Struct, frozen=True):
    """A change that the row consists of."""

    hlc: int
    client_id: str
    """Who made it."""
    columns: dict[str, Any]
    """The columns that are its own; of an edit, all that it changed."""
    status: Literal["synced", "waiting", "sent", "refused"]
    deleted: bool = False
    """It removed the row."""

    @property
    def at(self) -> datetime:
        """When, on the clock of who made it, in UTC."""
        return datetime.fromtimestamp(wall_of(self.hlc) / 1000, UTC)


def versions(row: KnownRow | None, edits: list[Edit]) -> list[Version]:
    """The changes that a row consists of, oldest first, the app's own that wait at the end of equals."""
    found: list[Version] = []
    if row is not None:
        for part in row.state.live:
            values = {name: msgspec.json.decode(value) for name, value in part.columns.items()}
            found.append(Version(part.hlc, part.client_id, values, "synced"))
        if not row.state.live and row.state.inserted is not None:
            found.append(Version(*row.state.inserted, {}, "synced"))
    for edit in edits:
        delta = edit.delta
        values = {cell.column: cell.decoded() for cell in delta.columns}
        found.append(Version(delta.hlc, delta.client_id, values, edit.status, delta.op == "DELETE"))
    return sorted(found, key=lambda version: (version.hlc, version.client_id))
