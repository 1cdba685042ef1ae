"""Polls of a database with snapshots, whose transactions commit in any order, miss no row."""

from __future__ import annotations

import random
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.sql.reader import Column, TransactionHorizon, to_json_value
from lakesync.connectors.sql.reader import format_placeholders as marked
from lakesync.connectors.sql.source import SqlSource
from lakesync.model.errors import AdapterError, ConfigurationError
from lakesync.testing.landing import MemoryLanding, poll
from tests.property.test_jira_polls import Dying, Killed

START = datetime(2026, 1, 1, tzinfo=UTC)


class Database:
    """Rows by their transaction; each is stamped when it is written, and visible once the transaction has committed."""

    def __init__(self):
        self.rows, self.open, self.next, self.clock = [], set(), 1, 0
        self.dies_after = None

    def begin(self):
        self.open.add(self.next)
        self.next += 1
        return self.next - 1

    def write(self, transaction, row_id):
        self.clock += 1
        self.rows.append((transaction, row_id, START + timedelta(seconds=self.clock)))

    @contextmanager
    def snapshot(self):
        """A snapshot of the committed rows."""
        yield Snapshot(self, [row[1:] for row in self.rows if row[0] not in self.open])

    database = "db"

    def quoted(self, name):
        return name

    def close(self):
        pass


class Snapshot:
    def __init__(self, database, rows):
        self.rows, self.dies_after = rows, database.dies_after
        self.horizon = TransactionHorizon(min(database.open, default=database.next), database.next)

    def columns(self, query):
        assert query == "SELECT * FROM orders"
        return [Column("id", "string"), Column("changed", "string")]

    def query_pages(self, statement, values=()):
        assert statement.endswith(" ORDER BY changed, id")
        assert ("WHERE changed >= ?" in statement) == bool(values)
        found = sorted((row for row in self.rows if not values or row[1] >= values[0]), key=lambda row: row[1])
        for number, start in enumerate(range(0, len(found), 3)):
            if number == self.dies_after:
                raise AdapterError("the connection was lost")
            yield ["id", "changed"], found[start : start + 3]


STEPS = st.lists(
    st.one_of(
        st.just(("begin",)),
        st.tuples(st.just("write"), st.integers(0, 5)),
        st.tuples(st.just("commit"), st.integers(0, 5)),
        st.tuples(st.just("poll"), st.none() | st.integers(0, 2)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(steps=STEPS)
def test_rows_that_commit_late_are_read_in_any_order_of_polls_and_commits(steps):
    database, written = Database(), 0
    table = {"table": "orders", "query": "SELECT * FROM orders"}
    table["strategy"] = {"type": "cursor", "cursorColumn": "changed", "lookbackMs": 0}
    source = SqlSource(lambda _: database, ConnectorConfig("gw", "db", "postgres", {}, {"tables": [table]}))
    landing = MemoryLanding(source.tables)
    last = [("commit", number) for number in range(len(steps))]
    for step, *which in [*steps, *last, ("poll", None), ("poll", None)]:
        running = sorted(database.open)
        match step:
            case "begin":
                database.begin()
            case "write" if running:
                written += 1
                database.write(running[which[0] % len(running)], f"r{written}")
            case "commit" if running:
                database.open.discard(running[which[0] % len(running)])
            case "poll":
                database.dies_after = which[0]
                error = poll(source, landing, budget_bytes=1).tables[0].error
                assert error is None or which[0] is not None
    assert set(landing.rows["orders"]) == {row_id for _, row_id, _ in database.rows}
    settled = poll(source, landing).tables[0]
    assert settled.rows <= 1, "once no transaction is late, polls read from the newest row"


class Whole:
    """A table that changes between two reads, and whose reads may be interrupted."""

    def __init__(self, chance):
        self.chance, self.rows, self.gone, self.rests = chance, {}, set(), False

    @contextmanager
    def snapshot(self):
        for _ in range(0 if self.rests else self.chance.randrange(3)):
            row_id = f"r{self.chance.randrange(12)}"
            if self.chance.random() < 0.4:
                self.rows.pop(row_id, None)
                self.gone.add(row_id)
            else:
                self.rows[row_id] = self.chance.randrange(3)
        yield WholeSnapshot(self, dict(self.rows))

    database = "db"

    def quoted(self, name):
        return name

    text = quoted

    def close(self):
        pass


class WholeSnapshot:
    horizon = None

    def __init__(self, table, rows):
        self.table, self.rows = table, rows

    def columns(self, _):
        return [Column("id", "string"), Column("size", "number")]

    def query_pages(self, statement, values=()):
        found = [(row_id, size) for row_id, size in self.rows.items() if not values or row_id in values]
        names = ["id"] if statement.startswith("SELECT id") else ["id", "size"]
        for start in range(0, len(found), 3):
            if not self.table.rests and self.table.chance.random() < 0.1:
                raise AdapterError("the connection was lost")
            yield names, [row[: len(names)] for row in found[start : start + 3]]


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_completely_compared_table_equals_its_source(seed):
    table = Whole(random.Random(seed))
    of = {"table": "orders", "query": "SELECT * FROM orders", "strategy": {"type": "diff"}}
    source = SqlSource(lambda _: table, ConnectorConfig("gw", "db", "postgres", {}, {"tables": [of]}))
    landing = Dying(source.tables, table.chance)
    for _ in range(8):
        with suppress(Killed):
            poll(source, landing, budget_bytes=40)
    table.rests, landing.dies = True, False
    assert poll(source, landing).error is None
    assert {row_id: row["size"] for row_id, row in landing.rows["orders"].items()} == table.rows
    assert {change.row_id for _, change in landing.changes if change.op == "DELETE"} <= table.gone
    before = len(landing.changes)
    poll(source, landing)
    assert len(landing.changes) == before, "a poll without changes makes no delta"


@pytest.mark.parametrize(
    ("value", "json"),
    [
        (Decimal("19.90"), 19.9),
        (Decimal("3.00"), 3),
        (2**53, 2**53),
        (2**53 + 2, 2**53 + 2),
        (Decimal(2**53 + 2), 2**53 + 2),
        (datetime.fromisoformat("2026-01-01T12:00:00"), "2026-01-01T12:00:00"),
        (datetime(2026, 1, 1, 12, tzinfo=UTC), "2026-01-01T12:00:00Z"),
        (b"\x00\xff", "AP8="),
        ({"a": [Decimal("0.5"), None]}, {"a": [0.5, None]}),
        (float("nan"), None),
    ],
)
def test_values_are_encoded_as_json(value, json):
    assert to_json_value(value, "c") == json


@pytest.mark.parametrize("value", [2**53 + 1, Decimal("0.12345678901234567890"), -(2**60)])
def test_a_number_that_json_would_round_is_rejected(value):
    with pytest.raises(ConfigurationError, match="column 'c' has"):
        to_json_value(value, "c")


def test_placeholders_are_replaced_only_after_the_users_query():
    query = "SELECT * FROM (SELECT data ? 'a' FROM t WHERE x LIKE '5%') polled WHERE c >= ?"
    assert marked(query) == "SELECT * FROM (SELECT data ? 'a' FROM t WHERE x LIKE '5%%') polled WHERE c >= %s"
