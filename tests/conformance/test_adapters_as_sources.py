"""Clients pull from every kind of backend through a gateway's rules, page by page."""

from __future__ import annotations

from typing import Any

import pytest

from lakesync.adapters import DeltaBatch, StoredDelta
from lakesync.adapters.backends.bigquery import BigQueryAdapter
from lakesync.model.types import SyncPull
from lakesync.rules.model import parse_rules
from tests.conformance.adapter_places import DATABASES, DEEP, start_server
from tests.integration.embedded.embedded_support import Author, gateway_over

RULES = {
    "version": 1,
    "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
}


@pytest.fixture(params=[pytest.param(kind, marks=[pytest.mark.deep] * (kind in DEEP)) for kind in DATABASES])
def source(request, tmp_path):
    """Each kind."""
    start_server(request)
    opened = DATABASES[request.param](tmp_path)
    yield opened
    opened.close()


def test_a_source_is_pulled_through_rules_in_pages(source, clock):
    limit = 100 if isinstance(source, BigQueryAdapter) else 1  # the emulator needs a second for each query
    author = Author("etl", clock)
    edits: list[list[tuple[str, dict[str, Any]]]] = [
        [("r1", {"team": "a", "x": 1}), ("r2", {"team": "b", "x": 2}), ("r3", {"team": "a", "x": 3})],
        [("r1", {"team": "a", "x": 4}), ("r3", {"team": "b"}), ("r4", {"team": "a", "x": {"é": None}})],
    ]
    for number, some in enumerate(edits, 1):
        clock.advance(10)
        deltas = [author.delta(row, after, table="reports") for row, after in some]
        stored = tuple(StoredDelta("lake", (clock.now_ms << 16) + 256 * n, delta) for n, delta in enumerate(deltas))
        source.insert_deltas(DeltaBatch(f"lake.main.1.{number}-{number}", "lake", stored))
    with gateway_over(clock) as gateway:
        gateway.set_rules(parse_rules(RULES))
        gateway.register_source("reports", source)
        claims = {"sub": "reader", "team": "a"}
        since = gateway.handle_pull(SyncPull("reader", 0, 1000), claims).server_hlc
        operations, more = [], True
        while more:
            page = gateway.handle_pull(SyncPull("reader", since, limit, "reports"), claims)
            operations += [(delta.op, delta.row_id) for delta in page.deltas]
            since, more = page.server_hlc, page.has_more
    visible = [row for op, row in operations if op == "INSERT"]
    assert sorted(visible) == ["r1", "r4"]
    assert "r2" not in {row for _, row in operations}
