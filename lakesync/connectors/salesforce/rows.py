"""Salesforce's records as rows: every column a text, spelled alike whether it came as JSON or as CSV."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from lakesync.connectors.conditions import ESCAPES, escaped
from lakesync.connectors.source import SourceRow
from lakesync.connectors.tables import SALESFORCE

Json = Mapping[str, Any]
_SPECIAL = re.compile(r"""["'\\\x00-\x1f\x7f-\x9f]""")


class Object(NamedTuple):
    """An object of Salesforce and the table that it becomes."""

    name: str
    fields: Mapping[str, str]
    """Field of the object by column."""


_NAMES = {"sf_id": "Id", "owner_name": "Owner.Name", "account_name": "Account.Name"}
_NUMBERS = {"AnnualRevenue", "NumberOfEmployees", "Amount", "Probability"}


def _field(column: str) -> str:
    return _NAMES.get(column) or "".join(part.capitalize() for part in column.split("_"))


_OBJECTS = ("Account", "Contact", "Opportunity", "Lead")
OBJECTS = {
    table.table: Object(name, {column.name: _field(column.name) for column in table.columns})
    for table, name in zip(SALESFORCE, _OBJECTS, strict=True)
}
"""By table."""


def record_row(table: str, record: Json) -> SourceRow:
    """A record of a query; its row id is its Id."""
    columns = OBJECTS[table].fields
    return SourceRow(record["Id"], {column: _text(_of(record, field)) for column, field in columns.items()})


def line_row(table: str, line: Mapping[str, str]) -> SourceRow:
    """A line of a bulk job's CSV. An empty field is none: Salesforce keeps no empty text."""
    columns = OBJECTS[table].fields
    return SourceRow(line["Id"], {column: _of_csv(field, line[field]) for column, field in columns.items()})


def milliseconds(moment: str) -> int:
    """A time as Salesforce spells it (`2026-01-02T03:04:05.000+0000`), in milliseconds since the epoch."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def literal(ms: int) -> str:
    """A time as SOQL reads it."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def quoted(value: str | float | bool | None) -> str:
    """Spell a value as SOQL reads it."""
    if isinstance(value, str):
        return f"'{escaped(value, _SPECIAL, ESCAPES)}'"
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
