"""The connector types that LakeSync comes with: their settings as JSON Schema, their tables."""

from __future__ import annotations

from typing import Any

from lakesync.connectors.base import SECRET, SERVER_FILE, ConnectorDescriptor
from lakesync.connectors.tables import JIRA, SALESFORCE

_IDENTIFIER = "^[a-zA-Z_][a-zA-Z0-9_]{0,63}$"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": description, **more}


def _secret(description: str) -> dict[str, Any]:
    return _text(f"{description} Or a reference: env:NAME, file:PATH.", format="password", **{SECRET: True})


def _flag(description: str, *, default: bool) -> dict[str, Any]:
    return {"type": "boolean", "description": description, "default": default}


def _count(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "description": description, **more}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "$schema": _DIALECT,
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_PACE = {
    "intervalMs": _count("Milliseconds between two polls.", default=10_000),
    "chunkSize": _count("Deltas in one push.", default=500, maximum=10_000),
    "memoryBudgetBytes": _count("Bytes that a poll may hold; it pushes before it holds more."),
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
    },
    "tables",
)

API_INGEST = _object(_PACE)


def _database(kind: str, name: str, config: dict[str, Any]) -> ConnectorDescriptor:
    return ConnectorDescriptor(
        kind, name, f"Polls tables of a {name} database by SQL.", "database", config, DATABASE_INGEST
    )


def _connection(scheme: str) -> dict[str, Any]:
    return _object({"connectionString": _secret(f"{scheme}://USER:PASSWORD@HOST/DATABASE.")}, "connectionString")


BUILT_IN = (
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
                "domain": _text("SITE of SITE.atlassian.net."),
                "email": _text("Whose token it is."),
                "apiToken": _secret("An API token of that account."),
                "jql": _text("Which issues; all, unless given."),
                "includeComments": _flag("Whether comments are polled.", default=True),
                "includeProjects": _flag("Whether projects are polled.", default=True),
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
                "instanceUrl": _text("https://NAME.my.salesforce.com.", pattern="^https?://[^/]+/?$"),
                "clientId": _text("Consumer key of the connected app."),
                "clientSecret": _secret("Consumer secret of the connected app."),
                "username": _text("Who signs in."),
                "password": _secret("The password, followed by the security token."),
                "apiVersion": _text("Of the REST API.", default="v62.0"),
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
            "username",
            "password",
        ),
        API_INGEST,
        SALESFORCE,
    ),
)
"""By type: postgres, mysql, bigquery, jira, salesforce."""
