"""Iceberg data files, as tasks read them, without Spark."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse import data_files
from lakehouse.data_files import DataFile, deleted_rows, divide_files, read_rows, rows_in

SCHEMA = pa.schema([("row", pa.string()), ("size", pa.int64())])


@pytest.fixture
def file(tmp_path):
    """Ten row groups of ten rows, `r0` to `r99`."""
    rows = pa.table({"row": [f"r{number}" for number in range(100)], "size": range(100), "more": ["x"] * 100})
    pq.write_table(rows, tmp_path / "data.parquet", row_group_size=10)
    return DataFile(f"file:{tmp_path}/data.parquet", (), 100)


def deleting(file, tmp_path, *places):
    """The file with these rows deleted, and others of another file."""
    for number, part in enumerate((places[:1], places[1:])):
        paths = [file.path] * len(part) + ["file:/another.parquet"]
        table = pa.table({"file_path": paths, "pos": pa.array([*part, 5], pa.int64())})
        pq.write_table(table, tmp_path / f"deletes{number}.parquet")
    return file._replace(deletes=tuple(f"file:{tmp_path}/deletes{number}.parquet" for number in range(2)))


def rows_of(*arguments, **options):
    found = list(read_rows(*arguments, **options))
    return pa.concat_tables([SCHEMA.empty_table(), *found])["row"].to_pylist()


@pytest.mark.parametrize("batch", [7, 10, 1000])
def test_deleted_rows_are_left_out_wherever_batches_end(file, tmp_path, batch):
    gone = [0, 9, 10, 55, 99]
    found = rows_of(deleting(file, tmp_path, *gone), SCHEMA, batch_rows=batch)
    assert found == [f"r{number}" for number in range(100) if number not in gone]


def test_few_wide_rows_are_decoded_together(tmp_path, monkeypatch):
    """A column of an Arrow table has at most 2 GiB."""
    monkeypatch.setattr(data_files, "BYTES_AT_ONCE", 100_000)
    values = [f"{number:05d}" * 2000 for number in range(50)]
    rows = pa.table({"row": values, "size": range(50)})
    pq.write_table(rows, tmp_path / "wide.parquet", row_group_size=20, use_dictionary=False)
    found = list(read_rows(DataFile(f"file:{tmp_path}/wide.parquet", (), 50), SCHEMA))
    assert pa.concat_tables(found)["row"].to_pylist() == values
    assert max(each.nbytes for each in found) <= 110_000


def test_the_parts_of_a_file_cover_each_row_once(file, tmp_path):
    whole = deleting(file, tmp_path, 3, 42)
    parts = [row for first in range(3) for row in rows_of(whole._replace(first=first, every=3), SCHEMA)]
    assert sorted(parts) == sorted(rows_of(whole, SCHEMA))
    assert rows_of(whole._replace(first=11, every=12), SCHEMA) == []


def test_requested_rows_are_read_except_deleted_ones(file, tmp_path):
    wanted = pa.array(["r3", "r42", "r43", "nobody"])
    assert rows_of(deleting(file, tmp_path, 42), SCHEMA, key="row", wanted=wanted) == ["r3", "r43"]
    assert rows_of(file, SCHEMA, key="row", wanted=pa.array([], pa.string())) == []


def test_row_groups_without_a_value_are_skipped_by_their_statistics(tmp_path):
    tables = np.repeat(["a", "b", "c"], 10)
    pq.write_table(pa.table({"row": tables, "size": range(30)}), tmp_path / "t.parquet", row_group_size=10)
    file = DataFile(f"file:{tmp_path}/t.parquet")
    assert rows_of(file, SCHEMA, skip_without=("row", "b")) == ["b"] * 10
    assert rows_of(file, SCHEMA, skip_without=("row", "d")) == []


def test_columns_are_read_in_the_requested_types(file):
    (found,) = read_rows(file, pa.schema([("size", pa.int32())]))
    assert found.schema == pa.schema([("size", pa.int32())])


def test_only_deletes_of_the_same_file_apply(file, tmp_path):
    assert deleted_rows(deleting(file, tmp_path, 7, 3)).tolist() == [3, 7]
    assert deleted_rows(file).tolist() == []


def test_shares_cover_every_row_group_once_within_the_limit_of_rows():
    files = [DataFile("large", (), 1000), *(DataFile(f"small{number}", (), 30) for number in range(9))]
    found = divide_files(files, 100)
    assert sorted(each for share in found for each in share) == sorted(
        [DataFile("large", (), 1000, first, 10) for first in range(10)] + files[1:]
    )
    assert all(sum(each.rows // each.every for each in share) <= 100 for share in found)
    assert divide_files([], 100) == []
    assert rows_in(files) == 1270
