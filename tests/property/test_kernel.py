"""M1 to M5 for the kernel that merges buckets: the same state as the Python merge, in one step or in several."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse.checkpoints.frame_files import frames
from lakehouse.history.decoding import DELTAS_ARROW, decode_log
from lakehouse.tables.kernel import STORED, merge
from lakehouse.tables.typed_columns import typed_values
from lakehouse.tables.verification import stored_row
from lakesync.feed import render
from lakesync.model.merge import RowState
from lakesync.model.types import SyncResponse
from lakesync.staging.log_reader import LogRange, LogRow
from lakesync.testing import strategies
from lakesync.wire.frames import read_checkpoint
from lakesync.wire.json import decode_deltas
from lakesync.wire.log import encode_body
from lakesync.wire.protobuf import decode_response, encode_response
from tests.spelling import spelled

VECTORS = Path(__file__).parents[1] / "vectors"


def history(deltas):
    """Rows of `deltas`, as decoded by a flush, in the kernel's form."""
    log = [LogRow(1, 256, encode_body(deltas))]
    return pa.Table.from_batches(decode_log(log, LogRange("g", "main", 1, 1, 1), "batch"), schema=DELTAS_ARROW)


def states(table):
    found = {}
    for row in table.to_pylist():
        state = stored_row("t", row).state
        assert row["_gone"] == (not state.visible)
        assert row["_row"] not in found
        found[row["_row"]] = spelled(state)
    return found


def python_merge(deltas):
    rows = {}
    for delta in deltas:
        rows.setdefault(delta.row_id, RowState()).merge(delta)
    return {row: spelled(state) for row, state in rows.items()}


def test_m5_the_merge_of_columns_agrees_with_the_vectors():
    for case in json.loads((VECTORS / "merge.json").read_text("utf-8")):
        deltas = [
            msgspec.structs.replace(each, row_id="r") for each in decode_deltas(json.dumps(case["deltas"]).encode())
        ]
        merged = states(merge(history(deltas), STORED.empty_table()).states)
        assert merged.get("r", spelled(RowState())) == case["state"], case["label"]


@settings(deadline=None, max_examples=60)
@given(
    deltas=st.lists(st.tuples(st.sampled_from("xyz"), strategies.conflicting_deltas()), min_size=1, max_size=25),
    at=st.integers(0, 25),
    apart=st.sampled_from([0, 1 << 58]),
    seed=st.integers(0, 99),
)
def test_m5_the_merge_of_columns_equals_that_of_rows_in_one_step_and_in_overlapping_steps(deltas, at, apart, seed):
    """`apart`: stamps whose differences do not fit one integer, and are ranked."""
    given_deltas = [
        msgspec.structs.replace(
            delta,
            row_id=row,
            hlc=delta.hlc + apart * (delta.hlc % 2),
            columns=() if delta.op == "DELETE" else delta.columns,
        )
        for row, delta in deltas
    ]
    expected = python_merge(given_deltas)
    once = merge(history(given_deltas), STORED.empty_table()).states
    assert states(once) == expected
    shuffled = list(given_deltas)
    random.Random(seed).shuffle(shuffled)
    first = merge(history(shuffled[:at]), STORED.empty_table()).states if at else STORED.empty_table()
    second = merge(history(shuffled[max(0, at - 3) :] or shuffled[:1]), first).states
    assert states(second) == expected
    empty = history(given_deltas[:1]).slice(0, 0)
    assert states(merge(empty, second).states) == expected


def test_sparse_rows_of_many_columns_take_little_memory():
    """The kernel must not allocate a cell for each of 2,000 rows times 600 columns."""
    rows = 2_000
    deltas = pa.table(
        {
            "gateway": ["g"] * rows,
            "row_id": [f"r{number}" for number in range(rows)],
            "op": ["INSERT"] * rows,
            "client_id": ["c"] * rows,
            "hlc": [1 << 50] * rows,
            "delta_id": [f"{number}" for number in range(rows)],
            "width": pa.array([1] * rows, pa.int32()),
            "columns": pa.array(
                [[(f"c{number % 600}", "1")] for number in range(rows)], pa.map_(pa.string(), pa.string())
            ),
            "arrival": [256] * rows,
        }
    )
    merged = merge(deltas, STORED.empty_table())
    assert len(merged.values) == rows
    again = merge(deltas, merged.states)
    assert again.states.equals(merged.states)


@pytest.mark.parametrize(
    ("kind", "fits"),
    [
        ("string", {'"a"': "a", '"q\\"\\n\\\\"': 'q"\n\\', '"é😀"': "é😀", '""': "", "1": None, "null": None}),
        (
            "number",
            {"1": 1.0, "-1.5e+300": -1.5e300, "0": 0.0, "5e-324": 5e-324, '"1"': None, "true": None, "null": None},
        ),
        ("boolean", {"true": True, "false": False, '"true"': None, "null": None, "0": None}),
        ("json", {'{"k":[1]}': '{"k":[1]}', '"t"': '"t"', "null": None}),
        ("null", {"1": None, "null": None}),
    ],
)
def test_texts_are_converted_to_the_type_of_their_column(kind, fits):
    texts = pa.array([*fits, None], pa.string())
    assert typed_values(texts, kind).to_pylist() == [*fits.values(), None]


@settings(deadline=None, max_examples=60)
@given(
    deltas=st.lists(
        st.tuples(st.sampled_from('xy"é'), strategies.deltas(stamps=st.integers(0, 3))), min_size=1, max_size=20
    ),
    limit=st.sampled_from([2_000, 16 << 20]),
)
def test_k1_frames_encode_rows_like_the_gateway(deltas, limit):
    """Also deltas with one stamp, trimmed deltas, rows without columns, and texts that JSON escapes."""
    rows = [msgspec.structs.replace(delta, row_id=row) for row, delta in deltas]
    merged = merge(history(rows), STORED.empty_table()).states.combine_chunks()
    cut = max(1, merged.num_rows // 2)
    batches = [*merged.slice(0, cut).to_batches(), *merged.slice(cut).to_batches()]
    shown = [stored_row("t", row) for row in merged.to_pylist() if not row["_gone"]]
    expected = [delta for row in shown for delta in render.insert(row)]
    made = list(frames(batches, "t", 512, limit=limit))
    assert sum(frame.rows for frame in made) == len(shown)
    read = [decode_response(message) for message in read_checkpoint(io.BytesIO(b"".join(f.data for f in made)))]
    assert [delta for response in read for delta in response.deltas] == expected
    if limit > 2_000 and expected:
        assert made[0].data[4:] == encode_response(SyncResponse(tuple(expected), 512))
