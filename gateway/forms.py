"""What the OpenAPI document says of values beyond their types: patterns, ranges, examples."""

from __future__ import annotations

from typing import Any

from lakesync.actions import ActionLimits
from lakesync.connectors.descriptors import BUILT_IN
from lakesync.engine.limits import MAX_PULL, EngineLimits
from lakesync.model.delta import MAX_DEPTH
from lakesync.model.validation import GATEWAY_ID, MAX_HLC, MAX_ID_CHARS
from lakesync.rules.model import CLAIM_PREFIX, MAX_NAME_CHARS

HLC: dict[str, Any] = {
    "description": "64 bits as a decimal string; a bare integer is accepted too",
    "anyOf": [
        {"type": "string", "pattern": "^(0|[1-9][0-9]{0,17})$"},
        {"type": "integer", "minimum": 0, "maximum": MAX_HLC},
    ],
}
GATEWAY: dict[str, Any] = {"type": "string", "pattern": f"^{GATEWAY_ID}$"}
IDENTIFIER: dict[str, Any] = {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]{0,63}$"}
ID: dict[str, Any] = {"type": "string", "pattern": "^[^\\x00]+$", "minLength": 1, "maxLength": MAX_ID_CHARS}
"""Of a row, a client or a delta."""
CURSOR: dict[str, Any] = {"type": "string", "pattern": "^(now|[0-9]{1,18}-[0-9]{1,18}(-[0-9]{1,18}-[0-9]{1,18})?)$"}
"""Of a look, where tables have no stores of their own; a client takes it as it is."""
CONNECTOR: dict[str, Any] = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"}

_SCHEMA: dict[str, dict[str, Any]] = {
    "table": IDENTIFIER,
    "sourceTable": IDENTIFIER,
    "externalIdColumn": IDENTIFIER,
    "columns": {"minItems": 1},
    "primaryKey": {"minItems": 1, "uniqueItems": True, "items": IDENTIFIER},
}

FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "SyncPush": {"clientId": ID, "deltas": {"maxItems": EngineLimits().max_deltas}},
    "SyncPull": {"clientId": ID, "maxDeltas": {"minimum": 1, "maximum": MAX_PULL}},
    "RowDelta": {"table": IDENTIFIER, "rowId": ID, "clientId": ID, "deltaId": ID},
    "ColumnValue": {
        "column": IDENTIFIER,
        "value": {"description": f"Any JSON value of finite numbers, at most {MAX_DEPTH} lists and objects deep"},
    },
    "TableSchema": _SCHEMA,
    "GivenSchema": _SCHEMA,
    "Column": {"name": IDENTIFIER},
    "GivenColumn": {"name": IDENTIFIER},
    "Reference": {"table": IDENTIFIER, "column": IDENTIFIER},
    "ActionPush": {"clientId": ID, "actions": {"maxItems": ActionLimits().max_actions}},
    "Action": {
        "clientId": ID,
        "connector": ID,
        "actionType": ID,
        "actionId": ID,
        "idempotencyKey": ID,
        "params": {"type": "object", "description": "By the params schema that GET …/actions tells"},
    },
    "Connector": {
        "name": CONNECTOR,
        "type": {"enum": [each.type for each in BUILT_IN], "description": "Or a type of an installed package"},
    },
    "SyncRules": {"version": {"minimum": 1}},
    "Bucket": {"name": {"minLength": 1, "maxLength": MAX_NAME_CHARS}, "tables": {"items": IDENTIFIER}},
    "Filter": {"column": IDENTIFIER, "value": {"not": {"const": CLAIM_PREFIX}}},
}
"""Component → property → further keywords."""

CONDITIONS: dict[str, dict[str, Any]] = {
    "RowDelta": {
        "if": {"properties": {"op": {"const": "DELETE"}}},
        "then": {"properties": {"columns": {"maxItems": 0}}},
    },
    "SyncPull": {"required": ["clientId"]},
    "Connector": {
        "oneOf": [
            {
                "properties": {
                    "name": {},
                    "type": {"const": each.type},
                    each.type: each.config_schema,
                    "ingest": {"anyOf": [each.ingest_schema, {"type": "null"}]},
                },
                "required": [each.type],
                "additionalProperties": False,
            }
            for each in BUILT_IN
        ],
    },
}
"""Component → keywords of the whole object."""


def refine(components: dict[str, dict[str, Any]]) -> None:
    """Add to each component what its types cannot say."""
    for name, component in components.items():
        properties: dict[str, Any] = component.get("properties", {})
        for key, described in properties.items():
            if key == "hlc" or key.endswith("Hlc"):
                nullable = {"type": "null"} in described.get("anyOf", ())
                properties[key] = {**HLC, "anyOf": [*HLC["anyOf"], {"type": "null"}]} if nullable else HLC
        for key, keywords in FORMS.get(name, {}).items():
            _typed(properties[key]).update(keywords)
        component.update(CONDITIONS.get(name, {}))


def _typed(described: dict[str, Any]) -> dict[str, Any]:
    """The branch that holds the value, where null is allowed too."""
    branches: list[dict[str, Any]] = described.get("anyOf", [described])
    return branches[0]
