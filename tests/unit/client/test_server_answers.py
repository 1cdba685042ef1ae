"""Invalid names and answers of a server: they are rejected, and no client loops on them."""

from __future__ import annotations

import queue
import threading
import time

import pytest
from msgspec.structs import replace

from lakesync.client import LocalTransport, SchemaSynchroniser, UnreachableError
from lakesync.client.core.messages import RetryPolicy
from lakesync.client.transports.base import Message, ServerSchema
from lakesync.model.errors import SchemaError
from lakesync.model.schema import Column, TableSchema, parse_schema
from lakesync.model.types import SyncResponse

NOTES = {"table": "notes", "columns": [{"name": "title", "type": "string"}]}
SCHEMAS = [NOTES]


class SchemaTransport(LocalTransport):
    """A gateway with this schema for every table."""

    def __init__(self, gateway, schema):
        super().__init__(gateway)
        self._schema = schema

    def schema(self, _):
        return ServerSchema(self._schema, 1)


def table(*columns, name="notes"):
    return TableSchema(name, tuple(Column(column, "string") for column in columns))


@pytest.mark.parametrize("name", ["row_id", "Row_Id", "_lakesync_x"])
def test_built_in_column_names_are_reserved(gateway, name):
    with pytest.raises(SchemaError, match=f"column '{name}' of table 'notes'"):
        gateway.register_schema({**NOTES, "columns": [*NOTES["columns"], {"name": name, "type": "string"}]})


@pytest.mark.parametrize("name", ["_lakesync_edits", "sqlite_master", "SQLITE_x"])
def test_table_names_of_sqlite_and_lakesync_are_reserved(gateway, name):
    with pytest.raises(SchemaError, match=f"table '{name}' is reserved for tables of SQLite or LakeSync"):
        gateway.register_schema({**NOTES, "table": name})


def test_a_registered_row_id_column_is_ignored(opened, gateway):
    gateway.register_schema(table("title", "row_id", "more"))
    alice = opened()
    alice["notes"].insert(title="a")
    alice.sync()
    alice["notes"].insert(title="b", more="c")
    alice.sync()
    assert alice.pending() == []


def test_a_column_that_differs_in_case_is_a_schema_error_that_names_both(opened, gateway):
    gateway.register_schema(parse_schema({**NOTES, "columns": [{"name": "Title", "type": "string"}]}))
    alice = opened()
    with pytest.raises(
        SchemaError, match="'title' of table 'notes' in this database differs only in case from 'Title'"
    ):
        alice.sync()


EVIL = 'x" TEXT); DROP TABLE notes; --'


@pytest.mark.parametrize(
    "schema",
    [table("title", EVIL), table("title", "a b"), table("title", "A", "a"), table("title", "_lakesync_column")],
)
def test_invalid_column_names_of_a_server_never_reach_a_statement(opened, gateway, schema):
    alice = opened(transport=SchemaTransport(gateway, schema))
    alice["notes"].insert(title="kept")
    with pytest.raises(SchemaError, match=r"column|differ only in case"):
        alice.sync()
    assert [row["title"] for row in alice["notes"]] == ["kept"]
    columns = [name for _, name, *_ in alice.conn.execute("PRAGMA table_info(notes)")]
    assert columns == ["row_id", "title"]


@pytest.mark.parametrize("schema", [table("title", name="other"), table("title", name='notes"; --')])
def test_a_schema_of_another_table_is_rejected(opened, gateway, schema):
    with pytest.raises(SchemaError, match="the schema for table 'notes' is one of"):
        opened(transport=SchemaTransport(gateway, schema)).sync()


@pytest.mark.parametrize("schema", [table("title", EVIL), table("title", name=EVIL), table()])
def test_an_unparsed_schema_of_an_app_is_checked(opened, schema):
    with pytest.raises(SchemaError):
        opened(schemas=[schema])
    alice = opened()
    with pytest.raises(SchemaError):
        SchemaSynchroniser(alice.coordinator.replica).synchronise("notes", schema, 1)


class StuckTransport(LocalTransport):
    """Always has more pages, but its cursor stays or decreases."""

    asked, back = 0, 0

    def pull(self, pull):
        self.asked += 1
        page = super().pull(replace(pull, source=None))
        if pull.source == "empty":
            return SyncResponse((), pull.since_hlc + self.asked, True)
        cursor = pull.since_hlc - self.back if self.asked > 1 else page.server_hlc
        return replace(page, server_hlc=cursor, has_more=True)


@pytest.fixture
def stuck(opened, gateway):
    bob = opened("bob")
    bob["notes"].insert(title="b", row_id="b")
    bob.sync()
    return StuckTransport(gateway)


@pytest.mark.parametrize("back", [0, 1])
def test_a_server_whose_cursor_does_not_advance_ends_the_sync(opened, stuck, back):
    stuck.back = back
    alice = opened(transport=stuck)
    alice["notes"].insert(title="a", row_id="a")
    with pytest.raises(UnreachableError, match="the same pull forever"):
        alice.sync()
    assert stuck.asked < 20
    assert isinstance(alice.status.last_error, UnreachableError)
    alice.coordinator.push_to_gateway()
    assert alice.pending() == []


@pytest.mark.parametrize("source", ["empty", "again"])
def test_a_source_that_repeats_its_page_ends_the_pull(opened, stuck, source):
    alice = opened(transport=stuck)
    with pytest.raises(UnreachableError, match="the same pull forever"):
        alice.coordinator.pull_from(source)
    assert stuck.asked < 20


class StuckSubscription:
    """A subscription whose every answer has the cursor of its pull."""

    def __init__(self):
        self.asked = 0
        self.closed = threading.Event()
        self._page = None

    def pull(self, pull):
        self.asked += 1
        self._page = SyncResponse((), pull.since_hlc, True)

    def receive(self, timeout):
        page, self._page = self._page, None
        if page is None:
            self.closed.wait(min(timeout or 0, 0.01))
            return None
        return Message(is_broadcast=False, page=page)

    def wake(self):
        """Nothing to do."""

    def close(self):
        self.closed.set()


class StuckRealtimeTransport(LocalTransport):
    def __init__(self, gateway):
        super().__init__(gateway)
        self.opened = queue.SimpleQueue()

    def connect(self):
        subscription = StuckSubscription()
        self.opened.put((time.monotonic(), subscription))
        return subscription


def test_a_subscription_whose_cursor_does_not_advance_is_closed_and_opened_later(opened, gateway):
    transport = StuckRealtimeTransport(gateway)
    errors = queue.SimpleQueue()
    opened(transport=transport, auto_sync=True).on("onError", errors.put)
    first_at, first = transport.opened.get(timeout=30)
    second_at, _ = transport.opened.get(timeout=30)
    assert first.closed.is_set()
    assert first.asked == 1
    assert "the same pull forever" in str(errors.get(timeout=30))
    assert second_at - first_at >= RetryPolicy().delay(0) / 2
