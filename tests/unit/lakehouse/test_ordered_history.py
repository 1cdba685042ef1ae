"""The history in order of arrival, as a task reads it: every delta once and in order, with any memory limit."""

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DateType, IntegerType, LongType, MapType, NestedField, StringType

from lakehouse.history import ordered as ordered_history
from lakehouse.history.decoding import DELTAS_ARROW, day_of
from lakehouse.history.ordered import arrival_ranges, in_order, latest_arrivals, ordered
from lakesync.adapters.deltas import Part
from lakesync.adapters.transfer.follower import DeltaSelection
from lakesync.model.errors import IntegrityError

DAY_START = 1_790_000_000_000 << 16
ICEBERG = {pa.string(): StringType(), pa.int64(): LongType(), pa.int32(): IntegerType(), pa.date32(): DateType()}
COLUMNS = MapType(100, StringType(), 101, StringType(), value_required=False)
FIELDS = [
    NestedField(number, field.name, ICEBERG.get(field.type, COLUMNS)) for number, field in enumerate(DELTAS_ARROW, 1)
]
SPEC = PartitionSpec(
    PartitionField(1, 1000, BucketTransform(4), "gateway_bucket"), PartitionField(8, 1001, IdentityTransform(), "day")
)
PLACES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 3)), unique=True, max_size=60)


@settings(max_examples=60, deadline=None)
@given(PLACES, st.integers(1, 9), st.integers(1, 20))
@example([(number * 7 % 300, 0, 0) for number in range(300)], 1, 1)  # more parts than are read concurrently
def test_rows_are_read_in_order_with_any_size_of_parts(places, chunk, part):
    tables = [
        pa.table(dict(zip(("arrival", "seq", "ordinal"), map(list, zip(*some, strict=True)), strict=True)))
        for some in (places[start : start + chunk] for start in range(0, len(places), chunk))
    ]
    segments = [
        segment for table in tables for segment in (table, table.slice(0, 0))
    ]  # no row of the latter is selected
    found = [tuple(row.values()) for table in ordered(segments, part) for row in table.to_pylist()]
    assert found == sorted(places)


def test_wide_rows_are_sorted_in_smaller_parts(monkeypatch):
    monkeypatch.setattr(ordered_history, "_BYTES_IN_MEMORY", 100_000)
    monkeypatch.setattr(ordered_history, "_BATCH_BYTES", 20_000)
    numbers = [number * 7 % 400 for number in range(400)]
    tables = [
        pa.table({"arrival": [number], "seq": [0], "ordinal": [0], "columns": ["x" * 5000]}) for number in numbers
    ]
    found = list(ordered(tables, 25_000))
    assert pa.concat_tables(found)["arrival"].to_pylist() == list(range(400))
    assert max(each.nbytes for each in found) < 1_000_000


@pytest.fixture
def history(tmp_path):
    catalogue = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalogue.create_namespace("lakesync")
    properties = {f"write.metadata.metrics.column.{name}": "full" for name in ("batch_id", "gateway", "table_name")}
    yield catalogue.create_table("lakesync.deltas", Schema(*FIELDS), partition_spec=SPEC, properties=properties)
    catalogue.close()


def deltas(shard, numbers, tables=("notes", "events"), gateway="g"):
    """A push for each delta."""
    arrivals = [DAY_START + 256 * number for number in numbers]
    size = len(arrivals)
    columns = {
        "gateway": [gateway] * size,
        "shard": [shard] * size,
        "epoch": [1] * size,
        "batch_id": [f"b{number // 10}" for number in numbers],
        "seq": list(numbers),
        "ordinal": [0] * size,
        "arrival": arrivals,
        "day": [day_of(DAY_START)] * size,
        "table_name": [tables[number % len(tables)] for number in numbers],
        "row_id": [f"r{number}" for number in numbers],
        "op": ["INSERT"] * size,
        "client_id": ["c"] * size,
        "hlc": arrivals,
        "delta_id": [f"{number:064x}" for number in numbers],
        "width": [1] * size,
        "columns": [[("x", str(number))] for number in numbers],
    }
    return pa.table([pa.array(columns[field.name], field.type) for field in DELTAS_ARROW], DELTAS_ARROW)


def commit(table, *files):
    """Commit each in a separate file."""
    for rows in files:
        table.append(rows)
    return table.catalog.load_table(table.name())


def read(table, after, choice, part=7, until=None):
    snapshot = table.current_snapshot().snapshot_id
    until = latest_arrivals(table, snapshot) | (until or {})
    found = arrival_ranges(table, snapshot, after, until)
    batches = in_order(found, after, until, choice, ("shard", "arrival", "columns"), part)
    return found, [(row["shard"], dict(row["columns"])["x"]) for batch in batches for row in batch.to_pylist()]


def test_files_are_read_in_order_of_arrival_beyond_the_marks(history):
    joined = deltas("main", [*range(20, 30), *range(40, 50)])
    table = commit(history, deltas("main", range(30, 40)), deltas("main", range(20)), deltas("two", range(12)), joined)
    after = {"g/main": DAY_START + 256 * 4, "g/two": DAY_START + 256 * 99}
    found, rows = read(table, after, DeltaSelection())
    assert [(stretch.shard, len(stretch.files)) for stretch in found] == [("main", 1), ("main", 2)]
    assert [stretch.deltas_beyond(after["g/main"]) for stretch in found] == [pytest.approx(15, abs=1), 30]
    assert found[0].deltas_beyond(DAY_START + 256 * 19) == 0
    assert rows == [("main", str(number)) for number in range(5, 50)]
    assert read(table, {"g/main": -1, "g/two": -1}, DeltaSelection(tables=("notes",), without=("events",)))[1] == [
        *(("main", str(number)) for number in range(0, 50, 2)),
        *(("two", str(number)) for number in range(0, 12, 2)),
    ]
    assert read(table, {"g/main": -1}, DeltaSelection(without=("notes",), gateways=("other",)))[1] == []
    assert read(table, {}, DeltaSelection()) == ([], [])
    last = {"g/main": DAY_START + 256 * 49, "g/two": DAY_START + 256 * 11}
    assert latest_arrivals(table, table.current_snapshot().snapshot_id) == last


def test_the_parts_of_a_load_read_disjoint_rows_up_to_its_end(history):
    table = commit(history, deltas("main", range(30)), deltas("main", range(30, 60)))
    until = {"g/main": DAY_START + 256 * 24}
    found, everything = read(table, {"g/main": -1}, DeltaSelection(), until=until)
    assert (len(found), len(everything)) == (1, 25)
    parts = [
        read(table, {"g/main": -1}, DeltaSelection(part=Part("l", number, 3)), until=until)[1] for number in range(3)
    ]
    assert all(parts)
    assert all(part == [row for row in everything if row in part] for part in parts)
    assert sorted(row for part in parts for row in part) == sorted(everything)


def test_a_file_of_several_streams_is_rejected(history):
    table = commit(history, pa.concat_tables([deltas("main", range(3)), deltas("two", range(3))]))
    snapshot = table.current_snapshot().snapshot_id
    for read_it in (
        lambda: arrival_ranges(table, snapshot, {"g/main": -1}, {"g/main": 1}),
        lambda: latest_arrivals(table, snapshot),
    ):
        with pytest.raises(
            IntegrityError, match=r"lakesync\.deltas holds deltas of gateways \('g', 'g'\) and shards \('main', 'two'\)"
        ):
            read_it()
