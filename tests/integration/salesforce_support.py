"""A Salesforce organisation that listens, and where a poll of it lands."""

from __future__ import annotations

from contextlib import contextmanager

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.polling import poll
from lakesync.connectors.salesforce.source import SalesforceSource
from lakesync.testing.clock import ManualClock
from lakesync.testing.landing import MemoryLanding
from lakesync.testing.servers import serving
from lakesync.testing.servers.salesforce import SalesforceApi, SalesforceOrg

ACCOUNTS_ALONE = {"includeContacts": False, "includeOpportunities": False, "includeLeads": False}


class Company:
    """An organisation with a clock by hand, a connector to it, and where its pages land."""

    def __init__(self):
        self.clock = ManualClock()
        self.org = SalesforceOrg(self.clock)
        self.api = SalesforceApi(self.org)
        self.landing = None
        self.url = ""
        self.served = None
        self.bulk_rows = 10_000

    def config(self, **settings):
        return ConnectorConfig(
            "gw",
            "crm",
            "salesforce",
            {
                "instanceUrl": self.url,
                "clientId": self.api.client_id,
                "clientSecret": self.api.client_secret,
                **settings,
            },
        )

    @contextmanager
    def source(self, **settings):
        source = SalesforceSource(self.config(**settings), bulk_rows=self.bulk_rows, attempts=3, patience_s=1.5)
        try:
            yield source
        finally:
            source.close()

    def poll(self, *, census=False, settings=None, **arguments):
        with self.source(**(settings or {})) as source:
            self.landing = self.landing or MemoryLanding(source.tables)
            return poll(source, self.landing, census=census, **arguments)

    def ids(self, table="sf_accounts"):
        return set(self.landing.rows[table])

    def expected(self):
        """Names of the accounts that the user sees, by id."""
        return {each.id: each.fields["Name"] for each in self.org.visible("Account", deleted=False)}

    def seen(self):
        """The same of what landed."""
        return {row_id: row["name"] for row_id, row in self.landing.rows["sf_accounts"].items()}


@contextmanager
def company():
    """A company that listens."""
    made = Company()
    with serving(made.api) as served:
        made.served, made.url = served, served.url
        yield made
