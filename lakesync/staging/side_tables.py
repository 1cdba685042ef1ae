"""The tables beside the log: actions, attempts at actions, connectors and others, with the same SQL in both stores.

The views and commits of both stores inherit from `SideView` and `SideCommit`.
"""

from __future__ import annotations

import msgspec

from lakesync.model.types import StoredConnector
from lakesync.staging.erasures import ErasingCommit, ErasureView
from lakesync.staging.flush_jobs import FlushJobCommit, FlushJobView
from lakesync.staging.records import ActionEntry, ActionRecord
from lakesync.staging.reindexing import ReindexCommit, ReindexView
from lakesync.staging.shared_cursors import SharedCursorCommit, SharedCursorView
from lakesync.staging.spelled_names import SpelledNamesCommit, SpelledNamesView

_ACTION = (
    "SELECT client_id, action_id, idempotency_key, attempts, claim, lease_ms, touched_ms, outcome FROM action"
    " WHERE gateway = ? AND client_id = ? AND"
)
_ENTRIES = (
    "SELECT seq, at_ms, client_id, action_id, connector, action_type, attempt, code, ms FROM action_log"
    " WHERE gateway = ? AND seq < ? ORDER BY seq DESC LIMIT ?"
)
_NEWEST = "SELECT seq FROM action_log WHERE gateway = ? ORDER BY seq DESC LIMIT 1"
_FOREVER = (1 << 63) - 1

_decode_connector = msgspec.json.Decoder(StoredConnector).decode


class SideView(ErasureView, ReindexView, SharedCursorView, SpelledNamesView, FlushJobView):
    """The methods of a `View` that read these tables."""

    def action(self, client_id: str, action_id: str, idempotency_key: str | None = None) -> ActionRecord | None:
        """Return a client's action by its id, otherwise by its idempotency key; None if there is none.

        Args:
            client_id: of the client.
            action_id: of the action.
            idempotency_key: used if no action has the id.
        """
        found = self._ask(f"{_ACTION} action_id = ?", client_id, action_id)
        if not found and idempotency_key is not None:
            found = self._ask(f"{_ACTION} idempotency_key = ?", client_id, idempotency_key)
        return ActionRecord(*found[0]) if found else None

    def action_log(self, before: int | None, limit: int) -> list[ActionEntry]:
        """Return attempts at actions, newest first.

        Args:
            before: only attempts with a lower `seq`; None for all.
            limit: the most attempts.
        """
        rows = self._ask(_ENTRIES, _FOREVER if before is None else before, limit)
        return [ActionEntry(*row) for row in rows]

    def connectors(self) -> list[StoredConnector]:
        """Return every registered connector, ordered by name."""
        rows = self._ask("SELECT body FROM connector WHERE gateway = ? ORDER BY name")
        return [_decode_connector(body) for (body,) in rows]


class SideCommit(SideView, ErasingCommit, ReindexCommit, SharedCursorCommit, SpelledNamesCommit, FlushJobCommit):
    """The methods of a `Commit` that write these tables."""

    def put_action(self, record: ActionRecord) -> None:
        """Store an action's record; it replaces records with the same id or idempotency key."""
        self._ask(
            "DELETE FROM action WHERE gateway = ? AND client_id = ? AND action_id = ?",
            record.client_id,
            record.action_id,
        )
        if record.idempotency_key is not None:
            self._ask(
                "DELETE FROM action WHERE gateway = ? AND client_id = ? AND idempotency_key = ?",
                record.client_id,
                record.idempotency_key,
            )
        self._ask(
            "INSERT INTO action (gateway, client_id, action_id, idempotency_key, attempts, claim, lease_ms, touched_ms,"
            " outcome) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *msgspec.structs.astuple(record),
        )

    def drop_actions(self, touched_before_ms: int) -> None:
        """Delete the actions whose latest change was before a wall time in milliseconds."""
        self._ask("DELETE FROM action WHERE gateway = ? AND touched_ms < ?", touched_before_ms)

    def note_action(self, entry: ActionEntry, keep: int) -> int:
        """Record an attempt at an action; return its `seq`.

        Args:
            entry: the attempt; its `seq` is ignored.
            keep: how many of the newest attempts are kept.
        """
        newest = self._ask(_NEWEST)
        seq: int = newest[0][0] + 1 if newest else 1
        counted = msgspec.structs.replace(entry, seq=seq)
        self._ask(
            "INSERT INTO action_log (gateway, seq, at_ms, client_id, action_id, connector, action_type, attempt, code,"
            " ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *msgspec.structs.astuple(counted),
        )
        self._ask("DELETE FROM action_log WHERE gateway = ? AND seq <= ?", seq - keep)
        return seq

    def put_connector(self, connector: StoredConnector) -> None:
        """Store a connector; it replaces one with its name."""
        self.drop_connector(connector.name)
        self._ask(
            "INSERT INTO connector (gateway, name, body) VALUES (?, ?, ?)",
            connector.name,
            msgspec.json.encode(connector),
        )

    def drop_connector(self, name: str) -> bool:
        """Delete a connector; return False if there is none with this name."""
        known = self._ask("SELECT 1 FROM connector WHERE gateway = ? AND name = ?", name)
        self._ask("DELETE FROM connector WHERE gateway = ? AND name = ?", name)
        return bool(known)
