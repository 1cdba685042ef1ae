"""`lakesync push` imports rows for a user, whose running app receives them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from lakesync.cli.app import app
from lakesync.cli.exit_codes import ExitCode
from lakesync.client import UnreachableError, open_client
from lakesync.client.transports.http import HttpTransport
from tests.integration.gateway_support import SECRET, delta, sign, until

TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}, {"name": "owner", "type": "string"}]}
OWN_ROWS = {
    "version": 1,
    "buckets": [{"name": "own", "tables": ["todos"], "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}],
}


@pytest.fixture
def gateway(served, monkeypatch, tmp_path):
    """A gateway whose rules show each user the rows of that user, by the `sub` of the token."""
    monkeypatch.chdir(tmp_path)
    client = served.client("dave")
    monkeypatch.setenv("LAKESYNC_JWT_SECRET", SECRET)
    monkeypatch.setenv("LAKESYNC_GATEWAY_URL", served.url)
    monkeypatch.setenv("LAKESYNC_REMOTE_GATEWAY", client.gateway)
    admin = client.admin()
    assert admin.call("POST", "/admin/schema/{gw}", json=TODOS).ok
    assert admin.call("POST", "/admin/sync-rules/{gw}", json=OWN_ROWS).ok
    assert admin.call("POST", "/admin/settings/{gw}", json={"writeScope": "rules"}).ok
    return client


@pytest.fixture
def opened(served, gateway, tmp_path):
    """Opens apps of the gateway with auto-sync; closes them at the end."""
    apps = []

    def start(name, claims=(), **options):
        apps.append(
            open_client(
                tmp_path / f"{name}.db",
                url=served.url,
                gateway=gateway.gateway,
                token=sign(name, gateway.gateway, **dict(claims)),
                schemas=[TODOS],
                **options,
            )
        )
        return apps[-1]

    yield start
    for each in apps:
        each.close()


def push(text, *words, user="dave"):
    return CliRunner().invoke(app, ["push", "-", "--client", user, "--json", *words], input=text)


def imported(text, *words, user="dave"):
    """The output of an import that succeeds."""
    result = push(text, *words, user=user)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def rows(count, owner="dave", title="imported"):
    made = ({"row_id": f"r{n}", "title": f"{title} {n}", "owner": owner} for n in range(count))
    return "".join(json.dumps(row) + "\n" for row in made)


def titles(client):
    return {row["row_id"]: row["title"] for row in client["todos"]}


def test_the_users_running_app_receives_rows_imported_for_the_user(opened):
    dave = opened("dave", auto_sync=True, realtime=True, interval=0.05)
    dave["todos"].insert({"title": "his own", "owner": "dave"}, row_id="own")
    until(lambda: dave.pending() == [] and dave.status.connected, "his own row to be pushed")
    assert imported(rows(3), "--table", "todos")["accepted"] == 3
    until(lambda: len(titles(dave)) == 4, "the imported rows")
    imported('{"row_id": "own", "title": "changed"}', "--table", "todos", "--update")
    until(lambda: titles(dave)["own"] == "changed", "the imported change of his own row")
    dave["todos"].update("r1", title="edited")
    until(lambda: dave.pending() == [], "his edit of an imported row to be pushed")
    expected = {"own": "changed", "r0": "imported 0", "r1": "edited", "r2": "imported 2"}
    assert titles(dave) == expected
    assert not any(check.differed for check in dave.verify().values())
    assert titles(dave) == expected


def test_a_repeated_interrupted_import_loses_and_duplicates_nothing(opened, monkeypatch):
    dave = opened("dave")
    dave.sync()
    file, send, sent = rows(2500), HttpTransport.push, []

    def interrupted(transport, message):
        sent.append(len(message.deltas))
        answer = send(transport, message)
        if len(sent) == 2:
            raise UnreachableError("the answer was lost")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(HttpTransport, "push", interrupted)
        result = push(file, "--table", "todos")
    assert result.exit_code == ExitCode.UNREACHABLE, result.output
    assert len(sent) == 2
    dave.sync()
    assert len(titles(dave)) == 2000
    for _ in range(2):
        assert imported(file, "--table", "todos")["accepted"] == 2500
        dave.sync()
        assert titles(dave) == {f"r{n}": f"imported {n}" for n in range(2500)}


def test_deltas_with_given_stamps_are_imported_once(opened, gateway):
    dave = opened("dave")
    file = "\n".join(json.dumps(delta(f"r{n}", {"title": "a", "owner": "dave"}, client="erin")) for n in range(3))
    logged = [imported(file)["accepted"], size(gateway)]
    dave.sync()
    assert len(titles(dave)) == 3
    dave["todos"].update("r0", title="edited since")
    dave.sync()
    before = size(gateway)
    assert [imported(file)["accepted"], size(gateway)] == [logged[0], before]
    dave.sync()
    assert titles(dave) == {"r0": "edited since", "r1": "a", "r2": "a"}


def size(client):
    """The number of deltas in the gateway's log."""
    return client.call("GET", "/sync/{gw}/metrics").json()["logSize"]


def test_every_device_of_a_user_receives_an_import(opened, gateway):
    rule = {"column": "owner", "op": "eq", "value": "jwt:user"}
    by_claim = {"version": 2, "buckets": [{"name": "own", "tables": ["todos"], "filters": [rule]}]}
    assert gateway.admin().call("POST", "/admin/sync-rules/{gw}", json=by_claim).ok
    devices = [opened(name, {"user": "dave"}) for name in ("phone", "laptop")]
    devices[0]["todos"].insert({"title": "of the phone", "owner": "dave"}, row_id="phone")
    for device in devices:
        device.sync()
    imported(rows(2), "--table", "todos", "--claim", "user=dave", user="phone")
    for device in devices:
        device.sync()
        assert titles(device) == {"phone": "of the phone", "r0": "imported 0", "r1": "imported 1"}


def test_rules_and_write_scope_are_those_of_the_user(gateway):
    result = push(rows(1, owner="erin"), "--table", "todos")
    assert result.exit_code == ExitCode.INVALID
    assert json.loads(result.stderr.splitlines()[0])["rejected"]["code"] == "FORBIDDEN"
    assert imported(rows(1, owner="erin"), "--table", "todos", user="erin")["accepted"] == 1
    result = push('{"row_id": "r0", "title": "taken"}', "--table", "todos", "--update")
    assert result.exit_code == ExitCode.INVALID


def test_an_import_id_is_valid_only_for_pushes_of_its_user(gateway, served):
    assert gateway.pull(clientId="import:dave").status_code == 403
    body = {"clientId": "import:erin", "deltas": [], "lastSeenHlc": "0"}
    assert gateway.call("POST", "/sync/{gw}/push", json=body).status_code == 403
    impostor = served.client("import:dave", gateway=gateway.gateway)
    answer = impostor.push(delta("r0", {"owner": "dave"}, client="import:dave"))
    assert (answer.status_code, answer.json()["code"]) == (401, "AUTH_ERROR")
    assert "import:dave" not in {each["clientId"] for each in listed(gateway)}


def listed(client):
    """The clients that the gateway lists."""
    return client.admin().call("GET", "/admin/metrics/{gw}").json()["clients"]
