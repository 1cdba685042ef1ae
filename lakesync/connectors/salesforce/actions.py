"""Salesforce's actions: a client requests one to create or update a record.

An action must happen once, even if it is attempted again after a lost response. Repeating an update is harmless. A
repeated create first looks for the record (`_create`). The action dispatcher calls `salesforce_actions` for each
action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from lakesync.connectors.base import ConnectorConfig, object_schema
from lakesync.connectors.http_api import ApiActions, Params, decode_json
from lakesync.connectors.salesforce.api import SalesforceClient, soql_literal
from lakesync.model.action_handlers import ActionContext, ActionDescriptor
from lakesync.model.hlc import iso_time, wall_of
from lakesync.model.types import Action

_CLOCK_SKEW_MS = 60_000
"""By how much the client's clock, which sets an action's hlc, may be ahead of Salesforce's."""
_NAME = {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]{0,79}$"}
"""The JSON Schema of the name of an object or field."""
_FIELDS = {
    "type": "object",
    "description": "Values by field.",
    "minProperties": 1,
    "propertyNames": {"pattern": _NAME["pattern"]},
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
"""The JSON Schema of a record's values."""
_OBJECT = {**_NAME, "description": "The object: Account, Contact, …"}

CREATE_RECORD = ActionDescriptor(
    "create_record",
    "Create a record",
    object_schema(
        {
            "object": _OBJECT,
            "fields": _FIELDS,
            "externalIdField": {
                **_NAME,
                "description": "A field that identifies the record, so that a retry cannot create it twice.",
            },
            "externalId": {"type": "string", "minLength": 1},
        },
        "object",
        "fields",
        dependentRequired={"externalIdField": ["externalId"], "externalId": ["externalIdField"]},
    ),
)
UPDATE_RECORD = ActionDescriptor(
    "update_record",
    "Change fields of a record",
    object_schema(
        {
            "object": _OBJECT,
            "id": {"type": "string", "pattern": "^[A-Za-z0-9]{15}([A-Za-z0-9]{3})?$"},
            "fields": _FIELDS,
        },
        "object",
        "id",
        "fields",
    ),
)


def _create(client: SalesforceClient, action: Action, params: Params, context: ActionContext) -> Mapping[str, Any]:
    """Create a record; return its id.

    With an external id Salesforce itself recognises a repeat. Without one, a second attempt first looks for a record
    that the first may have created.
    """
    object_name, fields = params["object"], dict(params["fields"])
    if "externalIdField" in params:
        path = f"/sobjects/{object_name}/{params['externalIdField']}/{quote(params['externalId'], safe='')}"
        return {"id": decode_json(client.call("PATCH", path, json=fields))["id"]}
    if context.attempt > 1 and (found := _find_created(client, action, object_name, fields)) is not None:
        return {"id": found}
    created = decode_json(client.call("POST", f"/sobjects/{object_name}", json=fields, repeatable=False))
    return {"id": created["id"]}


def _find_created(client: SalesforceClient, action: Action, object_name: str, fields: Mapping[str, Any]) -> str | None:
    """Return the id of the record that an earlier attempt may have created: the newest one with these values."""
    since = iso_time(max(wall_of(action.hlc) - _CLOCK_SKEW_MS, 0))
    has_values = " AND ".join(f"{name} = {soql_literal(value)}" for name, value in fields.items())
    soql = (
        f"SELECT Id FROM {object_name} WHERE CreatedDate >= {since} AND {has_values} ORDER BY CreatedDate DESC LIMIT 1"
    )
    records = next(client.query(soql))["records"]
    return records[0]["Id"] if records else None


def _update(client: SalesforceClient, _: Action, params: Params, __: ActionContext) -> Mapping[str, Any]:
    """Set fields of a record; return its id."""
    client.call("PATCH", f"/sobjects/{params['object']}/{params['id']}", json=dict(params["fields"]))
    return {"id": params["id"]}


_FUNCTIONS = ((CREATE_RECORD, _create), (UPDATE_RECORD, _update))
SALESFORCE_ACTIONS = tuple(descriptor for descriptor, _ in _FUNCTIONS)
"""The actions that a connector of type `salesforce` supports."""


def salesforce_actions(config: ConnectorConfig) -> ApiActions[SalesforceClient]:
    """Return the handler of a connector's actions. The result of each action is the record's id, as `{"id": …}`."""
    return ApiActions(lambda: SalesforceClient(config.settings, hosts=config.hosts), _FUNCTIONS)
