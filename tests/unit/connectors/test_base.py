"""The common part of connector types: helpers, and the origins of their tables."""

from functools import partial

import pytest

from lakesync.connectors.base import ConnectorConfig, value_at
from lakesync.connectors.jira.source import JiraSource
from lakesync.connectors.salesforce.source import SalesforceSource
from lakesync.connectors.sql import mysql, postgres
from lakesync.connectors.sql.source import SqlSource
from lakesync.model.errors import ConfigurationError


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"a": {"b": 1}}, 1),
        ({"a": {"c": 1}}, None),
        ({}, None),
        ({"a": None}, None),
        ({"a": "x"}, None),
        ({"a": [1]}, None),
    ],
)
def test_a_path_without_a_value_returns_none(values, found):
    assert value_at(values, ["a", "b"]) == found


def _origins(source):
    return {table.origin for table in source.tables}


def _config(kind, settings, *tables):
    return ConnectorConfig("gw", "desk", kind, settings, {"tables": [*tables]})


def test_a_tables_origin_names_the_site_or_organisation():
    account = {"email": "a@b.c", "apiToken": "secret"}
    named = _origins(JiraSource(_config("jira", {**account, "domain": "acme"})))
    assert named == _origins(JiraSource(_config("jira", {**account, "domain": "https://acme.atlassian.net/"})))
    assert named == {"https://acme.atlassian.net"}
    settings = {"instanceUrl": "https://acme.my.salesforce.com/", "clientId": "i", "clientSecret": "secret"}
    assert _origins(SalesforceSource(_config("salesforce", settings))) == {"https://acme.my.salesforce.com"}


@pytest.mark.parametrize(
    "address", ["postgres://me:secret@db.example/crm", "mysql://me:secret@db.example/crm?ssl-mode=REQUIRED"]
)
def test_a_connection_string_that_mysqls_reader_cannot_follow_is_rejected(address):
    with pytest.raises(ConfigurationError, match="must be mysql://USER:PASSWORD@HOST:PORT/DATABASE, without options"):
        SqlSource(mysql.reader, _config("mysql", {"connectionString": address}))


@pytest.mark.parametrize(
    ("kind", "make"), [("postgresql", partial(SqlSource, postgres.reader)), ("mysql", partial(SqlSource, mysql.reader))]
)
def test_a_tables_origin_names_database_and_cursor_column_without_credentials(kind, make):
    by_cursor = {"table": "a", "query": "SELECT 1", "strategy": {"type": "cursor", "cursorColumn": "at"}}
    whole = {"table": "b", "query": "SELECT 1", "strategy": {"type": "diff"}}
    config = _config(kind, {"connectionString": f"{kind}://me:secret@db.example:99/crm"}, by_cursor, whole)
    assert _origins(make(config)) == {"db.example:99/crm at", "db.example:99/crm "}
