"""A Salesforce organisation on a local server, and the target of its polls."""

from __future__ import annotations

from lakesync.connectors.salesforce.source import SalesforceSource
from lakesync.testing import ManualClock
from lakesync.testing.servers import Response
from lakesync.testing.servers.salesforce import SalesforceApi, SalesforceOrg
from tests.integration.connectors.vendor_support import Vendor

ACCOUNTS_ALONE = {"includeContacts": False, "includeOpportunities": False, "includeLeads": False}


class Company(Vendor):
    """An organisation and a connector to it."""

    name, kind, make_source = "crm", "salesforce", SalesforceSource

    def __init__(self):
        clock = ManualClock()
        self.org = SalesforceOrg(clock)
        self.bulk_rows = 10_000
        super().__init__(clock, SalesforceApi(self.org))

    def settings(self):
        return {"instanceUrl": self.url, "clientId": self.api.client_id, "clientSecret": self.api.client_secret}

    def source_options(self):
        return {"bulk_rows": self.bulk_rows}

    def ids(self, table="sf_accounts"):
        return set(self.landing.rows[table])

    def expected(self):
        """The names of the accounts that the user sees, by id."""
        return {each.id: each.fields["Name"] for each in self.org.visible("Account", deleted=False)}

    def seen(self):
        """The names of the landed accounts, by id."""
        return {row_id: row["name"] for row_id, row in self.landing.rows["sf_accounts"].items()}


def company():
    """A company on a local server."""
    return Company().listening()


def shake(acme, chance):
    """Make one random change of the organisation."""
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
    """The organisation's API, with changes between calls and occasional failures."""

    def __init__(self, acme, chance, changes):
        """Args: changes: earlier changes."""
        self.acme, self.chance, self.answer_of = acme, chance, acme.api.respond
        for _ in range(changes):
            shake(acme, chance)
        acme.api.batch, acme.api.respond = 5, self
        self.missed = set()
        """Hidden records; only their next change reveals changes during that time."""
        self.gone = set()
        """Records that were deleted at some time."""

    def __call__(self, request):
        for _ in range(self.chance.choice([0, 0, 1, 3])):
            shake(self.acme, self.chance)
        match self.chance.randrange(30):
            case 0:
                return Response(503, [{"message": "busy", "errorCode": "SERVER_UNAVAILABLE"}], {"Retry-After": "0"})
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
        self.gone |= {record_id for _, _, record_id in self.acme.org.deletions}
        return self.answer_of(request)

    def rest(self):
        """Stop the random changes; change again each object whose change was missed because it was hidden."""
        self.acme.api.respond, self.acme.api.failing_jobs = self.answer_of, 0
        for record in self.acme.org.records.values():
            record.hidden = False
            if record.id in self.missed and not record.deleted:
                self.acme.org.edit(record, Phone="last")
