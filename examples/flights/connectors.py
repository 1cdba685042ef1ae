"""Polls of two vendors, the option `--connectors`: Dagster polls their rows into a gateway of their own.

`Demo` (`demo.py`) calls this module.
A fake Jira site with tickets and a fake Salesforce organisation with accounts run on this machine. A client and the
lake must show the vendors' rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow.compute as pc
from pyiceberg.exceptions import NoSuchTableError

from examples.flights.client import Connection, token
from examples.flights.lake import Lake
from examples.flights.system import System
from examples.flights.workload import CLIENTS
from lakesync.model.hlc import wall_clock
from lakesync.testing.servers import serve
from lakesync.testing.servers.jira import JiraApi, JiraSite
from lakesync.testing.servers.salesforce import SalesforceApi, SalesforceOrg

GATEWAY = "helpdesk"
"""The id of the gateway that gets the polled rows."""
TICKETS = 60
"""Number of tickets at the Jira site."""
SHOWN = {
    "jira_issues": ("summary", "status", "priority"),
    "sf_accounts": ("name", "industry", "number_of_employees"),
}
"""Table → the columns that are compared and shown."""
WAIT_SECONDS = 300.0
"""Longest time until a client or the lake has the vendors' rows."""

Rows = dict[str, dict[str, Any]]
"""Row id → the shown columns."""


class NotArrivedError(Exception):
    """Polled rows were not visible in time."""


@dataclass(frozen=True)
class Vendors:
    """The fake vendors, which run until `vendors` ends."""

    site: JiraSite
    org: SalesforceOrg
    connectors: tuple[Mapping[str, Any], ...]
    """The bodies of the requests that register a connector to each."""

    def truth(self) -> dict[str, Rows]:
        """Return what a client and the lake must show."""
        issues: Rows = {
            each.key: {
                "summary": each.fields["summary"],
                "status": each.fields["status"],
                "priority": each.fields.get("priority"),
            }
            for each in self.site.issues.values()
        }
        accounts: Rows = {
            each.id: {
                "name": each.fields["Name"],
                "industry": each.fields.get("Industry"),
                "number_of_employees": str(each.fields["NumberOfEmployees"]),
            }
            for each in self.org.visible("Account", deleted=False)
        }
        return {"jira_issues": issues, "sf_accounts": accounts}


@contextmanager
def vendors() -> Iterator[Vendors]:
    """Start a site with tickets about lost luggage, and an organisation with the airlines as accounts."""
    site, org = JiraSite(wall_clock), SalesforceOrg(wall_clock)
    site.add_project("BAG")
    airlines = sorted({carrier for client in CLIENTS if (carrier := client.claims.get("carrier")) is not None})
    for number in range(TICKETS):
        site.add_issue("BAG", f"Suitcase {number + 1} missing on {airlines[number % len(airlines)]}")
    for number, airline in enumerate(airlines):
        org.add("Account", Name=f"Airline {airline}", Industry="Transportation", NumberOfEmployees=100 * (number + 1))
    jira, salesforce = JiraApi(site), SalesforceApi(org)
    with ExitStack() as stack:
        jira_server, salesforce_server = stack.enter_context(serve(jira)), stack.enter_context(serve(salesforce))
        ingest = {"intervalMs": 2_000}
        yield Vendors(
            site,
            org,
            (
                {
                    "name": "luggage",
                    "type": "jira",
                    "jira": {
                        "domain": "fake",
                        "email": jira.email,
                        "apiToken": jira.token,
                        "baseUrl": jira_server.url,
                    },
                    "ingest": ingest,
                },
                {
                    "name": "crm",
                    "type": "salesforce",
                    "salesforce": {
                        "instanceUrl": salesforce_server.url,
                        "clientId": salesforce.client_id,
                        "clientSecret": salesforce.client_secret,
                    },
                    "ingest": ingest,
                },
            ),
        )


def register(system: System, connectors: tuple[Mapping[str, Any], ...]) -> None:
    """Register connectors as an admin while the system runs."""
    admin = Connection(system.gateway, token(system.secret, "demo-admin", "admin", {}, GATEWAY))
    for connector in connectors:
        admin.send("POST", f"/v1/admin/connectors/{GATEWAY}", body=msgspec.json.encode(connector))


def change(vendors: Vendors) -> None:
    """Change data at the vendors while they are polled."""
    issues = list(vendors.site.issues.values())
    vendors.site.edit(issues[0], summary="Suitcase 1 found in Newark")
    vendors.site.add_issue("BAG", "A violin missing")
    account = vendors.org.visible("Account", deleted=False)[0]
    vendors.org.edit(account, NumberOfEmployees=4_711)
    vendors.org.delete(vendors.org.visible("Account", deleted=False)[1])


def wait_for(what: str, read: Callable[[], dict[str, Rows]], truth: dict[str, Rows]) -> None:
    """Return once both tables have the vendors' rows.

    Args:
        what: who must have them, for the error.
        read: returns the rows by table.
        truth: the vendors' rows by table.

    Raises:
        NotArrivedError: the tables differ from them for too long.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := read()) != truth:
        if time.monotonic() > deadline:
            off = {table: mismatches(found[table], truth[table]) for table in truth}
            raise NotArrivedError(
                f"{what} does not show the vendors' rows after {WAIT_SECONDS:.0f} s: {off} rows differ"
            )
        time.sleep(0.5)


def mismatches(found: Rows, truth: Rows) -> int:
    """Return the number of missing, surplus or different rows."""
    return sum(found.get(row_id) != truth.get(row_id) for row_id in found.keys() | truth.keys())


def at_a_client(system: System) -> dict[str, Rows]:
    """Return what a new client pulls."""
    name = f"helper-{time.monotonic_ns()}"
    connection = Connection(system.gateway, token(system.secret, name, "client", {}, GATEWAY))
    found: dict[str, Rows] = {table: {} for table in SHOWN}
    cursor, more = "0", True
    while more:
        params = {"since": cursor, "clientId": name, "limit": "10000"}
        page = msgspec.json.decode(connection.send("GET", f"/v1/sync/{GATEWAY}/pull", params=params))
        for delta in page["deltas"]:
            if delta["table"] in SHOWN:
                values = {cell["column"]: cell["value"] for cell in delta["columns"]}
                row = found[delta["table"]].setdefault(delta["rowId"], dict.fromkeys(SHOWN[delta["table"]]))
                row.update({column: value for column, value in values.items() if column in row})
        cursor, more = page["serverHlc"], page["hasMore"]
    return found


def in_the_lake(lake: Lake) -> dict[str, Rows]:
    """Return the state tables; a missing table has no rows."""
    found: dict[str, Rows] = {}
    for table, columns in SHOWN.items():
        try:
            read = lake.read(f"tables.{table}", "_row", "_gone", *columns)
        except NoSuchTableError:
            found[table] = {}
            continue
        visible = read.filter(pc.invert(read["_gone"])).to_pylist()
        found[table] = {row["_row"]: {column: row[column] for column in columns} for row in visible}
    return found


def request_flush(system: System) -> None:
    """Request a flush of the polled rows."""
    admin = Connection(system.gateway, token(system.secret, "demo-admin", "admin", {}, GATEWAY))
    admin.send("POST", f"/v1/admin/flush/{GATEWAY}")
