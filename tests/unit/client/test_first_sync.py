"""A first sync from a checkpoint over a gateway in this process, and what goes wrong with it."""

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


class Offering(LocalTransport):
    """A gateway that has a checkpoint of long notes."""

    @contextmanager
    def checkpoint(self, _client_id):
        deltas = [
            RowDelta("INSERT", "notes", f"n{place:05}", "bob", (ColumnValue("text", LONG),), place + 1, "")
            for place in range(ROWS)
        ]
        messages = [SyncResponse(tuple(deltas[start : start + 500]), CURSOR) for start in range(0, ROWS, 500)]
        yield Checkpoint(CURSOR, map(protobuf.encode_response, messages))


@pytest.fixture
def alice(opened, gateway):
    return opened(transport=Offering(gateway))


def test_a_disk_too_full_for_a_first_sync_is_told_and_room_makes_it_whole(alice, tmp_path):
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
        alice.sync()  # the checkpoint is of another gateway than the one that is pulled from
    assert len(alice["notes"]) >= ROWS


def test_what_a_client_that_was_killed_left_of_a_first_sync_goes_with_the_next(opened, tmp_path):
    left = tmp_path / "alice.db-lakesync-first"
    first, second = opened(), opened()
    first.sync()
    left.write_bytes(b"of the first, which is at it")
    with pytest.raises(DbError, match="another client synchronises"):
        second.sync()
    assert left.exists()
    first.close()
    second.sync()
    assert not left.exists()


def test_what_an_app_keeps_in_columns_of_its_own_outlives_a_first_sync(alice):
    with alice.transaction() as conn:
        conn.execute("ALTER TABLE notes ADD COLUMN starred INTEGER")
        conn.execute("INSERT INTO notes (row_id, text, starred) VALUES ('n00007', 'mine', 1)")
    alice.coordinator.push_to_gateway()
    with pytest.raises(ResyncRequiredError):
        alice.sync()
    rows = alice.query("SELECT row_id, length(text) AS long FROM notes WHERE starred")
    assert rows == [{"row_id": "n00007", "long": 500}]
