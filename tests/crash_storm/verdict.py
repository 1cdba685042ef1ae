"""The conditions that must hold at the end of a storm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lakesync.engine import Engine
from lakesync.model.delta import dedup_key
from lakesync.model.merge import RowState
from lakesync.model.types import RowDelta, RowKey, SyncPull
from lakesync.staging import open_store
from tests.crash_storm.pushers import GATEWAY, Journal
from tests.integration.gateway_support import wall_ms


class Verdict:
    """Compares the clients' records with the lake, the log, the ledger and the rows."""

    def __init__(self, journals: Iterable[Journal], stored: list[RowDelta]) -> None:
        """Args: stored: every delta of the lake and of the log's remaining bodies."""
        self.problems: list[str] = []
        journals = list(journals)
        kept = Counter(delta.delta_id for delta in stored)
        sent = [deltas for journal in journals for deltas in journal.acknowledged + journal.doubtful]
        acknowledged = [delta for journal in journals for deltas in journal.acknowledged for delta in deltas]
        self.acknowledged = len(acknowledged)
        self.losses = sum(delta.delta_id not in kept for delta in acknowledged)
        self.doubles = sum(count - 1 for count in kept.values())
        self._note(self.losses, "acknowledged deltas are lost")
        self._note(self.doubles, "deltas are stored more than once")
        halves = [
            deltas
            for journal in journals
            for deltas in journal.doubtful
            if len({delta.delta_id in kept for delta in deltas}) > 1
        ]
        self._note(len(halves), "unacknowledged pushes are stored in part")
        known = {delta.delta_id for deltas in sent for delta in deltas}
        self._note(len(kept.keys() - known), "deltas are stored that no client sent")
        for journal in journals:
            self.problems += [f"refused: {text}" for text in journal.refused]
        self._stored = stored

    def of_store(self, staging: str) -> None:
        """Check the store's ledger, ids and rows."""
        engine = Engine(open_store(staging, wall_ms), wall_ms)
        engine.open()
        try:
            self._ledger(engine)
            self._rows(engine)
            self._ids(engine)
        finally:
            engine.close()

    def _ledger(self, engine: Engine) -> None:
        counted = sum(day.count for day in engine.store.ledger(GATEWAY))
        self._note(abs(counted - len(self._stored)), f"deltas apart: the ledger has {counted}")
        waiting = sum(shard.deltas for shard in engine.store.backlog() if shard.gateway == GATEWAY)
        flushed = sum(day.flushed_count for day in engine.store.ledger(GATEWAY))
        self._note(abs(counted - flushed - waiting), f"deltas apart: {flushed} flushed, {waiting} waiting")

    def _rows(self, engine: Engine) -> None:
        """Check that a new client pulls the merge of all stored deltas."""
        merged: dict[RowKey, RowState] = {}
        for delta in self._stored:
            merged.setdefault(delta.key, RowState()).merge(delta)
        expected = {key: _plain(state) for key, state in merged.items() if state.visible}
        found: dict[RowKey, dict[str, bytes]] = {}
        since, more = 0, True
        while more:
            page = engine.gateway(GATEWAY).handle_pull(SyncPull("a-new-client", since, 100))
            since, more = page.server_hlc, page.has_more
            for delta in page.deltas:
                _apply(found, delta)
        different = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
        self._note(len(different), f"rows differ from the merge of the stored deltas, {different[:3]} among them")

    def _ids(self, engine: Engine) -> None:
        """Check that a repeat of every stored delta changes nothing."""
        by_client: dict[str, list[RowDelta]] = {}
        for delta in self._stored:
            by_client.setdefault(delta.client_id, []).append(delta)

        def unknown(client: str, deltas: list[RowDelta]) -> int:
            wanted = {(delta.hlc, dedup_key(delta.delta_id)) for delta in deltas}
            known = engine.store.submit(
                GATEWAY, lambda commit: commit.known_ids(client, 0, max(delta.hlc for delta in deltas))
            ).result()
            return len(wanted - known) + len(known - wanted)

        forgotten = sum(unknown(client, deltas) for client, deltas in by_client.items())
        self._note(forgotten, "ids of stored deltas are unknown, or unknown ids are known")

    def _note(self, count: int, what: str) -> None:
        if count:
            self.problems.append(f"{count} {what}")


def _apply(rows: dict[RowKey, dict[str, bytes]], delta: RowDelta) -> None:
    """Apply a page as a client's database does."""
    if delta.op == "DELETE":
        rows.pop(delta.key, None)
    else:
        row = rows.setdefault(delta.key, {}) if delta.op == "INSERT" else rows[delta.key]
        row.update({cell.column: bytes(cell.value) for cell in delta.columns})


def _plain(state: RowState) -> dict[str, bytes]:
    return {column: bytes(value) for column, value in state.values().items()}
