"""An organisation changes at random while it is polled: at the end, exactly its records have arrived."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.testing.landing import poll
from tests.integration.connectors.salesforce_support import ACCOUNTS_ALONE, Moving, company
from tests.property.test_jira_polls import Dying, Killed


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), bulk=st.booleans())
def test_after_the_last_poll_the_rows_equal_the_organisation(seed, bulk):
    chance = random.Random(seed)
    with company() as acme:
        acme.bulk_rows = 10 if bulk else 10_000
        moving = Moving(acme, chance, changes=40)
        with acme.source(**ACCOUNTS_ALONE) as source:
            acme.landing = Dying(source.tables, chance)
        for number in range(6):
            with acme.source(**ACCOUNTS_ALONE) as source:
                try:
                    poll(source, acme.landing, census=number % 2 == 1, budget_bytes=2_000, deleted_share=1.0)
                except Killed:
                    continue
        moving.rest()
        acme.landing.dies = False
        assert acme.poll(settings=ACCOUNTS_ALONE, census=True, deleted_share=1.0).error is None
        assert acme.seen() == acme.expected()
        deleted = {change.row_id for _, change in acme.landing.changes if change.op == "DELETE"}
        assert deleted <= moving.gone, "hidden records are not deleted"
        before = len(acme.landing.changes)
        acme.poll(settings=ACCOUNTS_ALONE, census=True)
        assert len(acme.landing.changes) == before, "a poll without changes makes no delta"
