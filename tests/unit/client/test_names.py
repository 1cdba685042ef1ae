"""Tables and columns whose names LakeSync's own SQL uses too."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from msgspec import Raw

from lakesync.client import LocalTransport
from lakesync.client.transports.base import Checkpoint
from lakesync.model.errors import ResyncRequiredError
from lakesync.model.types import ColumnValue, RowDelta, SyncResponse
from lakesync.wire import protobuf

SCHEMAS: list[dict] = []
CURSOR = 1 << 16
ROWS = 30
"""More than `SqliteClientStore.bulk_from`."""


class CheckpointTransport(LocalTransport):
    """A gateway with a checkpoint of one table, whose column has a number in each row."""

    table = column = ""

    @contextmanager
    def checkpoint(self, _client_id):
        cells = [(ColumnValue(self.column, Raw(b"%d" % number)),) for number in range(ROWS)]
        deltas = [RowDelta("INSERT", self.table, f"n{n:02}", "bob", cells[n], n + 1, "") for n in range(ROWS)]
        yield Checkpoint(CURSOR, [protobuf.encode_response(SyncResponse(tuple(deltas), CURSOR))])


def schemas_of(table, column):
    return [{"table": table, "columns": [{"name": column, "type": "number"}]}]


def values(client, table, column):
    return {row["row_id"]: row[column] for row in client[table]}


@pytest.mark.parametrize("column", ["stamps", "Stamps", "true"])
def test_first_sync_loads_columns_with_names_of_its_sql(opened, gateway, column):
    transport = CheckpointTransport(gateway)
    transport.table, transport.column = "notes", column
    alice = opened(transport=transport, schemas=schemas_of("notes", column))
    with pytest.raises(ResyncRequiredError):
        alice.sync()  # the checkpoint is of another gateway than the pulls
    assert values(alice, "notes", column) == {f"n{n:02}": n for n in range(ROWS)}


@pytest.mark.parametrize("table", ["new", "old", "excluded", "json_each"])
def test_tables_with_names_of_pseudo_tables_are_tracked_and_pulled(opened, table):
    alice, bob = (opened(name, schemas=schemas_of(table, "size")) for name in ("alice", "bob"))
    for number in range(ROWS):
        alice[table].insert({"size": number}, row_id=f"n{number:02}")
    alice.sync()
    bob.sync()
    alice[table].update("n01", {"size": 100})
    alice[table].upsert("n02", {"size": 200})
    with alice.transaction() as db:
        db.execute(f"INSERT OR REPLACE INTO {table} (row_id, size) VALUES ('n03', 300)")
        db.execute(f"UPDATE {table} SET row_id = 'moved' WHERE row_id = 'n04'")
    assert alice.status.pending == 5
    alice.sync()
    bob.sync()
    expected = {f"n{n:02}": n for n in range(ROWS) if n != 4} | {"n01": 100, "n02": 200, "n03": 300, "moved": 4}
    assert values(alice, table, "size") == values(bob, table, "size") == expected
