"""Files that tasks write, and their commits on top of the snapshot that was read, without Spark."""

import sqlite3
from contextlib import closing
from datetime import date

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import BooleanType, DateType, DoubleType, LongType, MapType, NestedField, StringType, StructType

from lakehouse.commits import MovedError, commit_files
from lakehouse.data_files import DataFiles, find_rows, places_of, read_buckets, read_files
from lakehouse.history.decoding import DELTAS_ARROW
from lakehouse.history.log_files import bucketed, partition_of
from lakehouse.row_delta import MANIFESTS
from lakehouse.table_files import DELETES, Layout, data_files, write_data_file

DAY = date(2026, 11, 22)
STAMP = StructType(NestedField(20, "hlc", LongType()), NestedField(21, "client_id", StringType()))
CELLS = MapType(10, StringType(), 11, STAMP, value_required=False)
FIELDS = [
    NestedField(1, "gateway", StringType()),
    NestedField(2, "day", DateType()),
    NestedField(3, "batch_id", StringType()),
    NestedField(4, "cells", CELLS),
    NestedField(5, "size", DoubleType()),
    NestedField(6, "gone", BooleanType()),
]
SPEC = PartitionSpec(
    PartitionField(1, 1000, BucketTransform(4), "gateway_bucket"), PartitionField(2, 1001, IdentityTransform(), "day")
)


@pytest.fixture
def table(tmp_path):
    catalogue = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalogue.create_namespace("lakesync")
    properties = {"write.metadata.metrics.column.batch_id": "full", "commit.retry.num-retries": "10"}
    yield catalogue.create_table("lakesync.t", Schema(*FIELDS), partition_spec=SPEC, properties=properties)
    catalogue.close()


def rows(batch, count=3):
    cells = [[("a", {"hlc": number, "client_id": "c"})] if number else [] for number in range(count)]
    names = [each.name for each in FIELDS]
    sizes, gone = [0.5, None, 2.0][:count], [True, False, None][:count]
    columns = [["g"] * count, [DAY] * count, [batch] * count, cells, sizes, gone]
    return dict(zip(names, columns, strict=True))


def written(table, batch, count=3):
    layout = Layout.of(table)
    folder, values = partition_of(table, "g", DAY)
    told = write_data_file(layout, folder, [pa.table(rows(batch, count), layout.schema)])
    return data_files(table, pa.Table.from_batches([told]), lambda _: values)


def replaced(table, snapshot, batch, by):
    """Commit one row of a batch anew beside the others, under another name."""
    rows = pa.schema([("batch_id", pa.string())])
    files = DataFiles.of(list(table.refresh().scan(snapshot_id=snapshot).plan_files()))
    (found, *_) = find_rows(files, rows, "batch_id", pa.array([batch]))
    folder, values = partition_of(table, "g", DAY)
    layout = Layout(DELETES, Layout.of(table).folder, ("file_path",))
    told = write_data_file(layout, folder, [places_of([found._replace(places=found.places[:1])])])
    deletes = data_files(table, pa.Table.from_batches([told]), lambda _: values, deletes=True)
    return commit_files(table, snapshot, written(table, by, 1), deletes=deletes)


def planned(table, batch):
    return table.scan(row_filter=f"batch_id == '{batch}'").plan_files()


def held(table):
    return sorted(table.refresh().scan().to_arrow()["batch_id"].to_pylist())


def test_what_is_committed_is_read_by_its_fields_and_found_by_its_bounds(table):
    long = "b" * 40
    first = commit_files(table, None, written(table, f"{long}1"))
    table.refresh()
    second = commit_files(table, first, written(table, f"{long}2"))
    assert table.refresh().current_snapshot().snapshot_id == second
    assert table.current_snapshot().parent_snapshot_id == first
    found = table.scan(row_filter=f"batch_id == '{long}2' and gateway == 'g' and day == '{DAY}'")
    (task,) = found.plan_files()
    assert set(task.file.lower_bounds) == {1, 2, 3, 5, 6}  # of what is in a map nobody asks
    expected = rows(f"{long}2")
    assert {name: found.to_arrow()[name].to_pylist() for name in expected} == expected
    assert table.current_snapshot().summary["total-records"] == "6"


def test_a_commit_goes_on_top_of_what_was_read_or_nowhere(table):
    """Both have loaded the table where it was empty."""
    other = table.catalog.load_table("lakesync.t")
    commit_files(table, None, written(table, "one"))
    metadata = table.refresh().metadata_location
    for late in (other, table):
        with pytest.raises(MovedError):
            commit_files(late, None, written(late, "two"))
    assert held(table) == ["one"] * 3
    assert table.metadata_location == metadata


def test_a_catalogue_that_others_hold_is_not_committed_to(table, tmp_path):
    with table.catalog.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 1")
    files = written(table, "one")
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(MovedError, match="locked"):
            commit_files(table, None, files)
    commit_files(table, None, files)
    assert held(table) == ["one"] * 3


def test_files_take_the_place_of_others(table):
    snapshot = commit_files(table, None, [*written(table, "one"), *written(table, "two", 2)])
    first, second = (task.file for batch in ("one", "two") for task in planned(table.refresh(), batch))
    commit_files(table, snapshot, written(table, "three", 1), [first])
    assert held(table) == ["three", "two", "two"]
    with pytest.raises(MovedError):
        commit_files(table, snapshot, written(table, "four"), [second])
    assert held(table) == ["three", "two", "two"]


@pytest.mark.parametrize("count", [20_000, 50])
def test_a_file_of_the_history_keeps_buckets_apart_where_it_is_large(tmp_path, count):
    names = [f"row-{number}" for number in range(count)]
    columns = {name: pa.nulls(count, kind) for name, kind in zip(DELTAS_ARROW.names, DELTAS_ARROW.types, strict=True)}
    history = pa.table({**columns, "row_id": names}, DELTAS_ARROW)
    groups, properties = bucketed(history)
    told = write_data_file(Layout(DELTAS_ARROW, f"file://{tmp_path}"), "p=1", groups, properties)
    files = DataFiles((told["path"][0].as_py(),), (), count)
    picked = pa.schema([DELTAS_ARROW.field("row_id")])
    everything = pa.concat_tables(read_files(files, picked))["row_id"].to_pylist()
    assert sorted(everything) == sorted(names)
    parts = list(read_buckets(files, picked, range(0, 8, 2))) + list(read_buckets(files, picked, range(1, 8, 2)))
    if count < 1_000:
        assert [bucket for bucket, _ in parts] == [None, None]
        return
    assert sorted(bucket for bucket, _ in parts) == list(range(8))
    assert sorted(row for _, part in parts for row in part["row_id"].to_pylist()) == sorted(names)


def test_rows_replaced_beside_their_files_are_read_once_and_few_manifests_name_those_deleted(table):
    first = snapshot = commit_files(table, None, written(table, "old", 3))
    for number in range(MANIFESTS + 3):
        snapshot = replaced(table, snapshot, "old" if number == 0 else f"new{number - 1}", f"new{number}")
    expected = [f"new{number}", "old", "old"]
    assert held(table) == expected
    tasks = list(table.scan().plan_files())
    rows = pa.schema([("batch_id", pa.string())])
    assert sorted(pa.concat_tables(read_files(DataFiles.of(tasks), rows))["batch_id"].to_pylist()) == expected
    of_deletes = [each for each in table.current_snapshot().manifests(table.io) if each.content == 1]
    assert len(of_deletes) < MANIFESTS
    assert sum(each.added_files_count + each.existing_files_count for each in of_deletes) == MANIFESTS + 3
    summary = table.current_snapshot().summary
    assert (summary["total-records"], summary["total-position-deletes"]) == (f"{MANIFESTS + 6}", f"{MANIFESTS + 3}")
    assert table.scan(snapshot_id=first).to_arrow()["batch_id"].to_pylist() == ["old"] * 3

    removed = [task.file for task in tasks]
    commit_files(table, snapshot, written(table, "whole", 2), removed)  # what said which were deleted says nothing now
    assert held(table) == ["whole"] * 2
    with pytest.raises(MovedError):
        replaced(table, first, "old", "late")
