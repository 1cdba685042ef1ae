"""Checkpoint frames are bounded and have whole rows with true stamps; a file gets its name only when it is complete."""

import io
import resource
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from lakehouse.checkpoints.frame_files import frames, write_file
from lakesync.model.errors import ConfigurationError
from lakesync.wire.frame_storage import FrameFile
from lakesync.wire.frames import read_checkpoint
from lakesync.wire.protobuf import decode_response
from tests.property.test_full_disk import files_end_at

STAMP = pa.struct([("hlc", pa.int64()), ("client_id", pa.string())])
CELL = pa.struct(
    [
        ("hlc", pa.int64()),
        ("client_id", pa.string()),
        ("delta_id", pa.string()),
        ("width", pa.int32()),
        ("value", pa.string()),
    ]
)
SCHEMA = pa.schema(
    [
        ("_row", pa.string()),
        ("_cells", pa.map_(pa.string(), CELL)),
        ("_tombstone", STAMP),
        ("_inserted", STAMP),
        ("_gone", pa.bool_()),
        ("_arrival", pa.int64()),
    ]
)


def cell(hlc, value, *, client="a", identity=None, width=1):
    return {"hlc": hlc, "client_id": client, "delta_id": identity or f"id-{hlc}", "width": width, "value": value}


def row(name, cells, *, tombstone=None, inserted=None, gone=False, arrival=256):
    return {
        "_row": name,
        "_cells": cells,
        "_tombstone": tombstone,
        "_inserted": inserted,
        "_gone": gone,
        "_arrival": arrival,
    }


def batch(*rows):
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


def read(data):
    return [decode_response(message) for message in read_checkpoint(io.BytesIO(data))]


def test_a_rows_deltas_are_grouped_by_stamp_and_keep_the_ids_of_whole_deltas():
    cells = [
        ("x", cell(5, "1", identity="whole", width=2)),
        ("y", cell(5, "2", identity="whole", width=2)),
        ("z", cell(7, '"é"', client="b", identity="trimmed", width=2)),
    ]
    dead = {"hlc": 1, "client_id": "a"}
    (frame,) = frames([batch(row("r", cells, tombstone=dead), row("dead", [], tombstone=dead, gone=True))], "t", 512)
    (response,) = read(frame.data)
    assert (frame.rows, response.server_hlc, response.has_more) == (1, 512, False)
    spelled = [
        (delta.op, delta.row_id, delta.stamp, {c.column: bytes(c.value).decode() for c in delta.columns})
        for delta in response.deltas
    ]
    assert spelled == [("INSERT", "r", (5, "a"), {"x": "1", "y": "2"}), ("UPDATE", "r", (7, "b"), {"z": '"é"'})]
    assert response.deltas[0].delta_id == "whole"
    assert response.deltas[1].delta_id != "trimmed"


def test_a_row_without_columns_is_inserted():
    (frame,) = frames([batch(row("r", [], inserted={"hlc": 3, "client_id": "a"}))], "t", 512)
    (response,) = read(frame.data)
    assert [(delta.op, delta.stamp, delta.columns) for delta in response.deltas] == [("INSERT", (3, "a"), ())]


def test_k2_a_frame_is_bounded_and_never_splits_a_row():
    rows = [row(f"row-{number}", [("x", cell(1, "1")), ("y", cell(2, "2"))]) for number in range(100)]
    made = list(frames([batch(*rows[:30]), batch(*rows[30:])], "t", 512, limit=1000))
    assert len(made) > 5
    assert all(len(frame.data) <= 1004 for frame in made)
    assert sum(frame.rows for frame in made) == 100
    seen = []
    for response in read(b"".join(frame.data for frame in made)):
        assert response.server_hlc == 512
        inserts = [delta.row_id for delta in response.deltas if delta.op == "INSERT"]
        assert [delta.row_id for delta in response.deltas if delta.op == "UPDATE"] == inserts
        seen += inserts
    assert seen == [f"row-{number}" for number in range(100)]


def test_k2_a_frame_has_at_most_16_mb():
    rows = [row(f"row-{number}", [("x", cell(1, f'"{"a" * 100_000}"'))]) for number in range(170)]
    made = [frame.data for frame in frames([batch(*rows)], "t", 512)]
    assert [len(data) <= 4 + 16_000_000 for data in made] == [True, True]


def test_no_visible_row_makes_no_file_and_a_failure_leaves_no_partial_one(tmp_path):
    gone = batch(row("dead", [], tombstone={"hlc": 1, "client_id": "a"}, gone=True, arrival=1024))
    uri = (tmp_path / "t" / "00000.frames").as_uri()
    (written,) = write_file([gone], uri, "t", 2048).to_pylist()
    assert written == {"uri": "", "rows": 0, "bytes": 0, "highest_arrival": 1024}
    assert not list(tmp_path.rglob("*.frames"))

    def failing():
        yield batch(row("r", [("x", cell(1, "1"))]))
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="went away"):
        write_file(failing(), uri, "t", 2048)
    assert not list(tmp_path.rglob("*.frames*"))
    (written,) = write_file([batch(row("r", [("x", cell(1, "1"))])), gone], uri, "t", 2048).to_pylist()
    path = Path(urlsplit(uri).path)
    assert (written["rows"], written["bytes"], written["highest_arrival"]) == (1, path.stat().st_size, 1024)
    assert [delta.row_id for response in read(path.read_bytes()) for delta in response.deltas] == ["r"]


@pytest.mark.parametrize("as_uri", [False, True])
@pytest.mark.parametrize("folder", ["a b", "a%41b", "a#b", "a?b", "a:b"])
def test_frames_in_a_folder_with_any_name_are_read_where_they_were_written(tmp_path, folder, as_uri):
    path = tmp_path / folder / "00000.frames"
    uri = path.as_uri() if as_uri else str(path)
    write_file([batch(row("r", [("x", cell(1, "1"))]))], uri, "t", 2048)
    place = FrameFile(uri)
    place.check()
    with place.open() as file:
        assert file.read() == path.read_bytes()


@pytest.mark.parametrize("uri", ["file://tmp/x", "tmp/x", "ftp://host/x", ""])
def test_a_frame_elsewhere_is_rejected(uri):
    with pytest.raises(ConfigurationError, match="neither on a local disk nor on S3"):
        FrameFile(uri)


@pytest.mark.parametrize("uri", ["file:///data/a#b/x", "file:///data/a?b/x"])
def test_a_frame_whose_path_is_not_percent_encoded_is_rejected(uri):
    with pytest.raises(ConfigurationError, match="write %3F or %23"):
        FrameFile(uri)


def test_k3_a_full_disk_leaves_no_partial_file_and_a_retry_writes_it(tmp_path):
    uri = (tmp_path / "t" / "00000.frames").as_uri()
    rows = batch(*[row(f"r{number}", [("x", cell(1, '"' + "x" * 500 + '"'))]) for number in range(200)])
    try:
        files_end_at(20_000)
        with pytest.raises(OSError, match="File too large"):
            write_file([rows], uri, "t", 2048)
    finally:
        files_end_at(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    assert not list(tmp_path.rglob("*.frames*"))
    (written,) = write_file([rows], uri, "t", 2048).to_pylist()
    assert written["rows"] == 200
    assert written["bytes"] == Path(urlsplit(uri).path).stat().st_size
