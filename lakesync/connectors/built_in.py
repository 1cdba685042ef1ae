"""The built-in connector types: each with its settings as JSON Schema, its actions, and the *source* that polls read.

A connector connects a gateway, one app's stream of changes, with an external system, such as Jira.
`registry.installed_types` returns these types with those of installed packages, and `gateway.openapi_schemas` documents
them. `switches` names the setting that turns off the polling of an output table. Importing a source does not import its
database driver: a reader of `lakesync.connectors.sql` does so when it is created.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from lakesync.connectors.base import ConnectorType, object_schema
from lakesync.connectors.jira.actions import JIRA_ACTIONS, jira_actions
from lakesync.connectors.jira.source import JIRA_SWITCHES, JIRA_TABLES, JiraSource
from lakesync.connectors.salesforce.actions import SALESFORCE_ACTIONS, salesforce_actions
from lakesync.connectors.salesforce.source import SALESFORCE_SWITCHES, SALESFORCE_TABLES, SalesforceSource
from lakesync.connectors.sql import bigquery, mysql, postgres
from lakesync.connectors.sql.source import SqlSource
from lakesync.connectors.webhook import SEND, WebhookActions
from lakesync.model.action_handlers import SECRET, SERVER_FILE, ConnectorDescriptor

_IDENTIFIER = "^[a-zA-Z_][a-zA-Z0-9_]{0,63}$"
"""The form of a table's name, as `model.schema.is_identifier` checks it."""
_SITE = "^(https://)?[A-Za-z0-9-]{1,63}(\\.atlassian\\.net)?/?$"
"""A site of Jira Cloud: `SITE`, `SITE.atlassian.net` or its URL."""
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _text(description: str, **more: Any) -> dict[str, Any]:
    """Return the JSON schema of a setting that is text."""
    return {"type": "string", "minLength": 1, "description": description, **more}


def _secret(description: str) -> dict[str, Any]:
    """Return the JSON schema of a setting that is stored sealed or as a reference."""
    return _text(f"{description} Or a reference: env:NAME, file:PATH.", format="password", **{SECRET: True})


def _url(description: str) -> dict[str, Any]:
    """Return the JSON schema of a setting that is the URL of a server, without a path."""
    return _text(description, pattern="^https?://[^/]+/?$", format="uri")


def _flag(description: str, *, default: bool) -> dict[str, Any]:
    """Return the JSON schema of a setting that is true or false."""
    return {"type": "boolean", "description": description, "default": default}


def _count(description: str, **more: Any) -> dict[str, Any]:
    """Return the JSON schema of a setting that is a positive whole number."""
    return {"type": "integer", "minimum": 1, "description": description, **more}


def _settings(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    """Return the JSON schema of a connector's settings, see `object_schema`."""
    return {"$schema": _DIALECT, **object_schema(properties, *required, **more)}


_POLL_SETTINGS = {
    "intervalMs": _count("Milliseconds between the starts of two polls.", default=10_000),
    "chunkSize": _count("Deltas per push.", default=500, maximum=10_000),
    "memoryBudgetBytes": _count(
        "Bytes of rows that a poll keeps in memory. A long read is written to the lake in parts of four times as many."
    ),
    "maxCalls": _count("API calls that a poll may make, including retries. The next poll continues."),
}

_CENSUS_SETTINGS = {
    "censusIntervalMs": _count(
        "Milliseconds between two censuses, which list all rows to find deleted ones.", default=86_400_000
    ),
    "deletedShare": {
        "type": "number",
        "minimum": 0,
        "maximum": 1,
        "description": "Share of a table's rows that a census may delete. Above it, nothing is deleted and the poll"
        " reports an error.",
        "default": 0.2,
    },
}

_STRATEGY = object_schema(
    {
        "type": {"enum": ["cursor", "diff"]},
        "cursorColumn": _text("For `cursor`: a column whose value grows with every change."),
        "lookbackMs": {
            "type": "integer",
            "minimum": 0,
            "description": "For `cursor`: how far before the cursor each poll reads again, in milliseconds or, for"
            " numbers, in units of the column.",
        },
    },
    "type",
    description="How changes are found.",
    **{
        "if": {"properties": {"type": {"const": "cursor"}}},
        "then": {"required": ["cursorColumn"]},
    },
)

_DATABASE_INGEST = _settings(
    {
        "tables": {
            "type": "array",
            "minItems": 1,
            "description": "The queries to poll.",
            "items": object_schema(
                {
                    "table": {
                        "type": "string",
                        "pattern": _IDENTIFIER,
                        "description": "The synced table that receives the rows.",
                    },
                    "query": _text("SQL query for the row id and the columns."),
                    "rowIdColumn": _text("The column that identifies a row.", default="id"),
                    "strategy": _STRATEGY,
                },
                "table",
                "query",
                "strategy",
            ),
        },
        **_POLL_SETTINGS,
        **_CENSUS_SETTINGS,
    },
    "tables",
)

_API_INGEST = _settings({**_POLL_SETTINGS, **_CENSUS_SETTINGS})


def _database(kind: str, name: str, config: dict[str, Any]) -> ConnectorDescriptor:
    """Return the descriptor of a database connector."""
    return ConnectorDescriptor(
        kind, name, f"Polls tables of a {name} database by SQL.", "database", config, _DATABASE_INGEST
    )


def _connection(scheme: str) -> dict[str, Any]:
    """Return the settings of a database connector: its connection string."""
    return _settings({"connectionString": _secret(f"{scheme}://USER:PASSWORD@HOST/DATABASE.")}, "connectionString")


BUILT_IN = (
    ConnectorType(
        _database("postgres", "PostgreSQL", _connection("postgresql")), open_source=partial(SqlSource, postgres.reader)
    ),
    ConnectorType(_database("mysql", "MySQL", _connection("mysql")), open_source=partial(SqlSource, mysql.reader)),
    ConnectorType(
        _database(
            "bigquery",
            "BigQuery",
            _settings(
                {
                    "projectId": _text("The Google Cloud project."),
                    "dataset": _text("The dataset."),
                    "keyFilename": _text(
                        "File with a service account's key. Without it, the server's own identity, if allowed.",
                        format=SERVER_FILE,
                    ),
                    "location": _text("The dataset's location.", default="US"),
                    "endpoint": _url("URL of an emulator, which is called without credentials."),
                },
                "projectId",
                "dataset",
            ),
        ),
        open_source=partial(SqlSource, bigquery.reader),
    ),
    ConnectorType(
        ConnectorDescriptor(
            "jira",
            "Jira Cloud",
            "Polls issues, comments and projects of a Jira Cloud site.",
            "api",
            _settings(
                {
                    "domain": _text("SITE of SITE.atlassian.net.", pattern=_SITE),
                    "email": _text("E-mail address of the account."),
                    "apiToken": _secret("An API token of the account."),
                    "jql": _text("JQL filter of the issues to poll. Without it, all issues."),
                    "includeComments": _flag("Whether comments are polled.", default=True),
                    "includeProjects": _flag("Whether projects are polled.", default=True),
                    "baseUrl": _url("URL of a site that is not at atlassian.net."),
                },
                "domain",
                "email",
                "apiToken",
            ),
            _API_INGEST,
            JIRA_TABLES,
        ),
        actions=JIRA_ACTIONS,
        make_handler=jira_actions,
        open_source=JiraSource,
        switches=JIRA_SWITCHES,
    ),
    ConnectorType(
        ConnectorDescriptor(
            "salesforce",
            "Salesforce",
            "Polls accounts, contacts, opportunities and leads of a Salesforce organisation.",
            "api",
            _settings(
                {
                    "instanceUrl": _url("https://NAME.my.salesforce.com."),
                    "clientId": _text("Consumer key of the connected app."),
                    "clientSecret": _secret("Consumer secret of the connected app."),
                    "username": _text(
                        "User to sign in as. Without it, the app signs in by the client credentials flow."
                    ),
                    "password": _secret("The user's password, followed by the security token."),
                    "loginUrl": _url("URL of the login server, if not the one that isSandbox selects."),
                    "apiVersion": _text("Version of the REST API.", default="v62.0", pattern="^v[0-9]{1,3}\\.[0-9]$"),
                    "isSandbox": _flag(
                        "Whether the organisation is a sandbox, with its own login server.", default=False
                    ),
                    "soqlFilter": _text("SOQL condition that is added to every query."),
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
            _API_INGEST,
            SALESFORCE_TABLES,
        ),
        actions=SALESFORCE_ACTIONS,
        make_handler=salesforce_actions,
        open_source=SalesforceSource,
        switches=SALESFORCE_SWITCHES,
    ),
    ConnectorType(
        ConnectorDescriptor(
            "webhook",
            "Webhook",
            "Posts signed events of clients to a URL.",
            "api",
            _settings(
                {
                    "url": _text("URL that receives the events.", pattern="^https?://", format="uri"),
                    "secret": _secret("Key of the signature by which the receiver verifies an event."),
                },
                "url",
                "secret",
            ),
            {"not": {}, "description": "A webhook is not polled."},  # no value is valid
        ),
        actions=(SEND,),
        make_handler=WebhookActions,
    ),
)
"""The types postgres, mysql, bigquery, jira, salesforce and webhook."""
