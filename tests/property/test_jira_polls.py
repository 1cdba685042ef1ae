"""A site changes at random while it is polled: at the end, exactly its records have arrived.

Changes, deletes and lost permissions happen between the calls of a poll, answers fail, and polls are killed while they
land.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.testing.landing import MemoryLanding, poll
from tests.integration.connectors.jira_support import Moving, desk


class Killed(BaseException):
    """Simulates the end of the process."""


class Dying(MemoryLanding):
    """A landing that may kill the process before or after it lands."""

    def __init__(self, tables, chance):
        super().__init__(tables)
        self.chance, self.dies = chance, True

    def land(self, pages):
        self._die()
        super().land(pages)
        self._die()

    def _die(self):
        if self.dies and self.chance.random() < 0.1:
            raise Killed


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), lag=st.sampled_from([0, 5_000, 60_000]))
def test_after_the_last_poll_the_rows_equal_the_site(seed, lag):
    chance = random.Random(seed)
    with desk(index_lag_ms=lag) as made:
        moving = Moving(made, chance, changes=40)
        with made.source() as source:
            made.landing = Dying(source.tables, chance)
        for number in range(6):
            with made.source() as source:
                try:
                    poll(source, made.landing, census=number % 2 == 1, budget_bytes=2_000, deleted_share=1.0)
                except Killed:
                    continue
        moving.rest()
        made.landing.dies = False
        assert made.poll(census=True, deleted_share=1.0).error is None
        assert made.seen() == made.expected()
        deleted = {(table, change.row_id) for table, change in made.landing.changes if change.op == "DELETE"}
        there = {(table, row_id) for table, rows in made.landing.rows.items() for row_id in rows}
        assert deleted.isdisjoint(there), "keys and ids are never reused: an existing record was never absent"
        before = len(made.landing.changes)
        made.poll(census=True)
        assert len(made.landing.changes) == before, "a poll without changes makes no delta"
