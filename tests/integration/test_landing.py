"""The lake's landing: what a poll's pages change there is what `lakesync.connectors.diff` says, cut short or not."""

import random
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psycopg
import pyarrow.parquet as pq
import pytest
from pyspark.sql.connect.client.core import SparkConnectClient

from lakehouse.landing.erasure import ErasedLandings, erase_landed, forget_landed
from lakehouse.landing.landings import LakeLanding
from lakehouse.landing.tables import ensure_landing, known_name, landing_name
from lakehouse.maintenance import location_of
from lakehouse.sessions import session
from lakehouse.table_definitions import LakeNames
from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.diff import Change, diff
from lakesync.connectors.polling import poll
from lakesync.connectors.source import Census, Page, SourceRow, Table
from lakesync.connectors.sql import postgres
from lakesync.connectors.sql import source as sql_source
from lakesync.delta import jcs
from lakesync.exceptions import BackpressureError, FlushError
from lakesync.staging.records import Erasure
from lakesync.wire.json import decode_push
from resources.delivery import Delivery, Pace

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute where the machine is busy

ISSUES = Table("issues", "uid")


@pytest.fixture(scope="module")
def spark(spark_server):
    with session(spark_server["config"]) as spark:
        yield spark


@pytest.fixture
def names(request):
    """A lake of the test's own."""
    return LakeNames("lake", f"sys_{request.node.name}")


class Gateway:
    """Keeps what it is pushed; a gateway's own answer to a repeat and to too much is `test_polls`' subject."""

    def __init__(self):
        self.pushed = {}
        self.schemas = {}
        self.refuse = 0
        self.pushes = self.flushes = 0

    def ensure_schema(self, gateway, schema):
        self.schemas[gateway, schema.table] = schema.types

    def push(self, gateway, body):
        assert gateway == "gw"
        if self.refuse:
            self.refuse -= 1
            raise BackpressureError("too much", retry_after=0.01)
        self.pushes += 1
        for delta in decode_push(body).deltas:
            assert delta.client_id == "connector:desk"
            self.pushed.setdefault(delta.delta_id, delta)

    def request_flush(self):
        self.flushes += 1

    def changes(self):
        """What was pushed, in the order of stamps, each once."""
        told = sorted(self.pushed.values(), key=lambda delta: delta.hlc)
        return [Change(each.op, each.row_id, {cell.column: cell.decoded() for cell in each.columns}) for each in told]


def opened(spark, names, tables=(ISSUES,)):
    return LakeLanding(spark, ("gw", "desk", "jira"), tables, lambda: time.time_ns() // 1_000_000, names)


def delivery(landing, gateway, **pace):
    return Delivery(landing, gateway, "gw", gateway.request_flush, Pace(**pace))


def page(chance, number):
    """Rows, deletes and claims that meet one another often."""
    rows = [
        SourceRow(
            f"r{chance.randrange(9)}",
            {
                "uid": f"u{chance.randrange(7)}",
                "of": f"o{chance.randrange(3)}",
                "size": chance.choice([1, 1.0, 2, None]),
            },
        )
        for _ in range(chance.randrange(4))
    ]
    deleted = [f"r{chance.randrange(9)}" for _ in range(chance.choice([0, 0, 1]))]
    whole = [("of", f"o{chance.randrange(3)}")] if chance.random() < 0.3 else []
    return Page("issues", rows, {"number": number}, deleted, whole)


def same(changes):
    """Deletes of one page in the order of their rows."""
    return sorted((each.op, each.row_id, jcs(each.columns)) for each in changes)


def test_it_follows_the_law_of_diff_in_any_steps_and_replays_to_the_same_ids(spark, names):
    chance, gateway, known, expected = random.Random(7), Gateway(), {}, []
    for number in range(2):
        pages = [page(chance, (number, place)) for place in range(30)]
        landing = opened(spark, names)
        if number:
            assert landing.cursor("issues") == {"number": [number - 1, 29]}
            landing.land(pages[:11])
        landing.land(pages[11 * number :])
        for each in pages:
            expected += diff(known, each, "uid")
        delivery(landing, gateway, chunk=7).deliver(ISSUES)
        assert same(gateway.changes()) == same(expected)
    assert delivery(opened(spark, names), gateway).deliver(ISSUES).deltas == 0

    there = Census(None, iter([["r0", "r1"], ["new"]]))
    found = opened(spark, names).compare("issues", there)
    assert found.known == len(known)
    assert {row.row_id: row.columns for row in found.absent} == {
        row_id: columns for row_id, columns in known.items() if row_id not in ("r0", "r1")
    }
    assert found.unknown == sorted({"r0", "r1", "new"} - known.keys())
    again = Gateway()
    done = delivery(opened(spark, names), again).replay(ISSUES, [_today(spark, names)])
    assert again.pushed == gateway.pushed
    assert done.deltas == len(gateway.pushed)


def _today(spark, names):
    return spark.table(f"lake.{names.system}.landing").agg({"day": "max"}).collect()[0][0]


def test_a_delivery_that_is_cut_short_is_made_good_and_a_second_poll_is_refused(spark, names):
    gateway, table = Gateway(), Table("notes")
    landing = opened(spark, names, [table])
    rival = opened(spark, names, [table])
    rows = [SourceRow(f"n{number}", {"text": "x" * 50}) for number in range(40)]
    landing.land([Page("notes", rows[:20], {"at": 1}), Page("notes", rows[20:], {"at": 2})])
    with pytest.raises(FlushError, match="another poll of it may be under way"):
        rival.land([Page("notes", rows, {"at": 3})])

    class Dying(Gateway):
        def push(self, gateway, body):
            if self.pushes == 2:
                raise KeyboardInterrupt
            super().push(gateway, body)

    dying = Dying()
    with pytest.raises(KeyboardInterrupt):
        delivery(landing, dying, chunk=10).deliver(table)
    gateway.refuse = 3
    landing = opened(spark, names, [table])
    assert landing.cursor("notes") == {"at": 2}
    landing.land([Page("notes", [SourceRow("n0", {"text": "y"})], {"at": 3})])
    done = delivery(landing, gateway, chunk=10, budget_bytes=1).deliver(table)
    assert (done.inserted, done.updated, done.deleted) == (40, 1, 0)
    assert done.waited_s > 0
    assert gateway.flushes > 0
    assert dying.pushed.items() <= gateway.pushed.items(), "the same rows, the same ids"
    assert msgspec.json.encode([each.columns for each in gateway.changes()][-1]) == b'{"text":"y"}'


def test_a_large_table_is_read_by_ranges_of_its_key_on_sparks_workers(spark, names, own_database, monkeypatch):
    monkeypatch.setattr(sql_source, "SPREAD_ROWS", 1_000)
    monkeypatch.setattr(sql_source, "ROWS_A_PART", 1_000)
    with psycopg.connect(own_database) as sql:
        sql.execute("CREATE TABLE orders (id int PRIMARY KEY, name text, changed timestamptz)")
        sql.execute("INSERT INTO orders SELECT n * 3, 'n' || n, '2026-01-01' FROM generate_series(1, 3500) n")
    by = {"type": "cursor", "cursorColumn": "changed"}
    ingest = {"tables": [{"table": "orders", "query": "SELECT * FROM orders", "strategy": by}]}
    config = ConnectorConfig("gw", "desk", "postgres", {"connectionString": own_database}, ingest)
    gateway = Gateway()
    with closing(postgres.source(config)) as source:
        landing = opened(spark, names, source.tables)
        first = poll(source, landing).tables[0]
        assert (first.error, first.rows, first.pages, first.landings) == (None, 3_500, 4, 1)
        again = poll(source, landing).tables[0]
        assert again.error is None
        assert again.landings > 0, "from then on it is read above its cursor"
        done = delivery(landing, gateway).deliver(source.tables[0])
    assert done.inserted == 3_500
    assert gateway.schemas == {("gw", "orders"): {"id": "number", "name": "string", "changed": "string"}}
    assert {change.row_id: change.columns["name"] for change in gateway.changes()} == {
        str(number * 3): f"n{number}" for number in range(1, 3_501)
    }


def test_little_is_landed_compared_and_told_without_a_query_of_spark(spark, names, monkeypatch):
    ensure_landing(spark, names)

    def refused(*_, **__):
        raise AssertionError("Spark was asked")

    for request in ("_execute_plan_request_with_metadata", "_analyze_plan_request_with_metadata"):
        monkeypatch.setattr(SparkConnectClient, request, refused)
    gateway, rows = Gateway(), [SourceRow(f"r{number}", {"uid": f"u{number}"}) for number in range(300)]
    opened(spark, names).land([Page("issues", rows, {"at": 1})])
    assert delivery(opened(spark, names), gateway).deliver(ISSUES).inserted == 300
    again = opened(spark, names)
    again.land([Page("issues", rows, {"at": 1})])
    assert again._number == 1, "what came as it was does not land"
    assert delivery(again, gateway).deliver(ISSUES).deltas == 0
    for number in range(3):
        again.land([Page("issues", [SourceRow("r0", {"uid": "u0", "title": number})], {"at": number})])
        assert delivery(again, gateway).deliver(ISSUES).updated == 1
        again.settle("issues", files=2)  # `known` is brought up meanwhile
    assert again._landed("issues").files == ()
    assert again.compare("issues", Census(None, iter([["r0"]]))).known == 300


def test_files_from_which_rows_were_deleted_are_read_without_them(spark, names):
    landing, gateway = opened(spark, names), Gateway()
    rows = [SourceRow(f"r{number}", {"uid": f"u{number}", "title": "old"}) for number in range(50)]
    landing.land([Page("issues", rows, cursor={"at": 1})])
    delivery(landing, gateway).deliver(ISSUES)
    landing.settle("issues", least=0)
    landing.land([Page("issues", [SourceRow("r1", {"uid": "u1", "title": "of another"})], cursor={"at": 2})])
    for name, deleted in ((known_name(names), "row_id = 'r7'"), (landing_name(names), "row_id = 'r1' AND landing = 2")):
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
        spark.sql(f"DELETE FROM {name} WHERE {deleted}")
        assert spark.table(f"{name}.delete_files").count() == 1

    landing = opened(spark, names)
    assert landing.cursor("issues") == {"at": 2}
    assert landing.compare("issues", Census(None, iter([[]]))).known == 49
    rows[7] = SourceRow("r7", {"uid": "u7", "title": "new"})
    landing.land([Page("issues", rows, cursor={"at": 3})])
    pushed = len(gateway.pushed)
    delivery(landing, gateway).deliver(ISSUES)
    assert [(each.op, each.row_id) for each in gateway.changes()[pushed:]] == [("INSERT", "r7")]
    assert [spark.table(f"{name}.delete_files").count() for name in (known_name(names), landing_name(names))] == [0, 0]


def test_b7_an_erased_row_leaves_no_file_of_what_landed(spark, names):
    landing, gateway = opened(spark, names), Gateway()
    rows = [SourceRow("a", {"uid": "1", "title": "the-erased-text"}), SourceRow("b", {"uid": "2", "title": "kept"})]
    landing.land([Page("issues", rows, cursor={"at": 1})])
    delivery(landing, gateway).deliver(ISSUES)
    landing.settle("issues", least=0)
    locations = [location_of(spark, name) for name in (landing_name(names), known_name(names))]

    def holding(text):
        files = [path for each in locations for path in Path(urlsplit(each).path).rglob("*.parquet")]
        return [path for path in files if text in str(pq.read_table(path).to_pylist())]

    assert len(holding("the-erased-text")) == 2
    asked = {"table": "issues", "row_id": "a", "client_id": None, "arrival": 0, "requested_ms": 0}
    requests = {gateway: [Erasure(gateway, 1, hlc=landing._newest + 1, **asked)] for gateway in ("gw", "another")}
    assert erase_landed(spark, requests, names, "desk") == ErasedLandings(1, 1)
    assert [forget_landed(spark, name, names) for name in (landing_name(names), known_name(names))] == [True, True]
    assert holding("the-erased-text") == []
    assert len(holding("kept")) == 2

    landing = opened(spark, names)
    assert landing.cursor("issues") == {"at": 1}
    pushed = len(gateway.pushed)
    landing.land([Page("issues", [SourceRow("a", {"uid": "1", "title": "said anew"}), rows[1]], cursor={"at": 2})])
    delivery(landing, gateway).deliver(ISSUES)  # the source still has the row, and says it again
    assert [(each.op, each.row_id) for each in gateway.changes()[pushed:]] == [("INSERT", "a")]
    again = Gateway()
    delivery(opened(spark, names), again).replay(ISSUES, [_today(spark, names)])
    assert again.pushed.items() < gateway.pushed.items(), "a replay says the same, without what was erased"
