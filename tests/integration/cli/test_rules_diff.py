"""The preview of sync rules lists every difference for the gateway's clients, or says what it leaves out."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from lakesync.cli.app import app
from lakesync.cli.exit_codes import ExitCode
from tests.integration.gateway_support import delta, sign

OWN = {"name": "own", "tables": [], "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}
TEAM = {"name": "team", "tables": ["todos"], "filters": [{"column": "team", "op": "in", "value": "jwt:team"}]}


@pytest.fixture
def diff(served, tmp_path):
    """Compares the rules of a gateway with others."""

    def run(gateway, *buckets, options=()):
        file = tmp_path / "rules.json"
        file.write_text(json.dumps({"version": 1, "buckets": buckets}))
        variables = {
            "LAKESYNC_CONFIG": "",
            "LAKESYNC_TOKEN": sign("ops", gateway, role="admin"),
            "LAKESYNC_REMOTE_URL": served.url,
            "LAKESYNC_DATA_DIR": str(tmp_path),
        }
        result = CliRunner().invoke(app, ["rules", "diff", str(file), "--list", "--json", *options], env=variables)
        return result, [json.loads(line) for line in result.stdout.splitlines()]

    return run


def test_t3_rows_of_tables_without_a_schema_are_compared_too(served, diff):
    ann = served.client("ann")
    stamp = {"client": "ann"}
    assert ann.push(delta("n1", {"owner": "ann"}, table="notes", **stamp)).ok
    assert ann.push(delta("o1", {"owner": "bob"}, table="orders", **stamp)).ok
    result, found = diff(ann.gateway, OWN, options=("--as", "sub=ann"))
    assert result.exit_code == 0
    assert [(each["table"], each["removedIds"]) for each in found] == [("orders", ["o1"])]


@pytest.mark.parametrize("active", [[], [TEAM]])
def test_t3_claims_that_the_gateway_does_not_know_are_reported(served, diff, active):
    ann = served.client("ann", team="red")
    admin = ann.admin()
    assert admin.call("POST", "/admin/settings/{gw}", json={"writeScope": "any"}).ok
    assert admin.call("POST", "/admin/sync-rules/{gw}", json={"version": 1, "buckets": active}).ok
    assert ann.push(delta("t1", {"team": "red"}, client="ann")).ok
    assert ann.pull().ok
    result, _ = diff(ann.gateway, TEAM)
    if active:
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    else:
        assert result.exit_code == ExitCode.PARTIAL
        assert "does not know its clients' team" in json.loads(result.stderr)["error"]
    result, found = diff(ann.gateway, TEAM, options=("--as", "sub=ann,team=red"))
    assert (result.exit_code, found) == (0, [])


def test_t3_more_than_a_hundred_clients_are_compared(served, diff):
    gateway = served.client("ann").gateway
    names = [f"client-{number}" for number in range(101)]
    for name in names:
        assert served.client(name, gateway).push(delta(name, {"owner": name}, client=name)).ok
    result, found = diff(gateway, OWN)
    assert result.exit_code == 0
    assert {each["as"]: each["after"] for each in found} == dict.fromkeys(names, 1)
