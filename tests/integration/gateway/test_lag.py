"""The lag of a client, in every interface that shows it."""

from __future__ import annotations

import json
import random
import re

import pytest
import requests
from typer.testing import CliRunner

from gateway import client_lag
from lakesync.cli.app import app
from lakesync.client import open_client
from lakesync.engine.inspection import lag
from tests.integration.gateway_support import DEADLINE, SECRET, delta, sign, until

BY_TEAM = {
    "version": 1,
    "buckets": [{"name": "team", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
}
METRIC = r'^lakesync_{}{{gateway="{}"}} (\S+)$'


class World:
    """A gateway with rules, and its clients."""

    def __init__(self, server, gateway=None):
        self.server = server
        first = server.client("admin", gateway=gateway)
        self.gateway, self.admin = first.gateway, first.admin()
        assert self.admin.call("POST", "/admin/sync-rules/{gw}", json=BY_TEAM).ok
        assert self.admin.call("POST", "/admin/settings/{gw}", json={"writeScope": "any"}).ok
        self.cursors = {}

    def client(self, name, team="red"):
        return self.server.client(name, gateway=self.gateway, team=team)

    def push(self, name, row, values, table="todos", before=None, team="red", cursor="0"):
        made = delta(row, values, before=before, client=name, table=table)
        answer = self.client(name, team).push(made, cursor=cursor)
        assert answer.ok, answer.text

    def pull(self, name, team="red", limit=1000):
        page = self.client(name, team).pull(self.cursors.get(name, "0"), limit=limit).json()
        self.cursors[name] = page["serverHlc"]
        return page["deltas"]

    def clients(self, **query):
        """The line of `/admin/metrics` for each client."""
        statuses = self.admin.call("GET", "/admin/metrics/{gw}", params=query).json()["clients"]
        return {each["clientId"]: each for each in statuses}

    def unsent(self, name):
        return self.clients()[name]["unsentSinceMs"]

    def explain(self, name, row, table="todos"):
        asked = {"clientId": name, "table": table, "rowId": row}
        return self.admin.call("GET", "/admin/explain/{gw}", params=asked).json()

    def changed(self, row, table="todos"):
        """The time of a row's last change."""
        return self.explain("nobody", row, table)["row"]["changedMs"]

    def metric(self, name):
        text = requests.get(f"{self.server.url}/metrics", timeout=DEADLINE).text
        found = re.search(METRIC.format(name, self.gateway), text, re.MULTILINE)
        return None if found is None else float(found[1])

    def command(self):
        """The line of `lakesync clients` for each client."""
        environment = {"LAKESYNC_JWT_SECRET": SECRET, "LAKESYNC_DATA_DIR": "absent"}
        words = ["clients", "--url", self.server.url, "--gateway", self.gateway, "--json"]
        result = CliRunner().invoke(app, words, env=environment)
        assert result.exit_code == 0, result.output
        return {each["clientId"]: each for each in map(json.loads, result.stdout.splitlines())}


@pytest.fixture
def world(server):
    return World(server)


@pytest.fixture
def alone(served):
    """A world over SQLite, for tests that do not depend on the store."""
    return World(served)


def test_all_pages_and_commands_report_the_same_lag(world):
    for name, team in {"reader": "red", "writer": "red", "blind": "blue", "idle": "green"}.items():
        world.pull(name, team)
    world.push("mute", "m1", {"team": "blue"}, team="blue")
    world.push("writer", "w1", {"team": "red"})
    world.push("writer", "w2", {"team": "red"}, table="orders")
    world.push("blind", "b1", {"team": "blue"}, team="blue")
    since = {
        "reader": world.changed("w1"),
        "writer": None,
        "blind": world.changed("m1"),
        "idle": None,
        "mute": None,
    }
    statuses, commanded = world.clients(), world.command()
    assert {name: each["unsentSinceMs"] for name, each in statuses.items()} == since
    assert {name: each["unsentSinceMs"] for name, each in commanded.items()} == since
    assert {name: world.explain(name, "w1")["standing"]["unsentSinceMs"] for name in since} == since
    assert world.metric("clients") == 5
    assert world.metric("clients_behind") == 2
    assert world.metric("oldest_unsent_timestamp_seconds") == min(filter(None, since.values())) / 1000
    assert (statuses["writer"]["behindMs"], statuses["idle"]["behindMs"]) == (0, 0)
    assert (statuses["mute"]["behindMs"], commanded["mute"]["lagSeconds"]) == (None, None), "it never pulled"
    assert statuses["idle"]["offlineSinceMs"] == statuses["idle"]["seenMs"] == statuses["idle"]["pulledMs"]
    for name in ("reader", "blind"):
        assert statuses[name]["behindMs"] > 0
        assert commanded[name]["lagSeconds"] > 0
    assert [world.explain(name, "w1")["verdict"] for name in ("reader", "writer", "blind")] == [
        "waiting",
        "delivered",
        "hidden",
    ]


def test_the_lag_ends_when_the_change_is_sent(world):
    world.pull("reader")
    world.push("writer", "w1", {"team": "red"})
    world.push("writer", "w2", {"team": "red"}, table="orders")
    assert world.unsent("reader") == world.changed("w1")
    first = world.pull("reader", limit=1)
    (left,) = {("w1", "todos"), ("w2", "orders")} - {(each["rowId"], each["table"]) for each in first}
    assert world.unsent("reader") == world.changed(*left)
    assert world.clients()["reader"]["hasMore"]
    world.pull("reader")
    status = world.clients()["reader"]
    assert (status["unsentSinceMs"], status["behindMs"]) == (None, 0)
    assert (world.metric("clients_behind"), world.metric("oldest_unsent_timestamp_seconds")) == (0, None)


def test_a_row_that_becomes_hidden_counts_until_its_deletion_is_sent(world):
    world.push("writer", "w1", {"team": "red"})
    world.pull("reader")
    world.push("writer", "w1", {"team": "blue"}, before={"team": "red"})
    assert world.unsent("reader") == world.changed("w1")
    assert world.explain("reader", "w1")["nextPull"] == ["DELETE"]
    world.push("writer", "w1", {"team": "blue", "n": 1}, before={"team": "blue"})
    assert world.unsent("reader") < world.changed("w1"), "it does not count later changes"


def test_the_lag_of_a_repeatedly_changed_row_counts_from_its_first_change(world):
    world.push("writer", "w1", {"team": "red", "n": 0})
    world.pull("reader")
    found = []
    for number in range(3):
        world.push("writer", "w1", {"team": "red", "n": number + 1}, before={"team": "red", "n": number})
        found.append((world.unsent("reader"), world.changed("w1")))
    (first, changed), *others = found
    assert first == changed
    assert all(since == first for since, _ in others)
    world.push("writer", "w1", None, before={"team": "red"})
    assert world.unsent("reader") == first, "it was not sent any of these changes"


def test_a_reverted_change_ends_the_lag(world):
    world.pull("reader")
    world.push("writer", "w1", {"team": "red"})
    assert world.unsent("reader") is not None
    world.push("writer", "w1", {"team": "blue"}, before={"team": "red"})
    assert world.unsent("reader") is None


def test_a_client_that_repeats_its_cursor_is_behind(world):
    world.pull("reader")
    world.push("writer", "w1", {"team": "red"})
    before = world.cursors["reader"]
    for _ in range(3):
        world.cursors["reader"] = before
        world.pull("reader")
    status = world.clients()["reader"]
    assert (status["repeats"], status["unsentSinceMs"]) == (2, world.changed("w1"))
    assert world.explain("reader", "w1")["verdict"] == "waiting"


def test_a_connected_client_is_behind_only_after_it_disconnects(world, tmp_path):
    def status():
        return world.clients()["dora"]

    options = {"url": world.server.url, "gateway": world.gateway, "realtime": True, "auto_sync": True}
    schema = {"table": "todos", "columns": [{"name": "team", "type": "string"}]}
    token = sign("dora", world.gateway, team="red")
    with open_client(tmp_path / "dora.db", token=token, schemas=[schema], **options) as dora:
        until(lambda: "dora" in world.clients() and status()["connected"], "the WebSocket")
        world.push("writer", "w1", {"team": "red"})
        until(lambda: "w1" in {row["row_id"] for row in dora["todos"]}, "the broadcast")
        until(lambda: status()["behindMs"] == 0, "the gateway to know")
        assert status()["offlineSinceMs"] is None
    until(lambda: not status()["connected"], "the end of the WebSocket")
    left = status()
    assert (left["behindMs"], left["offlineSinceMs"]) == (0, left["seenMs"])
    assert left["seenMs"] > left["pulledMs"]
    world.push("writer", "w2", {"team": "blue"})
    assert status()["behindMs"] == 0
    world.push("writer", "w3", {"team": "red"})
    assert status()["unsentSinceMs"] == world.changed("w3")


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(3, 6))])
def test_a_client_is_behind_exactly_if_its_next_pull_returns_deltas(world, seed):
    chance = random.Random(seed)
    rows, deleted = {}, set()
    world.pull("alice")
    for number in range(40):
        name = chance.choice(("alice", "bob"))
        key = (f"r{chance.randint(0, 5)}", chance.choice(("todos", "orders")))
        before = rows.get(key)
        after = None if before and chance.random() < 0.2 else {"team": chance.choice(("red", "blue")), "n": number}
        rows[key] = after
        (deleted.add if after is None and name == "alice" else deleted.discard)(key)
        world.push(name, key[0], after, key[1], before, cursor=world.cursors.get(name, "0"))
        if chance.random() < 0.5:
            since = world.unsent("alice")
            brought = world.pull("alice", limit=chance.choice((1, 2, 1000)))
            foreign = [each for each in brought if (each["op"], _key(each) in deleted) != ("DELETE", True)]
            more = world.clients()["alice"]["hasMore"]
            assert foreign or more if since is not None else not foreign, brought


def _key(delta):
    return delta["rowId"], delta["table"]


def test_every_process_of_a_gateway_knows_the_rows_that_the_others_sent(serve, own_database):
    one, other = (World(serve(staging=own_database), "both") for _ in range(2))
    other.cursors = one.cursors
    for server in (one, other):
        server.pull("reader")
    for number in range(6):
        one.push("writer", f"w{number}", {"team": "red"})
        assert one.unsent("reader") == other.unsent("reader") == one.changed(f"w{number}")
        (one if number % 2 else other).pull("reader")
        assert one.unsent("reader") is other.unsent("reader") is None


def test_a_process_without_pulls_of_a_client_uses_its_stored_record(serve, own_database):
    before, after = (World(serve(staging=own_database), "both") for _ in range(2))
    before.push("writer", "w0", {"team": "red"})
    before.pull("reader")
    before.push("writer", "w1", {"team": "red"})
    after.push("reader", "own", {"team": "red"})
    status = after.clients()["reader"]
    assert (status["pulledMs"], status["unsentSinceMs"]) == (None, before.changed("w1"))


def test_one_request_checks_a_bounded_number_of_clients(alone, monkeypatch):
    monkeypatch.setattr(client_lag, "MAX_CHECKS", 2)
    names = [f"c{number}" for number in range(5)]
    for name in names:
        alone.pull(name)
    alone.push("writer", "w1", {"team": "red"})
    since = alone.changed("w1")
    answers = [alone.clients() for _ in range(3)]
    assert [sum(statuses[name]["unsentSinceMs"] == since for name in names) for statuses in answers] == [2, 4, 5]
    alone.push("writer", "w2", {"team": "red"})
    statuses = alone.clients()
    assert [statuses[name]["unsentSinceMs"] for name in names] == [since] * 5, "the earlier answers remain valid"


def test_one_check_reads_a_bounded_part_of_the_feed_and_the_next_continues(alone, monkeypatch):
    monkeypatch.setattr(lag, "_MAX_READS", 1)
    monkeypatch.setattr(lag, "_MAX_ROWS", 1)
    alone.pull("reader")
    for number in range(40):
        alone.push("reader", f"own{number}", {"team": "red"})
    alone.push("writer", "w1", {"team": "red"})
    found = [alone.unsent("reader") for _ in range(6)]
    assert found[0] is None
    assert found[-1] == alone.changed("w1")
