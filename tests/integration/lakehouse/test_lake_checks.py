"""The lake's checks find planted faults, and no fault in an undamaged lake. Each test starts with an undamaged lake."""

from datetime import date, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lakehouse.checkpoints.audit import checkpoint_differences
from lakehouse.checkpoints.checkpoint import make_checkpoint
from lakehouse.checks import duplicate_deltas, duplicate_keys, future_deltas, history_faults
from lakehouse.table_access import TableSize, read_version, table_size
from lakehouse.table_definitions import LakeNames
from lakehouse.tables import audit
from lakehouse.tables.audit import days_unlike_history, rows_unlike_merge
from lakehouse.tables.merging import merge_table
from lakesync.model.delta import delta_id
from lakesync.model.hlc import MAX_DRIFT_MS
from lakesync.model.schema import parse_schema
from lakesync.model.types import ColumnValue, RowDelta
from resources.spark import SparkStatus
from tests.lake_support import arrivals, fill, held

DAYS = [date(2013, 1, 1) + timedelta(days=number) for number in range(2)]
TITLES = parse_schema({"table": "t", "columns": [{"name": "title", "type": "string"}]})

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


def delta(op, row, hlc, client="a", **values):
    columns = tuple(ColumnValue.of(name, value) for name, value in values.items())
    identity = delta_id(client_id=client, hlc=hlc, table="t", row_id=row, columns=columns)
    return RowDelta(op, "t", row, client, columns, hlc, identity)


class Lake:
    """A state table of six rows over two days, with a checkpoint; tests plant faults by SQL."""

    def __init__(self, spark, engine, names, frames):
        self.spark, self.names, self.store = spark, names, engine.store
        stamps = [arrival for day in DAYS for arrival in arrivals(day, 3)]
        fill(
            spark,
            names,
            [
                (arrival, [delta("INSERT", f"row-{number}", arrival, title=f"title {number}")])
                for number, arrival in enumerate(stamps)
            ]
            + [(stamps[-1] + 256, [delta("UPDATE", "row-0", 9, "b", title="late"), delta("DELETE", "row-5", 9, "b")])],
        )
        upto = stamps[-1] + 256
        merge_table(spark, TITLES, {"g": upto}, names=names)
        engine.gateway("g")
        hold = held(engine.store, "g", upto)
        self.checkpoint = make_checkpoint(
            spark, engine.store, hold, [TITLES], directory_uri=frames.as_uri(), names=names
        )

        self.sound = {
            f"{names.system}.deltas": read_version(spark, names.deltas).snapshot_id,
            f"{names.tables}.t": read_version(spark, names.state("t")).snapshot_id,
        }
        self.frames = {
            file: file.read_bytes()
            for table in self.checkpoint.tables
            for file in (Path(urlsplit(uri).path) for uri in table.frames)
        }

    def repair(self):
        """Remove the planted faults."""
        for table, snapshot in self.sound.items():
            self.spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {snapshot})")
        for file, content in self.frames.items():
            file.write_bytes(content)

    def sql(self, statement):
        self.spark.sql(statement.format(deltas=self.names.deltas, state=self.names.state("t")))


@pytest.fixture(scope="module")
def shared_lake(spark, serve, tmp_path_factory):
    return Lake(spark, serve().engine, LakeNames("lake", "sys_checks", "tab_checks"), tmp_path_factory.mktemp("frames"))


@pytest.fixture
def lake(shared_lake):
    yield shared_lake
    shared_lake.repair()


def test_an_undamaged_lake_has_no_faults(lake, spark):
    assert rows_unlike_merge(spark, "t", lake.names) == []
    assert rows_unlike_merge(spark, "t", lake.names, days=DAYS[:1], seed=3) == []
    assert days_unlike_history(spark, "t", lake.names) == []
    assert future_deltas(spark, lake.names) == []
    assert checkpoint_differences(spark, lake.checkpoint, lake.names) == []
    counted = table_size(spark, lake.names.state("t"))
    assert (counted.rows, counted.delete_files) == (6, 0)
    assert counted.data_files > 0
    assert counted.bytes > 0
    spark.sql(f"CREATE TABLE lake.{lake.names.tables}.empty (a int) USING iceberg")
    assert table_size(spark, f"lake.{lake.names.tables}.empty") == TableSize()


def test_a_state_that_differs_from_the_merge_is_found_in_the_whole_history_and_on_its_days(lake, spark):
    lake.sql("DELETE FROM {state} WHERE _row = 'row-1'")
    lake.sql("UPDATE {state} SET _tombstone = named_struct('hlc', 1L, 'client_id', 'x') WHERE _row = 'row-2'")
    whole = rows_unlike_merge(spark, "t", lake.names)
    assert [(each.gateway, each.row) for each in whole] == [("g", "row-1"), ("g", "row-2")]
    # No delta of the day produced the altered tombstone, so only the check of the whole history finds it.
    assert [each.row for each in rows_unlike_merge(spark, "t", lake.names, days=DAYS[:1])] == ["row-1"]
    assert rows_unlike_merge(spark, "t", lake.names, days=DAYS[1:]) == []
    (by_day,) = days_unlike_history(spark, "t", lake.names)
    assert (by_day.gateway, by_day.day, by_day.stored.rows, by_day.merged.rows) == ("g", DAYS[0].isoformat(), 1, 2)


def test_a_commit_during_the_check_is_no_difference(lake, spark, monkeypatch):
    """The rows are read at the snapshot to which the marks belong."""

    def read_then_commit(*args):
        version = read_version(*args)
        lake.sql("DELETE FROM {state}")
        return version

    monkeypatch.setattr(audit, "read_version", read_then_commit)
    assert days_unlike_history(spark, "t", lake.names) == []
    lake.repair()
    assert rows_unlike_merge(spark, "t", lake.names) == []


def test_deltas_that_were_merged_before_the_mark_moved_are_no_difference(lake, spark):
    day = DAYS[-1] + timedelta(days=1)
    (arrival,) = arrivals(day, 1)
    fill(spark, lake.names, [(arrival, [delta("UPDATE", "row-1", arrival, "b", title="later")])])
    merge_table(spark, TITLES, {"g": arrival}, days=[day], names=lake.names)  # not all days since the mark
    assert days_unlike_history(spark, "t", lake.names) == []
    lake.sql("DELETE FROM {state} WHERE _row = 'row-2'")
    assert [each.day for each in days_unlike_history(spark, "t", lake.names)] == [DAYS[0].isoformat()]


def test_an_altered_value_is_found_on_its_day(lake, spark):
    lake.sql(
        "UPDATE {state} SET _cells = map('title', named_struct('hlc', _cells['title'].hlc, 'client_id', 'a',"
        " 'delta_id', _cells['title'].delta_id, 'width', 1, 'value', '\"by hand\"')) WHERE _row = 'row-4'"
    )
    (found,) = days_unlike_history(spark, "t", lake.names)
    assert (found.day, found.stored.cells) == (DAYS[1].isoformat(), found.merged.cells)
    assert found.stored.cell_sum != found.merged.cell_sum


def test_a_duplicate_row_is_found(lake, spark):
    lake.sql("INSERT INTO {state} SELECT * FROM {state} WHERE _row = 'row-3'")
    found = duplicate_keys(spark, "t", lake.names)
    assert [(each.key, each.count) for each in found] == [("row-3", 2)]


def test_deltas_missing_from_the_ledger_are_a_difference(lake, spark):
    found = history_faults(spark, lake.store, lake.names, DAYS).differences
    assert [(each.day, each.ledger_count, each.lake_count) for each in found] == [
        (DAYS[0].isoformat(), 0, 3),
        (DAYS[1].isoformat(), 0, 5),
    ]


def test_differences_from_the_ledger_are_limited_in_number(lake, spark, monkeypatch):
    monkeypatch.setattr("lakehouse.checks.MAX_RESULTS", 1)
    (found,) = history_faults(spark, lake.store, lake.names, DAYS).differences
    assert found.day == DAYS[0].isoformat()


def test_duplicate_and_future_deltas_are_found_on_their_days_only(lake, spark):
    (arrival,) = arrivals(DAYS[1], 1, start=50_000)
    allowed = arrival + (MAX_DRIFT_MS << 16)
    early = [delta("UPDATE", "row-4", stamp, "c", title="early") for stamp in (allowed, allowed + (1 << 16))]
    fill(spark, lake.names, [(arrival, early), (arrival + 256, early[:1])])
    found = future_deltas(spark, lake.names)
    assert [(each.delta_id, each.ahead_ms) for each in found] == [(early[1].delta_id, MAX_DRIFT_MS + 1)]
    assert len(duplicate_deltas(spark, lake.names)) == 1
    assert future_deltas(spark, lake.names, days=DAYS[:1]) == []
    assert duplicate_deltas(spark, lake.names, days=DAYS[:1]) == []
    whole = history_faults(spark, lake.store, lake.names)
    assert [each.lake_count for each in whole.differences] == [3, 8]
    assert (whole.duplicates, whole.future) == (duplicate_deltas(spark, lake.names), found)
    of_a_day = history_faults(spark, lake.store, lake.names, DAYS[:1])
    assert [each.lake_count for each in of_a_day.differences] == [3]
    assert (of_a_day.duplicates, of_a_day.future) == ([], [])


def test_an_undamaged_history_is_checked_in_one_spark_job(lake, spark, spark_server):
    status = SparkStatus(spark_server["config"].spark.ui_url, spark.conf.get("spark.app.id"))
    spark.addTag("checks")
    faults = history_faults(spark, lake.store, lake.names, DAYS[:1])
    work = status.figures_of("checks")
    spark.removeTag("checks")
    assert [each.lake_count for each in faults.differences] == [3]
    assert len(work.jobs) == 1
    assert work.rows_read == 2 * 3


def test_frames_that_differ_from_their_snapshots_are_found(lake, spark):
    for file, content in lake.frames.items():
        file.write_bytes(content.replace(b"title", b"tilte"))
    changed = checkpoint_differences(spark, lake.checkpoint, lake.names)
    assert changed
    assert all("is not the snapshot's" in each.what for each in changed)
    for file, content in lake.frames.items():
        file.write_bytes(content[:-1])
    cut_short = [each.what for each in checkpoint_differences(spark, lake.checkpoint, lake.names)]
    assert len(cut_short) == 2
    assert "were written" in cut_short[0]
    assert "ends within the frame" in cut_short[1]
    lake.repair()
    assert checkpoint_differences(spark, lake.checkpoint, lake.names) == []
