"""Salesforce's output tables, the conversion of its records to their rows, and JSON Schemas of the actions' params.

The Salesforce source and actions call it; `built_in.py` lists the tables and actions. All columns are text; JSON and
CSV results give equal rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from lakesync.connectors.base import text_table
from lakesync.connectors.source import SourceRow
from lakesync.connectors.user_filters import ESCAPES, escape
from lakesync.model.action_handlers import ActionDescriptor

SALESFORCE = (
    text_table(
        "sf_accounts",
        "sf_id name type industry website phone billing_city billing_state billing_country annual_revenue"
        " number_of_employees owner_name created_date last_modified_date",
    ),
    text_table(
        "sf_contacts",
        "sf_id first_name last_name email phone title account_id account_name mailing_city mailing_state"
        " mailing_country owner_name created_date last_modified_date",
        account_id="sf_accounts.sf_id",
    ),
    text_table(
        "sf_opportunities",
        "sf_id name stage_name amount close_date probability account_id account_name type lead_source is_closed is_won"
        " owner_name created_date last_modified_date",
        account_id="sf_accounts.sf_id",
    ),
    text_table(
        "sf_leads",
        "sf_id first_name last_name company email phone title status lead_source is_converted converted_account_id"
        " converted_contact_id converted_opportunity_id owner_name created_date last_modified_date",
        converted_account_id="sf_accounts.sf_id",
        converted_contact_id="sf_contacts.sf_id",
        converted_opportunity_id="sf_opportunities.sf_id",
    ),
)
"""The row id is the record's Id."""


SALESFORCE_SWITCHES = {
    "sf_accounts": "includeAccounts",
    "sf_contacts": "includeContacts",
    "sf_opportunities": "includeOpportunities",
    "sf_leads": "includeLeads",
}
"""Table → the setting that turns its polling off."""


_NAME = {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]{0,79}$"}
_FIELDS = {
    "type": "object",
    "description": "Values by field.",
    "minProperties": 1,
    "propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9_]{0,79}$"},
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}

CREATE_RECORD = ActionDescriptor(
    "create_record",
    "Create a record",
    {
        "type": "object",
        "properties": {
            "object": {**_NAME, "description": "The object: Account, Contact, …"},
            "fields": _FIELDS,
            "externalIdField": {
                **_NAME,
                "description": "A field that identifies the record, so that a retry cannot create it twice.",
            },
            "externalId": {"type": "string", "minLength": 1},
        },
        "required": ["object", "fields"],
        "dependentRequired": {"externalIdField": ["externalId"], "externalId": ["externalIdField"]},
        "additionalProperties": False,
    },
)
UPDATE_RECORD = ActionDescriptor(
    "update_record",
    "Change fields of a record",
    {
        "type": "object",
        "properties": {
            "object": {**_NAME, "description": "The object: Account, Contact, …"},
            "id": {"type": "string", "pattern": "^[A-Za-z0-9]{15}([A-Za-z0-9]{3})?$"},
            "fields": _FIELDS,
        },
        "required": ["object", "id", "fields"],
        "additionalProperties": False,
    },
)

Json = Mapping[str, Any]
_SPECIAL = re.compile(r"""["'\\\x00-\x1f\x7f-\x9f]""")
"""Quotation marks, backslashes and control characters, which are escaped in a SOQL string."""


class SalesforceObject(NamedTuple):
    """A Salesforce object and the fields of its table."""

    name: str
    fields: Mapping[str, str]
    """Column → the object's field, such as `Owner.Name`."""


_FIELD_NAMES = {"sf_id": "Id", "owner_name": "Owner.Name", "account_name": "Account.Name"}
"""Columns whose field's name does not follow from their own."""
_NUMBERS = {"AnnualRevenue", "NumberOfEmployees", "Amount", "Probability"}


def _field(column: str) -> str:
    """Return the field of a column: `billing_city` is `BillingCity`."""
    return _FIELD_NAMES.get(column) or "".join(part.capitalize() for part in column.split("_"))


_OBJECTS = ("Account", "Contact", "Opportunity", "Lead")
OBJECTS = {
    table.table: SalesforceObject(name, {column.name: _field(column.name) for column in table.columns})
    for table, name in zip(SALESFORCE, _OBJECTS, strict=True)
}
"""Output table → its Salesforce object."""


def record_row(table: str, record: Json) -> SourceRow:
    """Convert a record of a query; the row id is its Id."""
    columns = OBJECTS[table].fields
    return SourceRow(record["Id"], {column: _text(_field_value(record, field)) for column, field in columns.items()})


def csv_row(table: str, line: Mapping[str, str]) -> SourceRow:
    """Convert a line of a bulk job's CSV. An empty field is null, because Salesforce does not store empty text.

    Args:
        table: the output table.
        line: field → value.
    """
    columns = OBJECTS[table].fields
    return SourceRow(line["Id"], {column: _csv_text(field, line[field]) for column, field in columns.items()})


def to_milliseconds(timestamp: str) -> int:
    """Parse Salesforce's timestamps (`2026-01-02T03:04:05.000+0000`) to milliseconds since 1970."""
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)


def datetime_literal(ms: int) -> str:
    """Format milliseconds since 1970 as a SOQL literal."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def soql_literal(value: str | float | bool | None) -> str:
    """Format a value as a SOQL literal."""
    if isinstance(value, str):
        return f"'{escape(value, _SPECIAL, ESCAPES)}'"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _field_value(record: Json, field: str) -> Any:
    """Return the value of a field, which may be in a related record (`Owner.Name`)."""
    value: Any = record
    for name in field.split("."):
        value = None if value is None else value.get(name)
    return value


def _csv_text(field: str, text: str) -> str | None:
    """Return a CSV value as `_text` returns the JSON value of the same field."""
    if not text:
        return None
    return _text(float(text)) if field in _NUMBERS else text


def _text(value: Any) -> str | None:
    """Return a value as the text of a column of type string; Salesforce sends some of them as numbers or booleans."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
