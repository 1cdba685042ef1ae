"""Converts Salesforce records to rows; all columns are text, equal for JSON and CSV results."""

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


class SalesforceObject(NamedTuple):
    """A Salesforce object and the fields of its table."""

    name: str
    fields: Mapping[str, str]
    """The object's field by column."""


_NAMES = {"sf_id": "Id", "owner_name": "Owner.Name", "account_name": "Account.Name"}
_NUMBERS = {"AnnualRevenue", "NumberOfEmployees", "Amount", "Probability"}


def _field(column: str) -> str:
    return _NAMES.get(column) or "".join(part.capitalize() for part in column.split("_"))


_OBJECTS = ("Account", "Contact", "Opportunity", "Lead")
OBJECTS = {
    table.table: SalesforceObject(name, {column.name: _field(column.name) for column in table.columns})
    for table, name in zip(SALESFORCE, _OBJECTS, strict=True)
}
"""By table."""


def record_row(table: str, record: Json) -> SourceRow:
    """Convert a record of a query; the row id is its Id."""
    columns = OBJECTS[table].fields
    return SourceRow(record["Id"], {column: _text(_of(record, field)) for column, field in columns.items()})


def csv_row(table: str, line: Mapping[str, str]) -> SourceRow:
    """Convert a line of a bulk job's CSV. An empty field is null, because Salesforce does not store empty text.

    Args:
        table: the output table.
        line: values by field.
    """
    columns = OBJECTS[table].fields
    return SourceRow(line["Id"], {column: _of_csv(field, line[field]) for column, field in columns.items()})


def to_milliseconds(moment: str) -> int:
    """Parse Salesforce's timestamps (`2026-01-02T03:04:05.000+0000`) to milliseconds since 1970."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def datetime_literal(ms: int) -> str:
    """Format a time as a SOQL literal."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def soql_literal(value: str | float | bool | None) -> str:
    """Format a value as a SOQL literal."""
    if isinstance(value, str):
        return f"'{escape(value, _SPECIAL, ESCAPES)}'"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _of(record: Json, field: str) -> Any:
    value: Any = record
    for name in field.split("."):
        value = None if value is None else value.get(name)
    return value


def _of_csv(field: str, text: str) -> str | None:
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
