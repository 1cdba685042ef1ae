"""The lake's landing applies the pages of a poll like `lakesync.testing.landing`, also after an interruption."""

import itertools
import os
import random
import time
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import psycopg
import pyarrow.parquet as pq
import pytest
from pyspark.errors.exceptions.connect import SparkException

from lakehouse.erasure.redaction import ErasedLandings, drop_old_landings, erase_landed
from lakehouse.landing import lake_landing
from lakehouse.landing.delivery import Delivery
from lakehouse.landing.lake_landing import LakeLanding, PolledSource
from lakehouse.maintenance import location_of, maintain
from lakehouse.sessions import session
from lakehouse.table_definitions import LakeNames
from lakesync.config.pipeline_sections import MaintenanceSection
from lakesync.connectors.base import Census, ConnectorConfig, Page, ParallelRead, SourceRow, Table, Usage
from lakesync.connectors.host_policy import HostPolicy
from lakesync.connectors.polling import IngestSettings
from lakesync.connectors.sql import postgres
from lakesync.connectors.sql import source as sql_source
from lakesync.model.delta import jcs
from lakesync.model.errors import AdapterError, BackpressureError, CommitConflictError, FlushError, NotFoundError
from lakesync.staging.records import Erasure
from lakesync.testing.landing import RowChange, diff_page
from lakesync.wire.json import decode_push

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine

ISSUES = Table("issues", "uid")


@pytest.fixture(scope="module")
def spark(spark_server):
    # in addition to another session, which is active in this thread
    with session(spark_server["config"]), session(spark_server["config"]) as spark:
        yield spark


@pytest.fixture
def names(request):
    """A separate lake."""
    return LakeNames("lake", f"sys_{request.node.name}")


class Gateway:
    """Stores the pushes of tasks in a folder; `test_polls` tests repeats and backpressure."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def __call__(self):
        return nullcontext(self)

    def push(self, gateway, body):
        assert gateway == "gw"
        refusals = self.folder / "refuse"
        if refusals.exists():
            left = int(refusals.read_text()) - 1
            refusals.write_text(str(left)) if left else refusals.unlink()
            raise BackpressureError("too much", retry_after=0.01)
        for delta in decode_push(body).deltas:
            assert delta.client_id == "connector:desk"
        (self.folder / f"{len(list(self.folder.glob('*.push'))):06}.push").write_bytes(body)

    def refuse(self, times):
        (self.folder / "refuse").write_text(str(times))

    @property
    def pushed(self):
        """Each delta once, by id, in the order of arrival."""
        found = {}
        for file in sorted(self.folder.glob("*.push")):
            for delta in decode_push(file.read_bytes()).deltas:
                found.setdefault(delta.delta_id, delta)
        return found

    def changes(self):
        """The pushed changes in the order of stamps, each once."""
        deltas = sorted(self.pushed.values(), key=lambda delta: delta.hlc)
        return [
            RowChange(each.op, each.row_id, {cell.column: cell.decoded() for cell in each.columns}) for each in deltas
        ]


class Scripted:
    """A source with the pages of its connector's settings; counts its calls."""

    def __init__(self, config):
        self.tables, self._pages, self._counted = (config.settings[name] for name in ("tables", "pages", "counted"))
        self.usage = Usage(len(self._pages))

    def changes(self, table, _cursor):
        return iter([page for page in self._pages if page.table == table])

    def census(self, _table):
        return Census(None, iter([self._counted])) if self._counted is not None else None

    def read(self, table, row_ids):
        return iter([Page(table, [SourceRow(row_id, {"uid": f"of {row_id}"}) for row_id in row_ids])])

    def find_deleted(self, _table, rows):
        return {row.row_id for row in rows}

    def close(self):
        pass


def opened(spark, names, pages=(), tables=(ISSUES,), counted=None, clock_ahead_ms=0):
    """Open the landing of a connector whose source has these pages."""
    plain = tuple(table._replace(schema=no_schema) for table in tables)
    config = ConnectorConfig("gw", "desk", "scripted", {"tables": plain, "pages": list(pages), "counted": counted})
    polled = PolledSource(config, Scripted, plain)
    return LakeLanding(spark, polled, lambda: time.time_ns() // 1_000_000 + clock_ahead_ms, names, {})


class Piece(NamedTuple):
    """Half of a table; it cannot be read while a certain file exists."""

    rows: list[SourceRow]
    down: Path

    def pages(self):
        if self.down.exists():
            raise AdapterError("the database went away")
        yield self.rows


class Divided(Scripted):
    """A source whose table is read in the pieces of its connector's settings."""

    def __init__(self, config):
        super().__init__(config)
        self._pieces = config.settings["pieces"]

    def split(self, _table, cursor):
        return ParallelRead(self._pieces, {"at": 1}) if cursor is None else None


def no_schema():
    return None


def land(spark, names, pages, tables=(ISSUES,), **ingest):
    """Run one poll of these pages."""
    landing = opened(spark, names, pages, tables)
    report = landing.poll(IngestSettings(**ingest))
    assert report.error is None
    return landing


class Dying(Gateway):
    """Kills the task's process at the third push."""

    def push(self, gateway, body):
        if len(list(self.folder.glob("*.push"))) == 2:
            os._exit(1)
        super().push(gateway, body)


@pytest.fixture
def gateways(tmp_path):
    """Makes gateways, each with a separate folder."""
    numbers = itertools.count()
    return lambda kind=Gateway: kind(tmp_path / f"gateway-{next(numbers)}")


def delivery(landing, gateway, chunk=500, flush=lambda: None):
    return Delivery(landing, gateway, "gw", flush, needs_schema=lambda _: True, chunk=chunk)


def page(chance, number):
    """Rows, deletes and claims that often overlap."""
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
    """Order the deletes of one page by row."""
    return sorted((each.op, each.row_id, jcs(each.columns)) for each in changes)


def test_landings_in_any_steps_equal_the_diff_and_repeat_the_same_ids(spark, names, gateways):
    chance, gateway, known, expected = random.Random(7), gateways(), {}, []
    for number in range(2):
        pages = [page(chance, (number, place)) for place in range(30)]
        landing = opened(spark, names)
        if number:
            assert landing.cursor("issues") == {"number": [number - 1, 29]}
            land(spark, names, pages[:11])
        landing = land(spark, names, pages[11 * number :])
        for each in pages:
            expected += diff_page(known, each, "uid")
        delivery(landing, gateway, chunk=7).deliver(ISSUES)
        assert same(gateway.changes()) == same(expected)
    assert delivery(opened(spark, names), gateway).deliver(ISSUES).deltas == 0

    again = gateways()
    done = delivery(opened(spark, names), again).replay(ISSUES, [_today(spark, names)])
    assert again.pushed == gateway.pushed
    assert done.deltas == len(gateway.pushed)

    landing = opened(spark, names, counted=["r0", "r1", "new"])
    report = landing.poll(IngestSettings(census_interval_ms=0, deleted_share=1.0)).tables[0]
    assert (report.error, report.census_taken) == (None, True)
    done = delivery(landing, gateway).deliver(ISSUES)
    absent = {"r0", "r1", "new"} - known.keys()
    assert (done.inserted, done.deleted) == (len(absent), len(known.keys() - {"r0", "r1"}))


def _today(spark, names):
    return spark.table(f"lake.{names.system}.landing").agg({"day": "max"}).collect()[0][0]


def test_a_connector_with_another_origin_is_read_from_the_beginning_and_counted(spark, names, gateways):
    gateway, old, new = gateways(), Table("notes", origin="old"), Table("notes", origin="new")
    rows = [SourceRow("n0", {"text": "a"}), SourceRow("n1", {"text": "b"})]
    land(spark, names, [Page("notes", rows, {"at": 7})], [Table("notes")])
    assert opened(spark, names, tables=[old]).cursor("notes") == {"at": 7}, "the origin was not known"
    land(spark, names, [Page("notes", rows[:1], {"at": 8})], [old])
    landing = opened(spark, names, [Page("notes", [SourceRow("n2", {"text": "c"})], {"at": 1})], [new], ["n0", "n2"])
    assert landing.cursor("notes") is None
    assert landing.poll(IngestSettings()).tables[0].census_taken
    assert opened(spark, names, tables=[new]).cursor("notes") == {"at": 1}
    assert delivery(landing, gateway).deliver(new).deleted == 1
    assert [change.row_id for change in gateway.changes() if change.op == "DELETE"] == ["n1"]
    assert not opened(spark, names, tables=[new], counted=["n0"]).poll(IngestSettings()).tables[0].census_taken
    set_back = opened(spark, names, tables=[new], counted=["n0", "n2"], clock_ahead_ms=-3_600_000)
    assert set_back.poll(IngestSettings()).tables[0].census_taken, "a census in the future must not delay the next one"


def test_an_interrupted_delivery_is_completed_and_a_concurrent_poll_is_rejected(spark, names, gateways):
    gateway, table = gateways(), Table("notes")
    rows = [SourceRow(f"n{number}", {"text": "x" * 50}) for number in range(40)]
    rival = opened(spark, names, [Page("notes", rows, {"at": 3})], [table])
    landing = land(spark, names, [Page("notes", rows[:20], {"at": 1}), Page("notes", rows[20:], {"at": 2})], [table])
    refused = rival.poll(IngestSettings()).error
    assert isinstance(refused, CommitConflictError)
    assert "another poll of it may be in progress" in str(refused)

    dying = gateways(Dying)
    with pytest.raises(SparkException, match="worker exited unexpectedly"):
        delivery(landing, dying, chunk=10).deliver(table)
    assert len(dying.pushed) == 20
    gateway.refuse(3)
    flushes = []
    assert opened(spark, names, tables=[table]).cursor("notes") == {"at": 2}
    landing = land(spark, names, [Page("notes", [SourceRow("n0", {"text": "y"})], {"at": 3})], [table])
    done = delivery(landing, gateway, chunk=10, flush=lambda: flushes.append(1)).deliver(table)
    assert (done.inserted, done.updated, done.deleted) == (40, 1, 0)
    assert done.waited_s > 0
    assert flushes
    assert dying.pushed.items() <= gateway.pushed.items(), "the same rows and ids"
    assert msgspec.json.encode([each.columns for each in gateway.changes()][-1]) == b'{"text":"y"}'


def test_a_large_table_is_read_by_ranges_of_its_key_on_sparks_workers(spark, names, own_database):
    rows = sql_source.PARALLEL_ROWS
    with psycopg.connect(own_database) as sql:
        sql.execute("CREATE TABLE orders (id int PRIMARY KEY, name text, changed timestamptz)")
        sql.execute("INSERT INTO orders SELECT n * 3, 'n' || n, '2026-01-01' FROM generate_series(1, %s) n", [rows])
    by = {"type": "cursor", "cursorColumn": "changed"}
    ingest = {"tables": [{"table": "orders", "query": "SELECT * FROM orders", "strategy": by}]}
    config = ConnectorConfig(
        "gw", "desk", "postgres", {"connectionString": own_database}, ingest, HostPolicy(("127.0.0.1",))
    )
    with closing(sql_source.SqlSource(postgres.reader, config)) as source:
        landing = LakeLanding(
            spark,
            PolledSource(config, partial(sql_source.SqlSource, postgres.reader), source.tables),
            lambda: time.time_ns() // 1_000_000,
            names,
            {},
        )
        first = landing.poll(IngestSettings()).tables[0]
        assert (first.error, first.rows, first.pages, first.landings) == (None, rows, 2, 1)
        assert spark.table(names.landing).where("kind = 'row'").count() == rows
        assert landing.poll(IngestSettings()).tables[0].rows > 0, "from then on it is read above its cursor"


def test_a_lost_piece_that_cannot_be_read_again_does_not_land_as_empty(spark, names, tmp_path, monkeypatch):
    """Executors cache the rows that a poll has read. If an executor is lost, its tasks read the source again."""
    down = tmp_path / "down"
    rows = [SourceRow(f"r{number}", {"uid": f"u{number}"}) for number in range(20)]
    pieces = [Piece(rows[:10], down), Piece(rows[10:], tmp_path / "never")]
    table = ISSUES._replace(schema=no_schema)
    config = ConnectorConfig(
        "gw", "desk", "divided", {"tables": (table,), "pages": [], "counted": None} | {"pieces": pieces}
    )
    polled = PolledSource(config, Divided, (table,))
    landing = LakeLanding(spark, polled, lambda: time.time_ns() // 1_000_000, names, {})

    def lose(place):
        if place == "poll.read":
            spark.catalog.clearCache()
            down.touch()

    with monkeypatch.context() as patch:
        patch.setattr(lake_landing, "crash_point", lose)
        report = landing.poll(IngestSettings()).tables[0]
    assert isinstance(report.error, FlushError)
    assert "the database went away" in str(report.error)
    assert (landing.cursor("issues"), spark.table(names.landing).count()) == (None, 0)
    down.unlink()
    assert landing.poll(IngestSettings()).tables[0].error is None
    assert spark.table(names.landing).where("kind = 'row'").count() == 20


def test_a_poll_without_changes_writes_nothing_and_the_known_rows_are_updated(spark, names, gateways):
    gateway, rows = gateways(), [SourceRow(f"r{number}", {"uid": f"u{number}"}) for number in range(300)]
    first = [Page("issues", rows, {"at": 1})]
    assert delivery(land(spark, names, first), gateway).deliver(ISSUES).inserted == 300
    again = land(spark, names, first)
    assert spark.table(f"{names.landing}.snapshots").count() == 1, "unchanged rows do not land"
    assert delivery(again, gateway).deliver(ISSUES).deltas == 0
    for number in range(3):
        again = land(spark, names, [Page("issues", [SourceRow("r0", {"uid": "u0", "title": number})], {"at": number})])
        assert delivery(again, gateway).deliver(ISSUES).updated == 1
        again.update_known("issues", max_files=2)  # `known` is updated meanwhile
    assert spark.table(names.known).count() == 300
    for name in (names.landing, names.known):
        engines = {
            row["engine"] for row in spark.sql(f"SELECT summary['engine-name'] engine FROM {name}.snapshots").collect()
        }
        assert engines == {"spark"}
    assert delivery(opened(spark, names), gateway).deliver(ISSUES).deltas == 0


def test_files_from_which_rows_were_deleted_are_read_without_them(spark, names, gateways):
    gateway = gateways()
    rows = [SourceRow(f"r{number}", {"uid": f"u{number}", "title": "old"}) for number in range(50)]
    landing = land(spark, names, [Page("issues", rows, cursor={"at": 1})])
    delivery(landing, gateway).deliver(ISSUES)
    landing.update_known("issues", min_rows=0)
    land(spark, names, [Page("issues", [SourceRow("r1", {"uid": "u1", "title": "of another"})], cursor={"at": 2})])
    for name, deleted in ((names.known, "row_id = 'r7'"), (names.landing, "row_id = 'r1' AND landing = 2")):
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
        spark.sql(f"DELETE FROM {name} WHERE {deleted}")
        assert spark.table(f"{name}.delete_files").count() == 1

    assert opened(spark, names).cursor("issues") == {"at": 2}
    rows[7] = SourceRow("r7", {"uid": "u7", "title": "new"})
    landing = land(spark, names, [Page("issues", rows, cursor={"at": 3})])
    pushed = len(gateway.pushed)
    delivery(landing, gateway).deliver(ISSUES)
    assert [(each.op, each.row_id) for each in gateway.changes()[pushed:]] == [("INSERT", "r7")]
    assert [spark.table(f"{name}.delete_files").count() for name in (names.known, names.landing)] == [0, 0]


def test_a_replay_repeats_the_same_deltas_after_older_landings_were_deleted(spark, names, gateways):
    gateway, again = gateways(), gateways()
    for number, title in enumerate(("old", "new")):
        row = SourceRow("r1", {"uid": "u1", "title": title})
        landing = land(spark, names, [Page("issues", [row], {"at": number})])
        delivery(landing, gateway).deliver(ISSUES)
        if title == "old":
            landing.update_known("issues", min_rows=0)
    spark.sql(f"DELETE FROM {names.landing} WHERE landing = 1")
    landing = opened(spark, names)
    delivery(landing, again).replay(ISSUES, [_today(spark, names)])
    assert [(each.op, each.columns) for each in again.changes()] == [("UPDATE", {"title": "new"})]
    assert again.pushed.items() <= gateway.pushed.items()
    landing.update_known("issues", min_rows=0)
    with pytest.raises(NotFoundError, match="cannot be replayed"):
        delivery(opened(spark, names), again).replay(ISSUES, [_today(spark, names)])


def test_b6_maintenance_of_the_landing_keeps_the_newest_cursor_of_each_table(spark, names):
    tables = (ISSUES, Table("notes"))
    for number, table, rows in ((1, "issues", 1), (1, "notes", 1), (2, "issues", 2_000), (3, "notes", 1)):
        made = [SourceRow(f"r{each}", {"uid": f"{number} {hash((number, each))}"}) for each in range(rows)]
        land(spark, names, [Page(table, made, {"at": number})], tables)
    sizes = spark.table(f"{names.landing}.files").selectExpr("max(file_size_in_bytes)").collect()[0][0]
    limits = MaintenanceSection(min_input_files=2, target_file_bytes=sizes)
    # the small files, of landings before and after the large one, become one file
    done = maintain(spark, names, names.landing, limits)
    assert done.after.data_files == 2
    landing = opened(spark, names, tables=tables)
    assert [landing.cursor(each.name) for each in tables] == [{"at": 2}, {"at": 3}]


def test_b7_an_erased_row_is_in_no_file_of_the_landing(spark, names, gateways):
    gateway = gateways()
    rows = [SourceRow("a", {"uid": "1", "title": "the-erased-text"}), SourceRow("b", {"uid": "2", "title": "kept"})]
    landing = land(spark, names, [Page("issues", rows, cursor={"at": 1})])
    delivery(landing, gateway).deliver(ISSUES)
    landing.update_known("issues", min_rows=0)
    locations = [location_of(spark, name) for name in (names.landing, names.known)]

    def holding(text):
        files = [path for each in locations for path in Path(urlsplit(each).path).rglob("*.parquet")]
        return [path for path in files if text in str(pq.read_table(path).to_pylist())]

    assert len(holding("the-erased-text")) == 2
    asked = {"table": "issues", "row_id": "a", "client_id": None, "arrival": 0, "requested_ms": 0}
    requests = {gateway: [Erasure(gateway, 1, hlc=landing._newest + 1, **asked)] for gateway in ("gw", "another")}
    known, away = names.known, names.known.replace("`known`", "`away`")
    spark.sql(f"ALTER TABLE {known} RENAME TO {away.partition('.')[2]}")
    assert erase_landed(spark, requests, names, "desk") == ErasedLandings(1, 0), "one table is erased without the other"
    spark.sql(f"ALTER TABLE {away} RENAME TO {known.partition('.')[2]}")
    assert erase_landed(spark, requests, names, "desk") == ErasedLandings(0, 1)
    assert [drop_old_landings(spark, name, names) for name in (names.landing, names.known)] == [True, True]
    assert holding("the-erased-text") == []
    assert len(holding("kept")) == 2

    assert opened(spark, names).cursor("issues") == {"at": 1}
    pushed = len(gateway.pushed)
    anew = [SourceRow("a", {"uid": "1", "title": "said anew"}), rows[1]]
    landing = land(spark, names, [Page("issues", anew, cursor={"at": 2})])
    delivery(landing, gateway).deliver(ISSUES)  # the source still has the row, and returns it again
    assert [(each.op, each.row_id) for each in gateway.changes()[pushed:]] == [("INSERT", "a")]
    again = gateways()
    delivery(opened(spark, names), again).replay(ISSUES, [_today(spark, names)])
    assert again.pushed.items() < gateway.pushed.items(), "a replay returns the same rows without the erased values"
