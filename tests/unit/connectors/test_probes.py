"""The probes of connectors against local servers: each fault is reported in words, with its exit code."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from lakesync.cli.remote.connectors import probe_connector
from lakesync.config import load
from lakesync.connectors import Connectors
from lakesync.connectors.base import Table, describe_clock_skew, probes_of
from lakesync.connectors.jira.api import site_name
from lakesync.engine import Engine
from lakesync.model.errors import ConfigurationError, LakeSyncError, NotFoundError
from lakesync.staging import open_store
from lakesync.testing.servers import Response
from tests.integration.connectors.jira_support import desk
from tests.integration.connectors.salesforce_support import company

KEY = "the key that seals these tests' secrets"


def asked(source):
    """Each probe's answer, or the code of its error."""
    results = {}
    for probe in probes_of(source):
        try:
            results[probe.name] = probe.run()
        except LakeSyncError as error:
            results[probe.name] = error.code
    return results


def test_jira_probes_check_account_clock_permission_and_a_page():
    with desk() as made:
        made.site.add_project("SUP")
        made.site.add_issue("SUP", "one")
        with made.source() as source:
            results = asked(source)
            assert results["jira_issues"] == "1 issues on the first page, the first is SUP-1"
            assert "behind this machine's" in results["clock"]
            assert results["permissions"] == "the account can browse projects"
        made.site.projects["SUP"].hidden = True
        with made.source(jql="nonsense ===") as source:
            assert asked(source) | {"clock": ""} == {
                "credentials": "signed in as sync@example.com",
                "clock": "",
                "permissions": "FORBIDDEN",
                "jira_issues": "CONFIGURATION_ERROR",
            }


def test_salesforce_probes_do_not_start_a_load():
    with company() as firm:
        firm.bulk_rows = 1
        for number in range(3):
            firm.org.add("Account", Name=f"a{number}")
        with firm.source() as source:
            results = asked(source)
        assert results["credentials"].startswith("signed in, ")
        assert "behind this machine's" in results["clock"]
        assert results["sf_accounts"].startswith("readable, the first is")
        assert results["sf_leads"] == "readable, but empty: check what is shared with the user"
        assert not any("jobs" in path for _, path, _ in firm.served.calls)
        with firm.source(clientSecret="wrong") as source:
            assert asked(source)["credentials"] == "AUTH_ERROR"


def test_a_source_without_probes_is_checked_by_its_first_page():
    class Plain:
        def __init__(self, tables):
            self.tables = tables

        def changes(self, table, cursor):
            assert (table, cursor) == ("notes", None)
            return iter(())

    assert asked(Plain((Table("notes"),))) == {"notes": "0 rows on the first page"}


@pytest.mark.parametrize(
    ("theirs", "says"), [(1_000, "agrees"), (100_000, "100 s ahead of this"), (-100_000, "100 s behind this")]
)
def test_clock_skew_is_reported(theirs, says):
    assert says in describe_clock_skew(theirs, "the site's", lambda: 0.0)


def test_a_wrong_jira_address_is_reported():
    with desk() as made, made.source() as source:
        made.api.failures.append(Response(404, "<html>not here</html>"))
        with pytest.raises(ConfigurationError, match=r"there is no Jira at this address .* check domain, or baseUrl"):
            next(probe for probe in probes_of(source) if probe.name == "credentials").run()


@pytest.mark.parametrize("domain", ["acme", "acme.atlassian.net", "https://acme.atlassian.net/"])
def test_a_jira_site_may_be_given_as_a_url(domain):
    assert site_name(domain) == "acme"


@pytest.mark.parametrize(
    ("more", "code", "failed"),
    [({}, 0, []), ({"apiToken": "wrong"}, 4, ["credentials"]), ({"baseUrl": "http://127.0.0.1:9"}, 3, ["credentials"])],
)
def test_the_command_reports_each_probe_and_an_exit_code(tmp_path, monkeypatch, more, code, failed):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    monkeypatch.setenv("LAKESYNC_SECRET_KEY", KEY)
    monkeypatch.setenv("LAKESYNC_CONNECTORS_ALLOWED_HOSTS", '["127.0.0.1"]')
    config = load({"data_dir": tmp_path})
    with desk() as made:
        made.site.add_project("SUP")
        made.site.add_issue("SUP", "one")
        settings = dict(made.config(**more).settings)
        engine = Engine(
            open_store(config.staging.url, made.clock), made.clock, connectors=Connectors.configured(config)
        )
        engine.open()
        engine.gateway("shop").register_connector({"name": "desk", "type": "jira", "jira": settings, "ingest": {}})
        engine.close()
        app = typer.Typer()
        app.command()(probe_connector)
        done = CliRunner().invoke(app, ["desk", "--gateway", "shop", "--data", str(tmp_path), "--json"])
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.exit_code == code, done.output
        assert [line["check"] for line in lines if not line["ok"]] == failed
        assert settings["apiToken"] not in done.output
        unknown = CliRunner().invoke(app, ["desk", "--gateway", "another", "--data", str(tmp_path)])
        assert isinstance(unknown.exception, NotFoundError)
        assert "`lakesync connectors list` lists them" in str(unknown.exception)
