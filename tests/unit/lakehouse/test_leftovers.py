"""Rows and files in a table's folder that an erasure still has to remove.

Paths are those of Iceberg's metadata, which are not percent-encoded.
"""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from lakehouse.erasure.coverage import delete_files, find_leftovers, leftovers_in_file, unreferenced_files
from lakesync.model.errors import LakeUnavailableError
from lakesync.staging.records import Erasure


@pytest.mark.parametrize("folder", ["plain", "a b", "a%41b", "a#b", "a?b"])
def test_files_that_no_snapshot_references_are_found_in_a_folder_with_any_name(tmp_path, folder):
    data = tmp_path / folder / "rejected" / "data"
    data.mkdir(parents=True)
    kept, orphan = data / "kept.parquet", data / "orphan.parquet"
    for file in (kept, orphan):
        file.touch()
    location = f"file://{data.parent}"
    found = unreferenced_files(location, [f"file:{kept}"])
    assert found == [str(orphan)]
    delete_files(location, found)
    assert sorted(data.iterdir()) == [kept]


HISTORY = pa.schema(
    [
        *((name, pa.string()) for name in ("gateway", "shard", "table_name", "row_id", "op", "client_id")),
        *(("hlc", pa.int64()), ("width", pa.int32()), ("columns", pa.map_(pa.string(), pa.string()))),
    ]
)
STAMP = pa.struct([("hlc", pa.int64()), ("client_id", pa.string())])
CELL = pa.struct([*STAMP, ("value", pa.string())])
STATES = pa.schema(
    [
        *(("_gateway", pa.string()), ("_row", pa.string())),
        *(("_cells", pa.map_(pa.string(), CELL)), ("_inserted", STAMP)),
    ]
)


@pytest.mark.parametrize(
    ("op", "width", "columns", "left"),
    [
        ("INSERT", 0, {}, 1),  # without columns it still makes its row visible
        ("UPDATE", 1, {"title": '"x"'}, 1),
        ("UPDATE", 2, {}, 1),
        ("UPDATE", 0, {}, 0),
        ("DELETE", 0, {}, 0),
    ],
)
def test_a_covered_delta_is_left_until_it_is_emptied(tmp_path, op, width, columns, left):
    of_ann = {"gateway": "g", "shard": "main", "table_name": "notes", "row_id": "r", "op": op, "client_id": "ann"}
    delta = {**of_ann, "hlc": 9, "width": width, "columns": [*columns.items()]}
    later = {**delta, "hlc": 10, "op": "INSERT"}
    assert rows_left(tmp_path, [delta, later], HISTORY, history=True) == left


@pytest.mark.parametrize(
    ("inserted", "left"),
    [(None, 0), ({"hlc": 9, "client_id": "ann"}, 1), ({"hlc": 9, "client_id": "bob"}, 0)],
)
def test_a_state_row_with_a_covered_insert_is_left(tmp_path, inserted, left):
    of_bob = [("title", {"hlc": 1, "client_id": "bob", "value": '"x"'})]
    row = {"_gateway": "g", "_row": "r", "_cells": of_bob, "_inserted": inserted}
    assert rows_left(tmp_path, [row], STATES, history=False) == left


def test_an_unreadable_file_is_reported_as_an_unavailable_lake(tmp_path, monkeypatch):
    def run_here(_spark, count, part, schema):
        return SimpleNamespace(
            toArrow=lambda: pa.Table.from_batches((b for n in range(count) for b in part(n)), schema)
        )

    monkeypatch.setattr("lakehouse.erasure.coverage.in_tasks", run_here)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cut.parquet").write_bytes(b"PAR1")
    request = Erasure("g", 1, None, None, "ann", hlc=9, arrival=256, requested_ms=0)
    with pytest.raises(LakeUnavailableError, match=r"cut\.parquet cannot be read .* the erasure cannot be proven"):
        find_leftovers(None, f"file://{tmp_path}", [request], history=True)


def rows_left(folder, rows, schema, *, history):
    """The rows that an erasure of the client `ann` up to hlc 9 finds in a file."""
    path = str(folder / "part.parquet")
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    request = Erasure("g", 1, None, None, "ann", hlc=9, arrival=256, requested_ms=0)
    found = leftovers_in_file(pafs.LocalFileSystem(), path, [request], history=history)
    return sum(each.rows for each in found)
