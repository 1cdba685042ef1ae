"""The reference's client with its conflict resolution never gets stuck, and each row without a conflict is right.

It resolves a delta for a row with an unacknowledged edit by hlc, for the whole row. If the remote delta wins, the
client drops the row's edits and applies it; otherwise it skips the delta. The cursor advances in both cases. So such a
client may end without the skipped values, as it did with the reference's gateway.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from lakesync.model.types import RowDelta, SyncResponse
from tests.property.feed_history import History, play
from tests.property.feed_model import StockClient, apply_page
from tests.property.feed_steps import RULES, histories, skews


class LetterClient(StockClient):
    """Applies a page in one transaction, and resolves its conflicts delta by delta."""

    def __init__(self, name: str, groups: list[str], skew: int) -> None:
        super().__init__(name, groups, skew)
        self.fought: set[str] = set()
        """Rows of which it skipped a delta, or dropped an edit."""

    def _apply(self, page: SyncResponse) -> bool:
        if not page.deltas:
            return False
        rows = {row_id: dict(row) for row_id, row in self.rows.items()}
        outbox, fought = list(self.outbox), set(self.fought)
        for delta in page.deltas:
            own = [edit for edit in outbox if edit.row_id == delta.row_id]
            if own:
                fought.add(delta.row_id)
                if delta.stamp < max(edit.stamp for edit in own):
                    continue
                if delta.op == "INSERT" and self._made_here(own) and delta.row_id in rows:
                    return False  # both inserted the same row: the whole page fails until the edit is pushed
                outbox = [edit for edit in outbox if edit.row_id != delta.row_id]
            apply_page(rows, SyncResponse((delta,), 0), self.name)
        self.rows, self.outbox, self.fought = rows, outbox, fought
        return True

    @staticmethod
    def _made_here(own: list[RowDelta]) -> bool:
        return any(edit.op == "INSERT" for edit in own)


class LetterHistory(History):
    """Clients whose edits may be dropped."""

    stock = LetterClient

    def _check_rows(self, client: StockClient) -> None:
        assert isinstance(client, LetterClient)
        wanted = self.world.visible_to(client.claims)
        for row_id in (client.rows.keys() | wanted.keys()) - client.fought:
            assert client.rows.get(row_id) == wanted.get(row_id), (client.name, row_id)


@settings(deadline=None, max_examples=40)
@given(history=histories, skews=skews, rules=st.integers(0, len(RULES) - 1))
def test_l4_a_client_that_resolves_conflicts_by_row_gets_every_later_value(
    history: list[tuple[Any, ...]], skews: tuple[int, ...], rules: int
) -> None:
    play(history, skews, rules, LetterHistory)
