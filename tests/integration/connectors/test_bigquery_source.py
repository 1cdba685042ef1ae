"""BigQuery polled by SQL, on the emulator: late commits, types, parts of a table, and errors of its client."""

from __future__ import annotations

import uuid
from contextlib import closing

import pytest
import requests
from google.api_core import exceptions as google
from google.auth.exceptions import RefreshError

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.sql import bigquery
from lakesync.connectors.sql import source as sql_source
from lakesync.model.errors import (
    AdapterError,
    AuthError,
    ConfigurationError,
    ForbiddenError,
    RateLimitedError,
)
from lakesync.testing.landing import poll
from tests.integration.connectors.sql_support import BY_CHANGE, HERE, Orders, order


@pytest.fixture
def in_bigquery(bigquery_endpoint):
    """The emulator of BigQuery; its client has the interface of a connection and a cursor."""
    name = f"own_{uuid.uuid4().hex[:12]}"
    about = {"datasetReference": {"projectId": "p", "datasetId": name}}
    requests.post(f"{bigquery_endpoint}/bigquery/v2/projects/p/datasets", json=about, timeout=60).raise_for_status()
    settings = {"projectId": "p", "dataset": name, "endpoint": bigquery_endpoint}
    made = Orders(bigquery.reader, None, None, settings)

    def run(*statements):
        reader = bigquery.reader(ConnectorConfig("gw", "db", "bigquery", settings, hosts=HERE))
        with closing(reader), reader.snapshot() as reading:
            for statement in statements:
                list(reading.query_pages(statement))

    made.run = run
    made.run(
        "CREATE TABLE orders (id INT64, name STRING, price NUMERIC, paid BOOL, tags ARRAY<STRING>, extra JSON,"
        " place STRUCT<x INT64, y STRING>, raw BYTES, day DATE, at DATETIME, changed TIMESTAMP)"
    )
    return made


def test_in_bigquery_the_lookback_finds_late_commits_and_types_are_kept(in_bigquery):
    in_bigquery.run(
        "INSERT INTO orders VALUES (1, 'a \"b\" %s ?', 19.90, true, ['x','y'], JSON '{\"deep\": [1, null]}',"
        " STRUCT(1, 'z'), FROM_HEX('00ff'), '2026-02-03', DATETIME '2026-01-01 10:00:00',"
        " TIMESTAMP '2026-01-01 10:00:00.5+02')"
    )
    assert in_bigquery.poll(**BY_CHANGE, lookbackMs=60_000).error is None
    assert in_bigquery.rows()["1"] == {
        "id": 1,
        "name": 'a "b" %s ?',
        "price": 19.9,
        "paid": True,
        "tags": ["x", "y"],
        "extra": {"deep": [1, None]},
        "place": {"x": 1, "y": "z"},
        "raw": "AP8=",
        "day": "2026-02-03",
        "at": "2026-01-01T10:00:00",
        "changed": "2026-01-01T08:00:00.500000Z",
    }
    with in_bigquery.source(**BY_CHANGE) as source:
        kinds = {"id": "number", "price": "number", "paid": "boolean", "tags": "json", "extra": "json", "place": "json"}
        text = dict.fromkeys(("name", "raw", "day", "at", "changed"), "string")
        assert source.tables[0].schema().types == {**kinds, **text}
    in_bigquery.run(
        order(2, "2026-01-01 07:59:30+00", table="orders (id, name, price, changed)"),
        order(3, "2026-01-01 07:00:00+00", table="orders (id, name, price, changed)"),
    )
    in_bigquery.poll(**BY_CHANGE, lookbackMs=60_000)
    assert set(in_bigquery.rows()) == {"1", "2"}, "stamped half a minute before the newest row, and committed after it"
    with in_bigquery.source(**BY_CHANGE) as source:
        assert poll(source, in_bigquery.landing, census=True).error is None
    assert set(in_bigquery.rows()) == {"1", "2", "3"}, "a count finds a row that the lookback does not"


def test_in_bigquery_a_whole_table_is_read_in_parts_and_by_ranges(in_bigquery, monkeypatch):
    monkeypatch.setattr(bigquery, "ROWS_PER_PAGE", 150)
    rows = "SELECT n, CONCAT('n', CAST(n AS STRING)), TIMESTAMP '2026-01-01' FROM UNNEST(GENERATE_ARRAY(1, 400)) n"
    in_bigquery.run(f"INSERT INTO orders (id, name, changed) {rows}")
    first = in_bigquery.poll(type="diff", budget_bytes=10_000).tables[0]
    assert (first.error, first.rows, first.pages, first.landings) == (None, 400, 3, 3)
    before = len(in_bigquery.landing.changes)
    in_bigquery.run("DELETE FROM orders WHERE id = 7", "UPDATE orders SET name = 'other' WHERE id = 8")
    in_bigquery.poll(type="diff")
    changes = [(change.op, change.row_id, dict(change.columns)) for _, change in in_bigquery.landing.changes[before:]]
    assert sorted(changes) == [("DELETE", "7", {}), ("UPDATE", "8", {"name": "other"})]
    monkeypatch.setattr(sql_source, "PARALLEL_ROWS", 100)
    monkeypatch.setattr(sql_source, "ROWS_PER_PART", 200)
    with in_bigquery.source(**BY_CHANGE) as source:
        spread = source.split("orders", None)
    parts = [[row.row_id for page in piece.pages() for row in page] for piece in spread.parts]
    assert len(parts) == 2
    assert sorted(row_id for part in parts for row_id in part) == sorted(in_bigquery.rows())
    assert spread.cursor["settled"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (google.Forbidden("no", errors=[{"reason": "accessDenied"}]), ForbiddenError),
        (google.Forbidden("too much", errors=[{"reason": "quotaExceeded"}]), RateLimitedError),
        (google.Unauthorized("who?"), AuthError),
        (RefreshError("expired"), AuthError),
        (google.NotFound("no such table"), ConfigurationError),
        (google.ServiceUnavailable("later"), AdapterError),
        (requests.ConnectionError("gone"), AdapterError),
    ],
)
def test_errors_of_bigquerys_client_become_lakesync_errors(error, becomes):
    assert type(bigquery.map_error(error)) is becomes
