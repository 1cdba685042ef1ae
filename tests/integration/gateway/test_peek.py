"""A peek shows what a client may see, and changes nothing for the client's app."""

from __future__ import annotations

import json
import random
from itertools import count

import pytest
from typer.testing import CliRunner

from lakesync.cli.app import app
from lakesync.staging.sharded import ShardedStore
from tests.integration.gateway_support import SECRET, delta, wall_ms

BEGAN = (wall_ms() - 60_000) << 16
TEAMS = ("red", "blue")
BY_TEAM = {
    "version": 1,
    "buckets": [{"name": "team", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
}
ALL = {"version": 2, "buckets": [{"name": "all", "tables": [], "filters": []}]}


def apply(found, deltas):
    """Apply a page like a client that fails on an INSERT of an existing row."""
    for each in deltas:
        key = (each["table"], each["rowId"])
        values = {cell["column"]: cell["value"] for cell in each["columns"]}
        if each["op"] == "INSERT":
            assert key not in found
            found[key] = values
        elif each["op"] == "DELETE":
            found.pop(key, None)
        elif key in found:
            found[key] |= values


def peek(client, since=None, limit=100):
    answer = client.call("GET", "/sync/{gw}/peek", params={"since": since, "limit": limit})
    assert answer.ok, answer.text
    return answer.json()


class Writers:
    """Random writes, the same for two gateways with one seed."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.stamps = count(BEGAN)
        self.rows = {}

    def some(self, client):
        made = []
        for _ in range(self.chance.randint(1, 4)):
            key = (self.chance.choice(("todos", "orders")), f"r{self.chance.randint(0, 9)}")
            before = self.rows.get(key)
            gone = before is not None and self.chance.random() < 0.2
            stamp = next(self.stamps)
            after = None if gone else {"team": self.chance.choice(TEAMS), "n": stamp - BEGAN}
            made.append(delta(key[1], after, before=before, client=client, table=key[0], hlc=stamp))
            self.rows[key] = after
        return made

    def visible(self, team):
        return {key: row for key, row in self.rows.items() if row is not None and row["team"] == team}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.deep) for seed in (2, 3))])
def test_peeked_pages_converge_to_the_visible_rows_during_writes(server, seed):
    writers = Writers(seed)
    bob, alice = server.client("bob", team="red"), None
    admin = bob.admin()
    assert admin.call("POST", "/admin/sync-rules/{gw}", json=BY_TEAM).ok
    assert admin.call("POST", "/admin/settings/{gw}", json={"writeScope": "any"}).ok
    alice = server.client("alice", gateway=bob.gateway, team="red")
    found, since = {}, None
    for _ in range(12):
        author = writers.chance.choice((alice, bob))
        assert author.push(*writers.some(author.client_id)).ok
        page = peek(alice, since, writers.chance.choice((1, 2, 3, 100)))
        apply(found, page["deltas"])
        since = page["cursor"]
    while page["hasMore"]:
        page = peek(alice, since, 2)
        apply(found, page["deltas"])
        since = page["cursor"]
    assert found == writers.visible("red")
    assert peek(alice, since) == {"deltas": [], "cursor": since, "hasMore": False}


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.deep)])
@pytest.mark.parametrize("headers", [{}, {"X-LakeSync-Client": "1"}], ids=["stock", "ours"])
def test_peeks_do_not_change_the_rows_that_the_app_receives(server, seed, headers):
    """One history in two gateways, one of which gets peeks between any two requests."""
    pages = {True: [], False: []}
    for looks in (True, False):
        writers = Writers(seed)
        bob = server.client("bob", team="red")
        admin = bob.admin()
        assert admin.call("POST", "/admin/sync-rules/{gw}", json=BY_TEAM).ok
        assert admin.call("POST", "/admin/settings/{gw}", json={"writeScope": "any"}).ok
        alice = server.client("alice", gateway=bob.gateway, team="red")
        since = "0"
        for step in range(14):
            author = writers.chance.choice((alice, bob))
            assert author.push(*writers.some(author.client_id)).ok
            limit = writers.chance.choice((1, 2, 100))
            if looks:
                look_around(server, alice, step)
            if writers.chance.random() < 0.7:
                query = {"since": since, "clientId": "alice", "limit": limit}
                page = alice.call("GET", "/sync/{gw}/pull", params=query, headers=headers).json()
                pages[looks].append((page["deltas"], page["hasMore"]))
                since = page["serverHlc"] if writers.chance.random() < 0.8 else since  # an answer may be lost
    assert pages[True] == pages[False]
    assert any(deltas for deltas, _ in pages[True])


def look_around(server, client, step):
    """Peek from the start, from now, and page by page; the gateway must store nothing of it."""
    before = known(server, client)
    first = peek(client, limit=1 + step % 3)
    peek(client, first["cursor"])
    peek(client, peek(client, "now")["cursor"])
    assert known(server, client) == before


def known(server, client):
    """Everything that the gateway stores and reports of its client, in every shard."""
    store = server.engine.store
    stores = store.stores.values() if isinstance(store, ShardedStore) else [store]
    records = [each.read(client.gateway, lambda view: view.client(client.client_id)).result() for each in stores]
    listed = client.admin().call("GET", "/admin/metrics/{gw}").json()["clients"]
    return records, [(each["clientId"], each["seenMs"], each["pulledMs"]) for each in listed]


def test_a_cursor_from_before_a_change_of_rules_is_rejected(server):
    alice = server.client("alice", team="red")
    admin = alice.admin()
    assert admin.call("POST", "/admin/sync-rules/{gw}", json=BY_TEAM).ok
    cursor = peek(alice)["cursor"]
    assert admin.call("POST", "/admin/sync-rules/{gw}", json=ALL).ok
    refused = alice.call("GET", "/sync/{gw}/peek", params={"since": cursor})
    assert (refused.status_code, refused.json()["code"]) == (409, "RESYNC_REQUIRED")


def test_a_cursor_above_the_newest_arrival_is_reported_as_one_of_another_store(served):
    refused = served.client("alice").call("GET", "/sync/{gw}/peek", params={"since": "0-999999999999999999"})
    assert (refused.status_code, refused.json()["code"]) == (409, "RESYNC_REQUIRED")
    assert "the rules or the store changed" in refused.json()["error"]


@pytest.mark.parametrize(
    "query", [{"since": "x"}, {"since": ""}, {"since": "1-2-3"}, {"limit": "0"}, {"limit": "10001"}]
)
def test_invalid_parameters_are_rejected(served, query):
    refused = served.client("alice").call("GET", "/sync/{gw}/peek", params=query)
    assert (refused.status_code, refused.json()["code"]) == (400, "VALIDATION_ERROR")


def test_a_client_cannot_peek_for_another(served):
    refused = served.client("alice").call("GET", "/sync/{gw}/peek", params={"clientId": "bob"})
    assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")


def test_lakesync_pull_peeks_unless_it_replaces_the_app(served, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    alice = served.client("alice")
    for name, value in {"JWT_SECRET": SECRET, "GATEWAY_URL": served.url, "REMOTE_GATEWAY": alice.gateway}.items():
        monkeypatch.setenv(f"LAKESYNC_{name}", value)
    bob = served.client("bob", gateway=alice.gateway)
    assert bob.push(delta("t1", {"n": 1}, client="bob"), delta("t2", {"n": 2}, client="bob")).ok
    assert alice.push(delta("own", {"n": 3}, client="alice")).ok
    before = known(served, alice)
    looked = command("pull", "--client", "alice", "--json")
    assert [json.loads(line)["rowId"] for line in looked.stdout.splitlines()] == ["t1", "t2", "own"]
    cursor = looked.stderr.split()[-1]
    assert command("pull", "--client", "alice", "--since", cursor).stdout == ""
    assert command("tail", "--client", "alice", "--from-start", "--limit", "3").stdout.count("INSERT") == 3
    assert known(served, alice) == before
    pulled = command("pull", "--client", "alice", "--as-app", "--json")
    assert {json.loads(line)["rowId"] for line in pulled.stdout.splitlines()} >= {"t1", "t2"}
    assert known(served, alice) != before
    wrong = command("pull", "--client", "alice", "--as-app", "--since", cursor)
    assert "must be the app's cursor" in wrong.stderr


def test_the_limit_of_a_pull_does_not_count_rows_of_other_tables(served, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    alice = served.client("alice")
    for name, value in {"JWT_SECRET": SECRET, "GATEWAY_URL": served.url, "REMOTE_GATEWAY": alice.gateway}.items():
        monkeypatch.setenv(f"LAKESYNC_{name}", value)
    bob = served.client("bob", gateway=alice.gateway)
    assert bob.push(delta("t1", {"n": 1}, client="bob"), delta("o1", {"n": 2}, client="bob", table="orders")).ok
    for options in ([], ["--as-app"]):
        pulled = command("pull", "--client", "alice", "--table", "orders", "--limit", "1", "--json", *options)
        assert json.loads(pulled.stdout)["rowId"] == "o1"


def command(*words):
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0 or "--since" in words, result.output
    return result
