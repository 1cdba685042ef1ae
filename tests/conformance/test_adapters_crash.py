"""A killed writer leaves the old or the new object, and a table that is complete or is completed later."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from lakesync.adapters import LocalDisk
from lakesync.model.crash_points import VARIABLE
from lakesync.model.schema import TableSchema, parse_schema
from tests.conformance import adapter_places
from tests.forked import run_code, run_until_killed

SCRIPT = (
    "import sys; from lakesync.adapters import LocalDisk;"
    "LocalDisk(sys.argv[1]).put_object('a/k', b'new' * 100_000, if_absent=sys.argv[2] == 'once')"
)


@pytest.mark.parametrize("how", ["once", "over"])
@pytest.mark.parametrize(("crash_at", "placed"), [("local.before_place", False), ("local.after_place", True)])
def test_a_killed_writer_leaves_the_old_or_the_new_object(tmp_path, crash_at, placed, how):
    store = LocalDisk(tmp_path)
    if how == "over":
        store.put_object("a/k", b"old")
    assert run_code(SCRIPT, str(tmp_path), how, **{VARIABLE: crash_at}) == -9
    expected = b"new" * 100_000 if placed else b"old"
    there = placed or how == "over"
    assert [info.key for info in store.list_objects().objects] == ["a/k"] * there
    if there:
        assert store.get_object("a/k") == expected
    assert store.put_object("a/k", b"repeat", if_absent=True) is not there


INDEXED = {
    "sqlite": "SELECT name FROM pragma_index_list('orders') WHERE name LIKE 'lakesync_key_%'",
    "postgres": "SELECT indexname FROM pg_indexes WHERE tablename = 'orders' AND schemaname = current_schema()"
    " AND indexname LIKE 'lakesync_key_%'",
    "mariadb": "SELECT index_name FROM information_schema.statistics WHERE table_schema = DATABASE()"
    " AND table_name = 'orders' AND index_name LIKE 'lakesync_key_%'",
}
"""By adapter: the query for the indexes of the destination table's keys."""
WITHOUT_ID = {"table": "orders", "columns": [{"name": "shop", "type": "string"}], "primaryKey": ["shop"]}
WITH_ID = {**WITHOUT_ID, "columns": [*WITHOUT_ID["columns"], {"name": "ext", "type": "string"}]}


def ensure(kind: str, folder: Path, servers: Mapping[str, str], schema: TableSchema) -> None:
    """Create the table of a schema, or add its columns; the servers are at the given addresses."""
    adapter_places.SERVERS.update(servers)
    adapter = adapter_places.DATABASES[kind](folder)
    adapter.ensure_schema(schema)
    adapter.close()


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(
    ("kind", "statement"), [("sqlite", 1), ("sqlite", 2), ("postgres", 1), ("postgres", 2), ("mariadb", 1)]
)
def test_a_killed_writer_leaves_no_table_without_its_indexes(request, kind, tmp_path, is_new, statement):
    request.param = kind
    adapter_places.start_server(request)
    servers = dict(adapter_places.SERVERS)
    schema = parse_schema({**WITH_ID, "externalIdColumn": "ext"})
    if not is_new:
        ensure(kind, tmp_path, servers, parse_schema(WITHOUT_ID))
    run_until_killed(ensure, kind, tmp_path, servers, schema, crash_at=f"sql.defined:{statement}")
    ensure(kind, tmp_path, servers, schema)
    adapter = adapter_places.DATABASES[kind](tmp_path)
    with adapter._executor.connect() as connection:
        assert len(connection.query(INDEXED[kind])) == 2
    adapter.close()
