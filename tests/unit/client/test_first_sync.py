"""First syncs from a checkpoint over a gateway in this process, and their failures."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from msgspec import Raw

from lakesync.client import DbError, LocalTransport
from lakesync.client.transports.base import Checkpoint
from lakesync.model.errors import ResyncRequiredError
from lakesync.model.types import ColumnValue, RowDelta, SyncResponse
from lakesync.wire import protobuf
from tests.property.test_full_disk import files_end_at, whole_disk

SCHEMAS = [{"table": "notes", "columns": [{"name": "text", "type": "string"}]}]
LONG = Raw(b'"' + b"x" * 500 + b'"')
CURSOR = 1 << 16
ROWS = 4000


class CheckpointTransport(LocalTransport):
    """A gateway with a checkpoint of long notes."""

    def between_frames(self) -> None:
        """Called before each frame is received."""

    @contextmanager
    def checkpoint(self, _client_id):
        deltas = [
            RowDelta("INSERT", "notes", f"n{place:05}", "bob", (ColumnValue("text", LONG),), place + 1, "")
            for place in range(ROWS)
        ]
        messages = [SyncResponse(tuple(deltas[start : start + 500]), CURSOR) for start in range(0, ROWS, 500)]

        def frames():
            for message in messages:
                self.between_frames()
                yield protobuf.encode_response(message)

        yield Checkpoint(CURSOR, frames())


@pytest.fixture
def alice(opened, gateway):
    return opened(transport=CheckpointTransport(gateway))


def test_a_first_sync_on_a_full_disk_raises_and_succeeds_once_there_is_room(alice, tmp_path):
    alice["notes"].insert({"text": "mine"}, row_id="mine")
    with whole_disk():
        files_end_at(ROWS * 500 // 2)
        for _ in range(2):
            with pytest.raises(DbError, match=r"alice\.db-lakesync-first"):
                alice.sync()
    assert isinstance(alice.status.last_error, DbError)
    assert [row["row_id"] for row in alice["notes"]] == ["mine"]
    assert not list(tmp_path.glob("*-first*"))
    with pytest.raises(ResyncRequiredError):
        alice.sync()  # the checkpoint is of another gateway than the pulls
    assert len(alice["notes"]) >= ROWS


def test_the_staging_file_of_a_killed_first_sync_is_removed_by_the_next_sync(opened, tmp_path):
    left = tmp_path / "alice.db-lakesync-first"
    first, second = opened(), opened()
    first.sync()
    left.write_bytes(b"of the first, which is at it")
    with pytest.raises(DbError, match="another client is synchronising"):
        second.sync()
    assert left.exists()
    first.close()
    second.sync()
    assert not left.exists()


def test_another_client_of_the_file_adds_to_its_schema_during_a_first_sync(opened, gateway):
    (schema,), (text,), added = SCHEMAS, SCHEMAS[0]["columns"], []

    def add_column_and_table() -> None:
        added.append({"name": f"extra{len(added)}", "type": "string"})
        opened(schemas=[{**schema, "columns": [*added, text]}, {**schema, "table": f"other{len(added)}"}]).close()

    transport = CheckpointTransport(gateway)
    alice = opened(transport=transport)
    alice["notes"].insert({"text": "mine"}, row_id="n00007")
    alice.coordinator.push_to_gateway()
    transport.between_frames = add_column_and_table
    with pytest.raises(ResyncRequiredError):
        alice.sync()
    rows = alice.query("SELECT * FROM notes")
    assert len(rows) == ROWS
    assert {row[column["name"]] for row in rows for column in added} == {None}


def test_unsynchronised_columns_survive_a_first_sync(alice):
    with alice.transaction() as conn:
        conn.execute("ALTER TABLE notes ADD COLUMN starred INTEGER")
        conn.execute("INSERT INTO notes (row_id, text, starred) VALUES ('n00007', 'mine', 1)")
    alice.coordinator.push_to_gateway()
    with pytest.raises(ResyncRequiredError):
        alice.sync()
    rows = alice.query("SELECT row_id, length(text) AS long FROM notes WHERE starred")
    assert rows == [{"row_id": "n00007", "long": 500}]


def test_a_file_in_utf_16_is_filled_by_a_first_sync(opened, gateway):
    sql = "PRAGMA encoding = 'UTF-16'; CREATE TABLE other (a)"
    alice = opened(sql=sql, transport=CheckpointTransport(gateway))
    with pytest.raises(ResyncRequiredError):
        alice.sync()  # the checkpoint is of another gateway than the one that is pulled from
    assert len(alice["notes"]) == ROWS
