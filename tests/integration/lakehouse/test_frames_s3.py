"""Checkpoint frames on S3: written by a task, checked and read by the gateway, with one frame in memory at a time."""

from __future__ import annotations

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.checkpoint_frames import frame_files, visible_frames
from lakehouse.checkpoints.frame_files import link_frames, write_file
from lakehouse.checkpoints.publication import delete_checkpoint_files
from lakehouse.data_files import DataFile, read_rows
from lakehouse.erasure.coverage import delete_files, leftovers_in_file
from lakehouse.tables.kernel import CELL, STAMP, STORED
from lakesync.model.errors import ConfigurationError
from lakesync.rules.model import parse_rules
from lakesync.staging.records import Checkpoint, CheckpointTable, Erasure
from lakesync.wire.frame_storage import FrameFile, s3_file_system
from lakesync.wire.frames import encode_checkpoint_frame
from lakesync.wire.protobuf import decode_response

OWN = parse_rules(
    {
        "version": 1,
        "buckets": [{"name": "own", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "red"}]}],
    }
)


@pytest.fixture
def bucket(aws):
    boto3.client("s3").create_bucket(Bucket="frames")
    return "s3://frames/checkpoints"


def states(count):
    """Rows of a state table, half of them of the red team."""
    rows = [
        {
            "_row": f"r{number}",
            "_cells": [
                (
                    "team",
                    {"hlc": 1, "client_id": "a", "delta_id": "d", "width": 1, "value": ['"red"', '"blue"'][number % 2]},
                )
            ],
            "_tombstone": None,
            "_inserted": {"hlc": 1, "client_id": "a"},
            "_gone": False,
            "_arrival": 256,
        }
        for number in range(count)
    ]
    fields = {"_row": pa.string(), "_cells": pa.map_(pa.string(), CELL), "_tombstone": STAMP, "_inserted": STAMP}
    schema = pa.schema([*fields.items(), ("_gone", pa.bool_()), ("_arrival", pa.int64())])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def test_frames_written_by_a_task_are_served(bucket):
    written = write_file([states(50)], f"{bucket}/g/1-256/t/00000.frames", "t", 256).to_pylist()[0]
    assert (written["rows"], written["highest_arrival"]) == (50, 256)
    checkpoint = Checkpoint("g", 1, 256, 0, (CheckpointTable("t", 1, 50, (written["uri"],), written["bytes"]),), 0)
    whole = list(visible_frames(frame_files(checkpoint), None, {"sub": "bob"}))
    assert sum(map(len, whole)) == written["bytes"]
    (frame,) = visible_frames(frame_files(checkpoint), OWN, {"sub": "bob"})
    shown = decode_response(frame[4:]).deltas
    assert [delta.row_id for delta in shown] == [f"r{number}" for number in range(0, 50, 2)]
    assert encode_checkpoint_frame(whole[0][4:]) == whole[0]


def test_a_missing_frame_is_reported_by_its_uri(bucket):
    gone = CheckpointTable("t", 1, 1, (f"{bucket}/nowhere.frames",), 1)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.frames"):
        frame_files(Checkpoint("g", 1, 256, 0, (gone,), 0))
    with pytest.raises(ConfigurationError, match="neither on a local disk nor on S3"):
        FrameFile("ftp://host/file")


def test_the_frames_of_an_unchanged_table_are_copied_and_an_erasure_deletes_the_older_frames(bucket):
    written = write_file([states(5)], f"{bucket}/g/1-256/t/00000.frames", "t", 256).to_pylist()[0]
    (copied,) = link_frames([written["uri"]], f"{bucket}/g/1-512/t")
    assert copied == f"{bucket}/g/1-512/t/00000.frames"
    assert link_frames([f"{bucket}/g/1-128/t/00000.frames"], f"{bucket}/g/1-512/u") is None
    assert delete_checkpoint_files(bucket, "g", 512) == ["frames/checkpoints/g/1-256"]
    FrameFile(copied).check()
    with pytest.raises(FileNotFoundError):
        FrameFile(written["uri"]).check()


def test_leftovers_of_an_erased_client_in_files_on_s3_are_found(bucket):
    table = f"{bucket.replace('checkpoints', 'warehouse')}/tables/t"
    rows = pa.Table.from_batches([states(4)]).append_column("_gateway", pa.array(["g"] * 4))
    with s3_file_system().open_output_stream(f"{table.removeprefix('s3://')}/data/part.parquet") as sink:
        pq.write_table(rows, sink)
    asked = Erasure("g", 1, None, None, "a", hlc=9, arrival=256, requested_ms=0)
    path = f"{table.removeprefix('s3://')}/data/part.parquet"
    (found,) = leftovers_in_file(s3_file_system(), path, [asked], history=False)
    assert (found.seq, found.rows, found.path) == (1, 4, "frames/warehouse/tables/t/data/part.parquet")
    places = pa.table({"file_path": [f"{table}/data/part.parquet"] * 2, "pos": pa.array([2, 0], pa.int64())})
    with s3_file_system().open_output_stream(f"{table.removeprefix('s3://')}/data/deletes.parquet") as sink:
        pq.write_table(places, sink)
    file = DataFile(f"{table}/data/part.parquet", (f"{table}/data/deletes.parquet",))
    (left,) = read_rows(file, STORED)
    assert left["_row"].to_pylist() == ["r1", "r3"]
    delete_files(table, [found.path])
    with pytest.raises(OSError, match=r"part\.parquet"):
        list(leftovers_in_file(s3_file_system(), path, [asked], history=False))
