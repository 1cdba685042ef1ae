"""Routes of the REST API that create and update records."""

from __future__ import annotations

from typing import Any

from lakesync.testing.servers.http import Answer, Request
from lakesync.testing.servers.salesforce.faults import error, unknown
from lakesync.testing.servers.salesforce.org import EXTERNAL_IDS, FIELDS, REQUIRED
from lakesync.testing.servers.salesforce.service import SalesforceService


def create(api: SalesforceService, request: Request, kind: str) -> Answer:
    """Create a record."""
    fields: dict[str, Any] = request.json
    if (wrong := _validation_error(kind, fields, REQUIRED.get(kind, ()))) is not None:
        return wrong
    made = api.org.add(kind, **fields)
    return Answer(201, {"id": made.id, "success": True, "errors": []})


def update(api: SalesforceService, request: Request, kind: str, name: str) -> Answer:
    """Update a record."""
    fields: dict[str, Any] = request.json
    if (wrong := _validation_error(kind, fields, ())) is not None:
        return wrong
    record = api.org.records.get(name)
    if record is None or record.deleted or record.kind != kind or record.hidden:
        return error(404, "NOT_FOUND", "Provided external ID field does not exist or is not accessible: " + name)
    api.org.edit(record, **fields)
    return Answer(204)


def upsert(api: SalesforceService, request: Request, kind: str, field: str, value: str) -> Answer:
    """Update the record with an external id, or create it."""
    fields: dict[str, Any] = request.json
    if field not in EXTERNAL_IDS.get(kind, ()):
        return error(404, "NOT_FOUND", f"Provided external ID field does not exist or is not accessible: {field}")
    if (wrong := _validation_error(kind, fields, ())) is not None:
        return wrong
    found = [each for each in api.org.visible(kind, deleted=False) if each.fields.get(field) == value]
    if found:
        api.org.edit(found[0], **fields)
        return Answer(200, {"id": found[0].id, "success": True, "errors": [], "created": False})
    if (wrong := _validation_error(kind, fields, REQUIRED.get(kind, ()))) is not None:
        return wrong
    made = api.org.add(kind, **fields, **{field: value})
    return Answer(201, {"id": made.id, "success": True, "errors": [], "created": True})


def _validation_error(kind: str, fields: Any, required: tuple[str, ...]) -> Answer | None:
    if kind not in FIELDS:
        return unknown()
    undefined = [name for name in fields if name not in FIELDS[kind]]
    if undefined:
        return error(
            400, "INVALID_FIELD", f"No such column '{undefined[0]}' on sobject of type {kind}", fields=undefined
        )
    missing = [name for name in required if not fields.get(name)]
    if missing:
        words = f"Required fields are missing: [{', '.join(missing)}]"
        return error(400, "REQUIRED_FIELD_MISSING", words, fields=missing)
    return None
