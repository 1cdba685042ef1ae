"""A Salesforce organisation that listens, and where a poll of it lands."""

from __future__ import annotations

from lakesync.connectors.salesforce.source import SalesforceSource
from lakesync.testing.clock import ManualClock
from lakesync.testing.servers.salesforce import SalesforceApi, SalesforceOrg
from tests.integration.vendor_support import Vendor

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
        """Names of the accounts that the user sees, by id."""
        return {each.id: each.fields["Name"] for each in self.org.visible("Account", deleted=False)}

    def seen(self):
        """The same of what landed."""
        return {row_id: row["name"] for row_id, row in self.landing.rows["sf_accounts"].items()}


def company():
    """A company that listens."""
    return Company().listening()
