"""Salesforce's output tables, and the actions that the connector supports with JSON Schemas of their params."""

from __future__ import annotations

from lakesync.connectors.base import text_table
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
