"""Actions and their outcomes, connectors and the write scope in every staging store."""

from __future__ import annotations

import random

import msgspec
import pytest

from lakesync.model.types import StoredConnector
from lakesync.model.validation import MAX_ID_CHARS
from lakesync.staging.records import ActionEntry, ActionRecord
from tests.conformance.calls import read


def record(action_id="a1", key=None, *, client="c", touched=1000, **changes):
    whole = ActionRecord(client, action_id, key, attempts=1, claim="me", lease_ms=5000, touched_ms=touched)
    return msgspec.structs.replace(whole, **changes)


def entry(action_id="a1", **changes):
    whole = ActionEntry(0, 1000, "c", action_id, "jira", "create", attempt=1, code="OK", ms=12)
    return msgspec.structs.replace(whole, **changes)


def put(store, *records, gateway="g"):
    def work(commit):
        for each in records:
            commit.put_action(each)

    store.submit(gateway, work).result()


def test_an_action_is_found_by_its_id_or_its_key(place, store, book):
    done = record("a1", "k", outcome=b'{"x": "\xc3\xa9"}', lease_ms=0, attempts=3)
    put(store, done, record("a2"))
    for _ in range(2):
        assert read(store, lambda view: view.action("c", "a1")) == done
        assert read(store, lambda view: view.action("c", "other", "k")) == done
        assert read(store, lambda view: view.action("c", "a2", "k")) == record("a2")
        assert read(store, lambda view: view.action("c", "other")) is None
        assert read(store, lambda view: view.action("c", "other", "other")) is None
        store = place.reopen(store, book)


def test_an_action_belongs_to_one_client_of_one_gateway(store):
    store.ensure_gateway("h")
    put(store, record("a1", "k"))
    assert read(store, lambda view: view.action("d", "a1", "k")) is None
    assert read(store, lambda view: view.action("c", "a1", "k"), gateway="h") is None
    put(store, record("a1", "k", client="d", attempts=7))
    put(store, record("a1", "k", attempts=8), gateway="h")
    assert read(store, lambda view: view.action("c", "a1", "k")).attempts == 1


def test_a_record_replaces_records_with_the_same_id_or_key(store):
    put(store, record("a1", "k"), record("a2"), record("a3", "l"))
    put(store, record("a2", "k", attempts=2), record("a3", None, attempts=3))
    assert read(store, lambda view: view.action("c", "a1", "k")) == record("a2", "k", attempts=2)
    assert read(store, lambda view: view.action("c", "a1")) is None
    assert read(store, lambda view: view.action("c", "other", "l")) is None
    assert read(store, lambda view: view.action("c", "a3")).attempts == 3


def test_the_longest_client_id_and_key_are_stored(store):
    characters = random.Random(1).sample(range(0x10000, 0x110000), 2 * MAX_ID_CHARS)  # four bytes each, incompressible
    text = "".join(map(chr, characters))
    longest = record("f" * 64, text[:MAX_ID_CHARS], client=text[MAX_ID_CHARS:])
    put(store, longest)
    assert read(store, lambda view: view.action(longest.client_id, "other", longest.idempotency_key)) == longest


def test_a_failed_claim_of_an_action_stores_nothing(store):
    def failing(commit):
        commit.put_action(record())
        commit.note_action(entry(), 10)
        raise KeyError

    with pytest.raises(KeyError):
        store.submit("g", failing).result()
    assert read(store, lambda view: view.action("c", "a1")) is None
    assert read(store, lambda view: view.action_log(None, 10)) == []


def test_old_actions_are_deleted(store):
    put(store, *(record(f"a{n}", f"k{n}", touched=n) for n in range(10)))
    store.submit("g", lambda commit: commit.drop_actions(7)).result()
    kept = [n for n in range(10) if read(store, lambda view, n=n: view.action("c", f"a{n}", f"k{n}"))]
    assert kept == [7, 8, 9]


def test_the_log_of_attempts_is_bounded_and_ordered(place, store, book):
    store.ensure_gateway("h")
    for n in range(1, 8):
        assert store.submit("g", lambda commit, n=n: commit.note_action(entry(f"a{n}", ms=n), 5)).result() == n
    assert store.submit("h", lambda commit: commit.note_action(entry("b"), 5)).result() == 1
    store = place.reopen(store, book)
    assert [each.seq for each in read(store, lambda view: view.action_log(None, 100))] == [7, 6, 5, 4, 3]
    assert read(store, lambda view: view.action_log(6, 2)) == [entry("a5", seq=5, ms=5), entry("a4", seq=4, ms=4)]
    assert store.submit("g", lambda commit: commit.note_action(entry(), 5)).result() == 8


def test_connectors_are_kept_by_name(place, store, book):
    jira = StoredConnector("b-jira", "jira", {"domain": "x", "apiToken": {"sealed": "…"}})
    bank = StoredConnector("a-bank", "postgres", {"connectionString": "env:BANK"}, {"tables": []})
    for each in (jira, bank, msgspec.structs.replace(jira, settings={"domain": "y"})):
        store.submit("g", lambda commit, each=each: commit.put_connector(each)).result()
    store.ensure_gateway("h")
    store = place.reopen(store, book)
    expected = [bank, msgspec.structs.replace(jira, settings={"domain": "y"})]
    assert store.connectors("g") == expected == read(store, lambda view: view.connectors())
    assert store.connectors("h") == []
    assert store.submit("h", lambda commit: commit.drop_connector("a-bank")).result() is False
    assert store.submit("g", lambda commit: commit.drop_connector("a-bank")).result() is True
    assert store.submit("g", lambda commit: commit.drop_connector("a-bank")).result() is False
    assert store.connectors("g") == expected[1:]


def test_the_write_scope_is_part_of_the_configuration(place, store, book):
    assert store.gateway_config("g").write_scope is None
    store.submit("g", lambda commit: commit.put_write_scope("rules")).result()
    config = store.gateway_config("g")
    assert (config.write_scope, config.version) == ("rules", 1)
    store = place.reopen(store, book)
    assert store.gateway_config("g") == config
    store.submit("g", lambda commit: commit.put_write_scope("any")).result()
    assert store.gateway_config("g").write_scope == "any"
