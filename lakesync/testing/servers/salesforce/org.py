"""The data of the fake Salesforce organisation (`SalesforceOrg`), and the settings and state of its API.

An organisation has users and the records of four objects (Salesforce's word for tables). Deleted records stay in the
recycle bin until they are purged. The routes in the package read and change the data; tests change them directly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, NamedTuple

from lakesync.testing.servers import Response


def _fields(names: str) -> frozenset[str]:
    """Return the named fields and those that every object has."""
    common = "Id IsDeleted CreatedDate LastModifiedDate SystemModstamp OwnerId CreatedById"
    return frozenset(f"{common} {names}".split())


FIELDS: dict[str, frozenset[str]] = {
    "Account": _fields(
        "Name Type Industry Website Phone BillingCity BillingState BillingCountry AnnualRevenue NumberOfEmployees"
        " ExternalKey__c"
    ),
    "Contact": _fields("FirstName LastName Email Phone Title AccountId MailingCity MailingState MailingCountry"),
    "Opportunity": _fields("Name StageName Amount CloseDate Probability AccountId Type LeadSource IsClosed IsWon"),
    "Lead": _fields(
        "FirstName LastName Company Email Phone Title Status LeadSource IsConverted ConvertedAccountId"
        " ConvertedContactId ConvertedOpportunityId"
    ),
}
"""The fields of each object."""

REQUIRED = {
    "Account": ("Name",),
    "Contact": ("LastName",),
    "Opportunity": ("Name", "StageName", "CloseDate"),
    "Lead": ("LastName", "Company"),
}
"""The fields that a new record of each object must have."""
RELATIONS = {"Owner": "OwnerId", "Account": "AccountId"}
"""Relation → the field with the other record's id. A query may name fields of the other record: `Owner.Name`."""
EXTERNAL_IDS = {"Account": ("ExternalKey__c",)}
"""The fields of each object by whose value `upsert` finds a record."""

_ID_PREFIXES = {"Account": "001", "Contact": "003", "Opportunity": "006", "Lead": "00Q"}
"""The first characters of an object's record ids."""


@dataclass
class Record:
    """A record. Times are in milliseconds since 1970, always whole seconds, as Salesforce stores no fractions."""

    kind: str
    """The object, such as `Account`."""
    id: str
    fields: dict[str, Any]
    created: int
    modified: int
    deleted: bool = False
    hidden: bool = False
    """Whether sharing rules hide the record from the user."""

    def value(self, name: str) -> Any:
        """Return a field's value as the API returns it; None if the field is not set."""
        match name:
            case "Id":
                return self.id
            case "IsDeleted":
                return self.deleted
            case _ if name in TIMES:
                return time_text(TIMES[name](self))
        return self.fields.get(name)


class Deletion(NamedTuple):
    """A record that was deleted."""

    ms: int
    """When, in milliseconds since 1970."""
    kind: str
    """The object, such as `Account`."""
    id: str


TIMES: dict[str, Callable[[Record], int]] = {
    "CreatedDate": attrgetter("created"),
    "LastModifiedDate": attrgetter("modified"),
    "SystemModstamp": attrgetter("modified"),
}
"""The time fields that every object has → function that returns the time in milliseconds since 1970."""


@dataclass
class SalesforceOrg:
    """The state of an organisation. Tests change it by these methods, requests by the API."""

    clock: Callable[[], int]
    """Returns the organisation's time in milliseconds since 1970."""
    records: dict[str, Record] = field(default_factory=dict)
    """Id → record, also records in the recycle bin."""
    users: dict[str, str] = field(default_factory=lambda: {"005000000000001AAA": "Ada", "005000000000002AAA": "Grace"})
    """Id → name."""
    deletions: list[Deletion] = field(default_factory=list)
    """The deleted records, also purged ones."""
    _record_count: int = 0
    """Number of records that were ever created, for ids."""

    def add(self, kind: str, **fields: Any) -> Record:
        """Create a record.

        Args:
            kind: the object, such as `Account`.
            fields: field values; the owner defaults to the first user.
        """
        self._record_count += 1
        now = self._now()
        owner = {"OwnerId": next(iter(self.users)), "CreatedById": next(iter(self.users))}
        flags = {"Opportunity": {"IsClosed": False, "IsWon": False}, "Lead": {"IsConverted": False}}.get(kind, {})
        record = Record(
            kind, f"{_ID_PREFIXES[kind]}{self._record_count:012d}AAA", owner | flags | _stored(fields), now, now
        )
        self.records[record.id] = record
        return record

    def edit(self, record: Record, **fields: Any) -> None:
        """Change fields of a record."""
        record.fields |= _stored(fields)
        record.modified = self._now()

    def delete(self, record: Record) -> None:
        """Move a record to the recycle bin."""
        record.deleted, record.modified = True, self._now()
        self.deletions.append(Deletion(self._now(), record.kind, record.id))

    def restore(self, record: Record) -> None:
        """Restore a record from the recycle bin."""
        record.deleted, record.modified = False, self._now()
        self.deletions = [deletion for deletion in self.deletions if deletion.id != record.id]

    def purge(self, record: Record) -> None:
        """Delete a record permanently. `queryAll` does not return it; the route `deleted` does."""
        if not record.deleted:
            self.delete(record)
        del self.records[record.id]

    def visible(self, kind: str, *, deleted: bool) -> list[Record]:
        """Return the records from which a query selects.

        Args:
            kind: the object, such as `Account`.
            deleted: whether to include the recycle bin (`queryAll`).
        """
        return [
            each
            for each in self.records.values()
            if each.kind == kind and not each.hidden and (deleted or not each.deleted)
        ]

    def field_of(self, record: Record, name: str) -> Any:
        """Return a field's value.

        Args:
            record: the record.
            name: a field of the record, or of one that it refers to, such as `Account.Name`.
        """
        relation, dot, related_field = name.partition(".")
        if not dot:
            return record.value(name)
        other = record.fields.get(RELATIONS[relation])
        if relation == "Owner":
            return self.users.get(str(other))
        related = self.records.get(str(other))
        return related.value(related_field) if related is not None else None

    def _now(self) -> int:
        """Return the time in milliseconds since 1970, without fractions of a second."""
        return self.clock() // 1000 * 1000


def _stored(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return field values as Salesforce stores them: empty text becomes null."""
    return {name: None if value == "" else value for name, value in fields.items()}


def time_text(ms: int) -> str:
    """Return a time (milliseconds since 1970) as the API writes it."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}.000+0000"


@dataclass
class BulkJob:
    """A query job of the Bulk API."""

    id: str
    operation: str
    """`query` or `queryAll`."""
    query: str
    created: int
    """Milliseconds since 1970."""
    fields: tuple[str, ...]
    records: list[Record]
    """The result of the query."""
    version: str
    """API version of the request that created the job. Requests of other versions cannot read the result."""
    fails: bool
    """Whether the job ends with an error."""


class RemainingRecords(NamedTuple):
    """The records of a query that were not returned yet."""

    expires_ms: int
    """Time after which they are no longer returned, in milliseconds since 1970."""
    fields: tuple[str, ...]
    """The fields of the query."""
    records: list[Record]
    total: int
    """Number of all records of the query."""


@dataclass
class SalesforceService:
    """Settings and state of the API; `SalesforceApi` adds its routes, whose first parameter has this class."""

    org: SalesforceOrg
    client_id: str = "consumer-key"
    client_secret: str = "consumer-secret"  # noqa: S105 a server for tests
    username: str = "sync@example.com"
    password: str = "password-and-token"  # noqa: S105
    daily_limit: int = 15_000
    """Requests per day that are allowed."""
    session_ms: int = 7_200_000
    """Milliseconds for which an access token is valid."""
    locator_ms: int = 172_800_000
    """Milliseconds for which the further pages of a query are kept."""
    batch: int = 2_000
    """Records on a page."""
    job_delay_ms: int = 0
    """Milliseconds that a bulk job takes."""
    failing_jobs: int = 0
    """Number of the next bulk jobs that fail."""
    no_access: set[str] = field(default_factory=set)
    """Objects that the user may not read."""
    failures: deque[Response] = field(default_factory=deque)
    """Responses to the next requests, one each, in place of a route's. Status 0 lets the route respond."""
    url: str = ""
    """The service's URL, which sign-in returns; empty: the host of the request."""
    used: int = 0
    """Requests so far today."""
    sessions: dict[str, int] = field(default_factory=dict)
    """Access token → its expiry, in milliseconds since 1970."""
    results: dict[str, RemainingRecords] = field(default_factory=dict)
    """Locator of a query's next page → the records that were not returned yet."""
    jobs: dict[str, BulkJob] = field(default_factory=dict)
    """Id → job."""

    def now(self) -> int:
        """Return the organisation's time in milliseconds since 1970."""
        return self.org.clock()


def error(status: int, code: str, message: str, **more: Any) -> Response:
    """Return an error in the API's form: a list of one."""
    return Response(status, [{"message": message, "errorCode": code, **more}])


def not_found() -> Response:
    """Return the error of an unknown resource."""
    return error(404, "NOT_FOUND", "The requested resource does not exist")
