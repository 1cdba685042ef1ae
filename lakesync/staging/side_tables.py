"""Tables beside the log: actions, what is told of them, connectors. Every store has them, with the same statements."""

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
    """The part of a `View` that these tables answer."""

    def action(self, client_id: str, action_id: str, idempotency_key: str | None = None) -> ActionRecord | None:
        """A client's action by its id, else by its idempotency key."""
        found = self._ask(f"{_ACTION} action_id = ?", client_id, action_id)
        if not found and idempotency_key is not None:
            found = self._ask(f"{_ACTION} idempotency_key = ?", client_id, idempotency_key)
        return ActionRecord(*found[0]) if found else None

    def action_log(self, before: int | None, limit: int) -> list[ActionEntry]:
        """What is kept of attempts, newest first."""
        rows = self._ask(_ENTRIES, _FOREVER if before is None else before, limit)
        return [ActionEntry(*row) for row in rows]

    def connectors(self) -> list[StoredConnector]:
        """Every registered connector, by name."""
        rows = self._ask("SELECT body FROM connector WHERE gateway = ? ORDER BY name")
        return [_decode_connector(body) for (body,) in rows]


class SideCommit(SideView, ErasingCommit, ReindexCommit, SharedCursorCommit, SpelledNamesCommit, FlushJobCommit):
    """The part of a `Commit` that these tables answer."""

    def put_action(self, record: ActionRecord) -> None:
        """Write a record whole, in place of any with its id or its idempotency key."""
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
        """Forget the actions that were last touched before then."""
        self._ask("DELETE FROM action WHERE gateway = ? AND touched_ms < ?", touched_before_ms)

    def note_action(self, entry: ActionEntry, keep: int) -> int:
        """Add to what is told of attempts, whose newest `keep` stay; the entry's `seq`, which is counted here."""
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
        """Write a connector whole."""
        self.drop_connector(connector.name)
        self._ask(
            "INSERT INTO connector (gateway, name, body) VALUES (?, ?, ?)",
            connector.name,
            msgspec.json.encode(connector),
        )

    def drop_connector(self, name: str) -> bool:
        """Forget a connector; False where there is none."""
        known = self._ask("SELECT 1 FROM connector WHERE gateway = ? AND name = ?", name)
        self._ask("DELETE FROM connector WHERE gateway = ? AND name = ?", name)
        return bool(known)
