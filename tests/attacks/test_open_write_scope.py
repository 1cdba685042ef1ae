"""A write scope that lets writers read other rows: the warnings about it, and the writers that are exempt."""

from __future__ import annotations

import json

import pytest
import requests
from typer.testing import CliRunner

from lakesync.cli.app import app
from lakesync.staging.shards import ShardMap
from tests.integration.gateway_support import DEADLINE, SECRET, SERVICE, delta

RULES = {
    "version": 1,
    "buckets": [{"name": "team", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
}


@pytest.fixture(params=["one store", "sharded"])
def gateway(request, serve):
    """The admin of a gateway, with one store and with shards."""
    shards = ShardMap({"todos": "second"}, "first") if request.param == "sharded" else None
    return serve(shards=shards).client().admin()


def command(gateway, *words, **variables):
    place = {"LAKESYNC_REMOTE_URL": gateway.url, "LAKESYNC_REMOTE_GATEWAY": gateway.gateway}
    return CliRunner().invoke(
        app, words, env={"LAKESYNC_CONFIG": "", "LAKESYNC_JWT_SECRET": SECRET, **place, **variables}
    )


@pytest.mark.parametrize(("scope", "warned"), [("any", True), ("visible", False), ("rules", False)])
def test_rules_apply_and_doctor_warn_of_an_open_write_scope(gateway, tmp_path, scope, warned):
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    assert gateway.call("POST", "/admin/settings/{gw}", json={"writeScope": scope}).ok
    applied = command(gateway, "rules", "apply", str(tmp_path / "rules.json"))
    assert applied.exit_code == 0, applied.output
    assert ("read it" in applied.output) == warned
    looked = command(gateway, "doctor", "--only", "write_scope", "--json", "--data", str(tmp_path / "data"))
    (found,) = map(json.loads, looked.stdout.splitlines())
    assert found["state"] == ("warning" if warned else "ok"), found
    assert (gateway.gateway in found["found"]) == warned


def test_connectors_are_exempt_from_the_write_scope(gateway):
    """A connector's rows may belong to any user, and it changes rows that no rule shows to it."""
    assert gateway.call("POST", "/admin/sync-rules/{gw}", json=RULES).ok
    place = f"{gateway.url}/internal/push/{gateway.gateway}"
    for number, team in enumerate(("red", "blue"), 1):
        deltas = [
            delta("r", {"team": team}, client="connector:crm", table=table, hlc=number << 16)
            for table in ("todos", "notes")
        ]
        body = {"clientId": "connector:crm", "deltas": deltas, "lastSeenHlc": "0"}
        headers = {"Authorization": f"Bearer {SERVICE}"}
        answer = requests.post(place, json=body, headers=headers, timeout=DEADLINE)
        assert answer.status_code == 200, answer.text
