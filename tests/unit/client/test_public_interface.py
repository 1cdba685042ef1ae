"""The public interface of the client, except rows: names, types, arguments, events."""

from __future__ import annotations

import inspect
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate

import pytest
import requests

import lakesync
import lakesync.client
from lakesync.client import AsyncClient, HttpTransport, create_client, open_async, open_client
from lakesync.model.errors import ConfigurationError

NOTES = {"table": "notes", "columns": [{"name": "text", "type": "string"}]}
SCHEMAS = [NOTES]
SOMEWHERE = {"url": "http://127.0.0.1:9", "gatewayId": "g"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"backend": "idb"}, "backend is 'idb', it must be file or memory"),
        ({"gateway": {"url": "http://127.0.0.1:9"}}, "no gateway was named: pass url and gateway"),
        (
            {"gateway": {**SOMEWHERE, "gateway_id": "g"}},
            "gateway has unknown keys gateway_id: it takes url, gatewayId and token",
        ),
    ],
)
def test_create_client_rejects_wrong_options(options, why):
    with pytest.raises(ConfigurationError, match=why):
        create_client(**{"name": "app", "client_id": "me", "schemas": SCHEMAS, "gateway": SOMEWHERE, **options})


def test_a_timeout_of_zero_is_rejected(tmp_path):
    with pytest.raises(ConfigurationError, match="timeout is 0, it must be greater than 0"):
        lakesync.open(tmp_path / "app.db", url="http://127.0.0.1:9", gateway="g", timeout=0)


def test_a_client_contains_its_tables_by_name(opened):
    alice = opened()
    assert (list(alice), "notes" in alice, "other" in alice) == (["notes"], True, False)


def test_a_removed_listener_is_not_called(opened):
    alice, bob = opened(), opened("bob")
    changes = []
    alice.on("onChange", lambda count, tables: changes.append((count, tables)))
    listener = changes.append
    alice.on("onSyncComplete", listener)
    alice.coordinator.off("onSyncComplete", listener)
    alice.coordinator.off("onSyncComplete", listener)  # as in the reference, this is no error
    bob["notes"].insert(text="hello")
    bob.sync()
    alice.sync()
    assert changes == [(1, {"notes"})]


def test_every_public_name_can_be_imported_and_is_listed():
    assert set(lakesync.client.__all__) <= set(dir(lakesync.client))
    for name in lakesync.client.__all__:
        assert getattr(lakesync.client, name) is not None


def test_open_async_has_the_signature_of_open():
    signature = inspect.signature(open_async)
    assert signature.parameters == inspect.signature(open_client).parameters
    assert signature.return_annotation == AsyncClient.__name__


def test_a_watch_ends_when_it_or_its_client_is_closed(opened):
    alice = opened()
    watch, other = (alice.watch("SELECT text FROM notes") for _ in range(2))
    begun = threading.Event()

    def listen():
        for rows in watch:
            assert rows == []
            begun.set()

    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(listen)
        assert begun.wait(60)
        watch.close()
        ended.result(60)
    alice.close()
    assert other.next() is None
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        other._db.execute("SELECT 1")


def test_the_repr_of_an_edit_is_short(opened):
    alice = opened()
    alice["notes"].insert({"text": "é" * 1_000_000}, row_id="long")
    (edit,) = alice.pending()
    assert repr(edit).startswith("<Edit 1 waiting: INSERT notes/long {'text': 'ééé")
    assert len(repr(edit)) < 200


def test_the_outbox_lists_and_filters_edits(opened):
    alice = opened()
    for row_id in ("a", "b"):
        alice["notes"].insert({"text": row_id}, row_id=row_id)
    queue = alice.coordinator.queue
    assert queue.depth() == alice.coordinator.queue_depth() == 2
    assert [edit.delta.row_id for edit in queue.peek(1)] == ["a"]
    (second,) = [edit for edit in queue.all() if edit.delta.row_id == "b"]
    queue.drop(second.number)
    assert [row["row_id"] for row in alice["notes"]] == ["a"]
    alice.sync()
    assert (queue.depth(), queue.refused(), queue.all()) == (0, 0, [])


@pytest.mark.parametrize(("late", "offset"), [(0.0, -1.0), (0.98, 0.0), (1.9, 0.9)])
def test_the_clock_offset_is_accurate_to_a_second(late, offset):
    """A server's date is in whole seconds, and may have been computed a second ago."""
    transport = HttpTransport("http://127.0.0.1:9", "g")
    answer = requests.Response()
    answer.headers["Date"] = formatdate(1_000, usegmt=True)
    transport._measure_clock(answer, 1_000 + late)
    assert str(transport.clock_offset) == str(offset)
    transport.close()
