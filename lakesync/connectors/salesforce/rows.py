"""Converts Salesforce records to rows. All columns are text; JSON and CSV results give equal rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from lakesync.connectors.salesforce.schemas import SALESFORCE
from lakesync.connectors.source import SourceRow
from lakesync.connectors.user_filters import ESCAPES, escape

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
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
