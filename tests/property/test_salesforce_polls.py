"""An organisation that changes at random while it is polled: in the end all of it has arrived, and nothing besides."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.connectors.polling import poll
from lakesync.testing.servers import Answer
from tests.integration.salesforce_support import ACCOUNTS_ALONE, company
from tests.property.test_jira_polls import Dying, Killed


def shake(acme, chance):
    """One change of the organisation."""
    org = acme.org
    acme.clock.advance(chance.randrange(0, 30_000))
    records = list(org.records.values())
    if not records or chance.random() < 0.35:
        org.add("Account", Name=f"v{chance.random()}")
        return
    record = chance.choice(records)
    match chance.randrange(6):
        case 0 | 1 | 2 if not record.deleted:
            org.edit(record, Name=f"v{chance.random()}")
        case 3:
            (org.restore if record.deleted else org.delete)(record)
        case 4:
            org.purge(record)
        case 5:
            record.hidden = not record.hidden


class Moving:
    """The API of an organisation that changes between two calls, and sometimes fails."""

    def __init__(self, acme, chance):
        self.acme, self.chance, self.answer_of = acme, chance, acme.api.answer
        self.missed = set()
        """Records that were hidden: what changed of them meanwhile, only their next change tells."""

    def __call__(self, request):
        for _ in range(self.chance.choice([0, 0, 1, 3])):
            shake(self.acme, self.chance)
        match self.chance.randrange(30):
            case 0:
                return Answer(503, [{"message": "busy", "errorCode": "SERVER_UNAVAILABLE"}], {"Retry-After": "0"})
            case 1:
                self.acme.api.results.clear()
            case 2:
                self.acme.api.sessions.clear()
            case 3:
                self.acme.api.failing_jobs = self.chance.randrange(2)
            case 4:
                self.acme.api.jobs.clear()
        records = self.acme.org.records.values()
        self.missed |= {each.id for each in records if each.hidden}
        return self.answer_of(request)

    def rest(self):
        """The organisation changes by itself no more; what was missed because it was hidden changes once again."""
        self.acme.api.answer, self.acme.api.failing_jobs = self.answer_of, 0
        for record in self.acme.org.records.values():
            record.hidden = False
            if record.id in self.missed and not record.deleted:
                self.acme.org.edit(record, Phone="last")


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), bulk=st.booleans())
def test_the_last_poll_ends_in_the_truth(seed, bulk):
    chance = random.Random(seed)
    with company() as acme:
        acme.api.batch, acme.bulk_rows = 5, 10 if bulk else 10_000
        for _ in range(40):
            shake(acme, chance)
        acme.api.answer = moving = Moving(acme, chance)
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
        before = len(acme.landing.changes)
        acme.poll(settings=ACCOUNTS_ALONE, census=True)
        assert len(acme.landing.changes) == before, "a poll of the same makes no delta"
