"""What a Salesforce connector offers to do, and the JSON Schema of the params."""

from __future__ import annotations

from lakesync.model.action_handlers import ActionDescriptor

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
            "externalIdField": {**_NAME, "description": "A field that identifies the record: then it is made once."},
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
