"""The built-in connector types: descriptors with their settings as JSON Schema, actions and sources.

A type's code is imported when one of its connectors is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lakesync.connectors.base import ConnectorConfig, ConnectorType
from lakesync.connectors.jira.schemas import ADD_COMMENT, CREATE_ISSUE, JIRA, JIRA_SWITCHES, TRANSITION
from lakesync.connectors.salesforce.schemas import CREATE_RECORD, SALESFORCE, SALESFORCE_SWITCHES, UPDATE_RECORD
from lakesync.connectors.webhook.schemas import SEND
from lakesync.model.action_handlers import SECRET, SERVER_FILE, ActionDescriptor, ConnectorDescriptor

_IDENTIFIER = "^[a-zA-Z_][a-zA-Z0-9_]{0,63}$"
_SITE = "^(https://)?[A-Za-z0-9-]{1,63}(\\.atlassian\\.net)?/?$"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": description, **more}


def _secret(description: str) -> dict[str, Any]:
    return _text(f"{description} Or a reference: env:NAME, file:PATH.", format="password", **{SECRET: True})


def _flag(description: str, *, default: bool) -> dict[str, Any]:
    return {"type": "boolean", "description": description, "default": default}


def _count(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "description": description, **more}


def _object(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {
        "$schema": _DIALECT,
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


_PACE = {
    "intervalMs": _count("Milliseconds between two polls.", default=10_000),
    "chunkSize": _count("Deltas in one push.", default=500, maximum=10_000),
    "memoryBudgetBytes": _count("A quarter of the bytes that a task lands at once of a long reading."),
    "maxCalls": _count("Calls that a poll may make, retries included; the next poll continues."),
}

_CENSUS = {
    "censusIntervalMs": _count(
        "Milliseconds between two counts of what is still there, for deletes.", default=86_400_000
    ),
    "deletedShare": {
        "type": "number",
        "minimum": 0,
        "maximum": 1,
        "description": "The share of a table's rows that a count may delete; above it, it stops and says so.",
        "default": 0.2,
    },
}

_STRATEGY = {
    "type": "object",
    "description": "How changes are found.",
    "properties": {
        "type": {"enum": ["cursor", "diff"]},
        "cursorColumn": _text("A column that grows with every change; for cursor."),
        "lookbackMs": {"type": "integer", "minimum": 0, "description": "How far behind the cursor to look again."},
    },
    "required": ["type"],
    "if": {"properties": {"type": {"const": "cursor"}}},
    "then": {"required": ["cursorColumn"]},
    "additionalProperties": False,
}

DATABASE_INGEST = _object(
    {
        "tables": {
            "type": "array",
            "minItems": 1,
            "description": "What is polled.",
            "items": {
                "type": "object",
                "properties": {
                    "table": {
                        "type": "string",
                        "pattern": _IDENTIFIER,
                        "description": "The table that it becomes.",
                    },
                    "query": _text("SQL that gives the row id and the columns."),
                    "rowIdColumn": _text("The column that identifies a row.", default="id"),
                    "strategy": _STRATEGY,
                },
                "required": ["table", "query", "strategy"],
                "additionalProperties": False,
            },
        },
        **_PACE,
        **_CENSUS,
    },
    "tables",
)

API_INGEST = _object({**_PACE, **_CENSUS})


def _database(kind: str, name: str, config: dict[str, Any]) -> ConnectorDescriptor:
    return ConnectorDescriptor(
        kind, name, f"Polls tables of a {name} database by SQL.", "database", config, DATABASE_INGEST
    )


def _connection(scheme: str) -> dict[str, Any]:
    return _object({"connectionString": _secret(f"{scheme}://USER:PASSWORD@HOST/DATABASE.")}, "connectionString")


DESCRIPTORS = (
    _database("postgres", "PostgreSQL", _connection("postgresql")),
    _database("mysql", "MySQL", _connection("mysql")),
    _database(
        "bigquery",
        "BigQuery",
        _object(
            {
                "projectId": _text("The Google Cloud project."),
                "dataset": _text("The dataset."),
                "keyFilename": _text(
                    "File of a service account's key; without one, the machine's own identity.", format=SERVER_FILE
                ),
                "location": _text("Where the dataset is.", default="US"),
                "endpoint": _text(
                    "An emulator's address, asked without credentials.", pattern="^https?://[^/]+/?$", format="uri"
                ),
            },
            "projectId",
            "dataset",
        ),
    ),
    ConnectorDescriptor(
        "jira",
        "Jira Cloud",
        "Polls issues, comments and projects of a Jira Cloud site.",
        "api",
        _object(
            {
                "domain": _text("SITE of SITE.atlassian.net.", pattern=_SITE),
                "email": _text("Whose token it is."),
                "apiToken": _secret("An API token of that account."),
                "jql": _text("Which issues; all, unless given."),
                "includeComments": _flag("Whether comments are polled.", default=True),
                "includeProjects": _flag("Whether projects are polled.", default=True),
                "baseUrl": _text(
                    "Where the site is, if not at atlassian.net.", pattern="^https?://[^/]+/?$", format="uri"
                ),
            },
            "domain",
            "email",
            "apiToken",
        ),
        API_INGEST,
        JIRA,
    ),
    ConnectorDescriptor(
        "salesforce",
        "Salesforce",
        "Polls accounts, contacts, opportunities and leads of a Salesforce organisation.",
        "api",
        _object(
            {
                "instanceUrl": _text("https://NAME.my.salesforce.com.", pattern="^https?://[^/]+/?$", format="uri"),
                "clientId": _text("Consumer key of the connected app."),
                "clientSecret": _secret("Consumer secret of the connected app."),
                "username": _text("Who signs in; without, the app itself does, by the client credentials flow."),
                "password": _secret("That user's password, followed by the security token."),
                "loginUrl": _text(
                    "Where to sign in, if not where isSandbox says.", pattern="^https?://[^/]+/?$", format="uri"
                ),
                "apiVersion": _text("Of the REST API.", default="v62.0", pattern="^v[0-9]{1,3}\\.[0-9]$"),
                "isSandbox": _flag("Whether it is a sandbox, which signs in elsewhere.", default=False),
                "soqlFilter": _text("A condition that every query gets besides its own."),
                "includeAccounts": _flag("Whether accounts are polled.", default=True),
                "includeContacts": _flag("Whether contacts are polled.", default=True),
                "includeOpportunities": _flag("Whether opportunities are polled.", default=True),
                "includeLeads": _flag("Whether leads are polled.", default=True),
            },
            "instanceUrl",
            "clientId",
            "clientSecret",
            dependentRequired={"username": ["password"], "password": ["username"]},
        ),
        API_INGEST,
        SALESFORCE,
    ),
    ConnectorDescriptor(
        "webhook",
        "Webhook",
        "Posts what clients send to one address, signed.",
        "api",
        _object(
            {
                "url": _text("Where it is posted.", pattern="^https?://", format="uri"),
                "secret": _secret("By which the receiver knows that it came from here."),
            },
            "url",
            "secret",
        ),
        {"not": {}, "description": "A webhook is not polled."},
    ),
)


_ACTIONS: dict[str, tuple[str, tuple[ActionDescriptor, ...]]] = {
    "jira": ("lakesync.connectors.jira.actions:handler", (CREATE_ISSUE, ADD_COMMENT, TRANSITION)),
    "salesforce": ("lakesync.connectors.salesforce.actions:handler", (CREATE_RECORD, UPDATE_RECORD)),
    "webhook": ("lakesync.connectors.webhook.actions:WebhookActions", (SEND,)),
}
_SOURCES = {
    "postgres": "lakesync.connectors.sql.postgres:source",
    "mysql": "lakesync.connectors.sql.mysql:source",
    "bigquery": "lakesync.connectors.sql.bigquery:source",
    "jira": "lakesync.connectors.jira.source:JiraSource",
    "salesforce": "lakesync.connectors.salesforce.source:SalesforceSource",
}
_SWITCHES = {"jira": JIRA_SWITCHES, "salesforce": SALESFORCE_SWITCHES}


class _LazyFactory:
    """A factory that imports its module on the first call."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __call__(self, config: ConnectorConfig) -> Any:
        module, _, name = self._place.partition(":")
        return getattr(import_module(module), name)(config)


def _connector_type(descriptor: ConnectorDescriptor) -> ConnectorType:
    more: dict[str, Any] = {}
    if descriptor.type in _ACTIONS:
        place, offered = _ACTIONS[descriptor.type]
        more |= {"actions": offered, "make_handler": _LazyFactory(place)}
    if descriptor.type in _SOURCES:
        more["open_source"] = _LazyFactory(_SOURCES[descriptor.type])
    if descriptor.type in _SWITCHES:
        more["switches"] = _SWITCHES[descriptor.type]
    return ConnectorType(descriptor, **more)


BUILT_IN = tuple(_connector_type(descriptor) for descriptor in DESCRIPTORS)
"""postgres, mysql, bigquery, jira, salesforce, webhook."""
