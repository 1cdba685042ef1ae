"""B4: state tables equal the merge of `deltas`, however often steps are repeated."""

import random

import pytest

from lakehouse.checks import duplicate_keys
from lakehouse.table_access import open_table
from lakehouse.tables import slices, writes
from lakehouse.tables.merging import forget_marks, merge_table
from lakesync.model.schema import parse_schema
from tests.integration.lakehouse.state_support import DAYS, FIRST, content, delta, lake, merged, random_history, schema
from tests.lake_support import arrivals, fill

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


SLICES = ("ROWS_PER_SLICE", slices.ROWS_PER_SLICE), ("ROWS_PER_SLICE", 3)
"""How a merge is divided into slices: into one, and by rows."""
BY_BYTES = ("BYTES_PER_SLICE", 500)
"""A division by bytes, as if the rows were wide."""


@pytest.mark.parametrize(("limit", "value"), [*SLICES, BY_BYTES])
def test_b4_state_equals_the_merge_of_deltas_in_any_steps(spark, names, monkeypatch, limit, value):
    monkeypatch.setattr(slices, limit, value)
    rng = random.Random(1)
    one, two = random_history(rng, "one"), random_history(rng, "two")
    fill(spark, names, one, "one")
    fill(spark, names, two, "two")
    expected = merged(one, "one") | merged(two, "two")
    last = {"one": one[-1][0], "two": two[-1][0]}

    middle = {"one": one[7][0], "two": two[3][0]}
    first = merge_table(spark, schema(), middle, names=names)
    assert first.marks == middle
    assert lake(spark, names) == merged(one[:8], "one") | merged(two[:4], "two")
    report = merge_table(spark, schema(), last, names=names)
    assert (report.deltas_in, report.marks) == (5 * (len(one) - 8 + len(two) - 4), last)
    assert lake(spark, names) == expected
    assert not duplicate_keys(spark, "t", names)

    again = merge_table(spark, schema(), last, names=names)
    assert (again.deltas_in, again.rows_merged, again.snapshot_id) == (0, 0, report.snapshot_id)

    before = content(spark, names)
    forget_marks(spark, "t", names)
    for days in ([DAYS[2]], [DAYS[0], DAYS[1]]):
        assert merge_table(spark, schema(), last, days=days, names=names).marks == {}
    assert content(spark, names) == before
    assert merge_table(spark, schema(), last, names=names).marks == last
    assert content(spark, names) == before

    merge_table(spark, schema(), last, rebuild=True, names=names)
    assert content(spark, names) == before

    alone = merge_table(spark, schema(), {"two": last["two"]}, rebuild=True, names=names)
    assert alone.deltas_in == 5 * len(two)
    assert content(spark, names) == before


@pytest.mark.parametrize(("limit", "value"), [*SLICES, pytest.param(*BY_BYTES, marks=pytest.mark.deep)])
def test_b4_merge_on_read_equals_copy_on_write(spark, names, monkeypatch, limit, value):
    monkeypatch.setattr(slices, limit, value)
    rng = random.Random(2)
    pushes = random_history(rng, "g", pushes_a_day=9)
    fill(spark, names, pushes)
    merge_table(spark, schema(), {"g": pushes[3][0]}, names=names)
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: True)
    for arrival, _ in pushes[8::9]:
        report = merge_table(spark, schema(), {"g": arrival}, names=names)
        assert report.rows_merged
        assert (report.duplicates, report.differences) in {(0, 0), (None, None)}
    assert {row["name"] for row in spark.table(f"{names.state('t')}.refs").collect()} == {"main"}
    with open_table(spark, names.state("t")) as table:
        assert any(task.delete_files for task in table.scan().plan_files())
        assert {row["_row"]: row["_arrival"] for row in table.scan().to_arrow().to_pylist()} == {
            row["_row"]: row["_arrival"] for row in spark.table(names.state("t")).collect()
        }
        assert table.scan().to_arrow().num_rows == spark.table(names.state("t")).count()
    summaries = spark.table(f"{names.state('t')}.snapshots").select("summary").collect()
    assert len(summaries) > 3
    assert {row["summary"]["engine-name"] for row in summaries} == {"spark"}
    assert lake(spark, names) == merged(pushes, "g")
    before = content(spark, names)
    merge_table(spark, schema(), {"g": pushes[-1][0]}, rebuild=True, names=names)
    assert content(spark, names) == before


@pytest.mark.parametrize(("small", "point"), [(False, "tables.planned"), (True, "tables.on_branch")])
def test_b4_a_killed_merge_leaves_the_old_table(spark, names, monkeypatch, small, point):
    pushes = random_history(random.Random(4), "g", pushes_a_day=4)
    last = {"g": pushes[-1][0]}
    fill(spark, names, pushes)
    merge_table(spark, schema(), {"g": pushes[5][0]}, names=names)
    before = content(spark, names)
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: small)

    def die(reached):
        if reached == point:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writes, "crash_point", die)
        with pytest.raises(KeyboardInterrupt):
            merge_table(spark, schema(), last, names=names)
    assert content(spark, names) == before
    merge_table(spark, schema(), last, names=names)
    assert lake(spark, names) == merged(pushes, "g")
    assert {row["name"] for row in spark.table(f"{names.state('t')}.refs").collect()} == {"main"}


def test_b4_a_rebuild_repairs_a_damaged_table(spark, names):
    pushes = random_history(random.Random(4), "g", pushes_a_day=4)
    last = {"g": pushes[-1][0]}
    fill(spark, names, pushes)
    merge_table(spark, schema(), last, names=names)
    before = content(spark, names)
    spark.sql(f"DELETE FROM {names.state('t')} WHERE _row IN (SELECT max(_row) FROM {names.state('t')})")
    assert content(spark, names) != before
    assert merge_table(spark, schema(), last, rebuild=True, names=names).rows_merged == len(merged(pushes, "g"))
    assert content(spark, names) == before


def test_a_growing_table_gets_more_buckets(spark, names, monkeypatch):
    monkeypatch.setattr(writes, "ROWS_PER_BUCKET", 2)
    pushes = random_history(random.Random(5), "g", pushes_a_day=4)
    fill(spark, names, pushes)
    for arrival in (pushes[0][0], pushes[5][0], pushes[-1][0]):
        merge_table(spark, schema(), {"g": arrival}, names=names)
    with open_table(spark, names.state("t")) as table:
        assert writes.buckets_of(table) > 2
        assert {task.file.spec_id for task in table.scan().plan_files()} == {table.spec().spec_id}
    assert lake(spark, names) == merged(pushes, "g")
    # deletes beside files of an older partition spec
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: True)
    late = [(arrivals(DAYS[-1], 1, start=86_000)[0], [delta("UPDATE", "g-1", 99, title="late")])]
    fill(spark, names, late)
    merge_table(spark, schema(), {"g": late[0][0]}, names=names)
    assert lake(spark, names) == merged([*pushes, *late], "g")


def test_a_duplicate_row_is_reported_and_repaired(spark, names):
    first, second = arrivals(FIRST, 2)
    fill(spark, names, [(first, [delta("INSERT", "r", 1, title="x"), delta("INSERT", "s", 1, title="y")])])
    merge_table(spark, schema(), {"g": first}, names=names)
    spark.table(names.state("t")).where("_row = 'r'").writeTo(names.state("t")).append()
    assert duplicate_keys(spark, "t", names)
    fill(spark, names, [(second, [delta("UPDATE", "s", 2, title="z")])])
    assert merge_table(spark, schema(), {"g": second}, names=names).duplicates == 1
    assert not duplicate_keys(spark, "t", names)


def test_a_deleted_row_stays_in_the_state_table_with_its_tombstone(spark, names):
    first, second, third = arrivals(FIRST, 3)
    declared = {"table": "t", "columns": [{"name": "title", "type": "string"}], "sourceTable": "t_there"}
    fill(spark, names, [(first, [delta("INSERT", "r", 5, title="x"), delta("INSERT", "kept", 5, title="y")])])
    fill(spark, names, [(second, [delta("DELETE", "r", 7, client="b")])], gateway="g")
    fill(spark, names, [(second, [delta("INSERT", "r", 5, title="of another")])], gateway="other")
    upto = {"g": second, "other": second}
    for soft in (True, False):
        merge_table(spark, parse_schema({**declared, "softDelete": soft}), upto, rebuild=True, names=names)
        rows = spark.table(names.state("t")).where("_gateway = 'g'").collect()
        gone = {row["_row"]: (row["_gone"], row["_tombstone"], row["title"]) for row in rows}
        assert gone == {"r": (True, (7, "b"), None), "kept": (False, None, "y")}
    assert [row["title"] for row in spark.table(names.state("t")).where("_gateway = 'other'").collect()] == [
        "of another"
    ]
    assert not spark.catalog.tableExists(names.state("t_there"))
    fill(spark, names, [(third, [delta("INSERT", "r", 9, title="again")])])
    merge_table(spark, schema({"title": "string"}), {"g": third}, names=names)
    (row,) = spark.table(names.state("t")).where("_gateway = 'g' AND _row = 'r'").collect()
    assert (row["_gone"], row["title"]) == (False, "again")


def test_a_merge_without_deltas_creates_an_empty_table_and_no_snapshot(spark, names):
    report = merge_table(spark, schema(), {}, names=names)
    assert (report.deltas_in, report.snapshot_id, report.marks) == (0, None, {})
    assert merge_table(spark, schema(), {"g": arrivals(FIRST, 1)[0]}, names=names).snapshot_id is None
