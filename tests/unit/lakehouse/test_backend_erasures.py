"""An erasure in destination tables that the configuration no longer names."""

from contextlib import closing

import pytest

from lakehouse.backends.declared import destination_targets, flow_erasures, target_erasures
from lakesync.adapters import SqliteAdapter, StoredDelta
from lakesync.adapters.arrow import to_arrow
from lakesync.adapters.deltas import MarkUpdate
from lakesync.adapters.redaction import RedactionRequest
from lakesync.config import load
from lakesync.engine import Engine
from lakesync.model.schema import parse_schema
from lakesync.staging import open_store
from tests.conformance.book import make_delta

COLUMNS = [{"name": "title", "type": "string"}]
SCHEMAS = [
    parse_schema({"table": "notes", "columns": COLUMNS}),
    parse_schema({"table": "tasks", "sourceTable": "todo", "columns": COLUMNS}),
]
REQUESTS = (RedactionRequest("g", hlc=9, client_id="ann"),)


@pytest.fixture
def store(tmp_path):
    """A staging store in which both tables have a schema."""
    with closing(Engine(open_store(f"sqlite://{tmp_path}/staging", lambda: 1), lambda: 1)) as engine:
        engine.open()
        for schema in SCHEMAS:
            engine.gateway("g").ensure_schema(schema)
        yield engine.store


@pytest.fixture
def copy(tmp_path):
    """A destination that had both tables, with two rows each; `ann` wrote all of one row and a value of the other."""
    with closing(SqliteAdapter(tmp_path / "copy.db")) as adapter:
        deltas = [
            make_delta(client, number, row, table=schema.table, title=f"of {client}")
            for schema in SCHEMAS
            for client, number, row in (("ann", 1, "hers"), ("bob", 1, "shared"), ("ann", 2, "shared"))
        ]
        stored = to_arrow(tuple(StoredDelta("g", 256, delta) for delta in deltas))
        adapter.apply_arrow("g.main.1.0-0", stored, MarkUpdate("m", None, "there"), SCHEMAS)
        yield adapter


def rows(adapter):
    """The titles in both destination tables."""
    with adapter._executor.connect() as connection:
        return [
            dict(connection.query(f"SELECT row_id, title FROM {table} WHERE deleted_at IS NULL ORDER BY 1"))
            for table in ("notes", "todo")
        ]


def erase(tmp_path, store, *, destination, flows=()):
    """Erase at the adapter of a destination, and at that of each flow."""
    adapters = {"copy": f"sqlite://{tmp_path}/copy.db", "old": f"sqlite://{tmp_path}/old.db"}
    declared = {name: {"from": "old", "to": "copy", **settings} for name, settings in dict(flows).items()}
    config = load({"adapters": adapters, "destinations": {"shop": {"to": "copy", **destination}}, "flows": declared})
    (target,) = destination_targets(config)
    erasures = target_erasures(config, target, store, REQUESTS)
    for name, flow in config.flows.items():
        erasures += flow_erasures(config, name, flow, store, REQUESTS)
    return sum(report.rows for each in erasures for report in each.run())


KEPT, DELETED = {"shared": "of bob"}, {}
"""Rows of a table after the erasure: one that is rebuilt from the other deltas, or none."""


@pytest.mark.parametrize(
    ("destination", "found"),
    [
        ({}, [KEPT, KEPT]),
        ({"rows": False}, [DELETED, DELETED]),
        ({"tables": ["notes"]}, [KEPT, DELETED]),
        ({"tables": ["tasks"]}, [DELETED, KEPT]),
    ],
)
def test_b7_rows_of_tables_that_a_destination_no_longer_writes_are_deleted(tmp_path, store, copy, destination, found):
    assert rows(copy) == [{"hers": "of ann", "shared": "of ann"}] * 2
    assert erase(tmp_path, store, destination=destination) == 4
    assert rows(copy) == found


def test_b7_rows_that_a_flow_writes_at_the_adapter_of_a_destination_are_kept(tmp_path, store, copy):
    erase(tmp_path, store, destination={"rows": False}, flows={"notes": {"tables": ["notes"]}})
    assert rows(copy) == [KEPT, DELETED]
