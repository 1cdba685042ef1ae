"""The history of a row, as far as this client knows it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from lakesync.client.core import Edit, KnownRow
from lakesync.model.hlc import wall_of


class Version(msgspec.Struct, frozen=True):
    """A delta of a row: one that the gateway has, or an edit."""

    hlc: int
    client_id: str
    """The client that wrote it."""
    columns: dict[str, Any]
    """The columns that still have its value; for an edit, all columns that it writes."""
    status: Literal["synced", "waiting", "sent", "refused"]
    deleted: bool = False
    """Whether it deleted the row."""

    @property
    def at(self) -> datetime:
        """When it was written, by the writer's clock, in UTC."""
        return datetime.fromtimestamp(wall_of(self.hlc) / 1000, UTC)


def versions(row: KnownRow | None, edits: list[Edit]) -> list[Version]:
    """Return the deltas of a row, oldest first.

    Args:
        row: as the gateway has it; None if it does not have it.
        edits: of this row.
    """
    found: list[Version] = []
    if row is not None:
        for part in row.state.live:
            values = {name: msgspec.json.decode(value) for name, value in part.columns.items()}
            found.append(Version(part.hlc, part.client_id, values, "synced"))
        if not row.state.cells and row.state.inserted is not None:
            found.append(Version(*row.state.inserted, {}, "synced"))
    for edit in edits:
        delta = edit.delta
        values = {cell.column: cell.decoded() for cell in delta.columns}
        found.append(Version(delta.hlc, delta.client_id, values, edit.status, delta.op == "DELETE"))
    return sorted(found, key=lambda version: (version.hlc, version.client_id))
