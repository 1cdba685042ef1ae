"""The number of deltas in an increment, from the column bounds of the history's files."""

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType

from lakehouse.history.decoding import day_of
from lakehouse.tables import merging
from lakehouse.tables.increment import Increment
from lakehouse.tables.merging import history_files
from lakesync.analysis.catalogue import column_bounds

DAY_MS = 86_400_000
FIELDS = {"gateway": StringType(), "day": DateType(), "table_name": StringType(), "arrival": LongType()}
SPEC = PartitionSpec(
    PartitionField(1, 1000, BucketTransform(4), "gateway_bucket"), PartitionField(2, 1001, IdentityTransform(), "day")
)


def arrival(day, number):
    return (day * DAY_MS << 16) + number * 256


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Three files: of one table, of two, and of another gateway."""
    folder = tmp_path_factory.mktemp("lake")
    catalogue = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalogue.create_namespace("lakesync")
    fields = [NestedField(number, name, kind) for number, (name, kind) in enumerate(FIELDS.items(), 1)]
    table = catalogue.create_table("lakesync.deltas", Schema(*fields), partition_spec=SPEC)
    schema = table.schema().as_arrow()
    for gateway, day, tables in (("one", 1, "tttt"), ("one", 2, "tuut"), ("two", 1, "tt")):
        arrivals = [arrival(day, number) for number in range(len(tables))]
        columns = [[gateway] * len(tables), [day_of(each) for each in arrivals], list(tables), arrivals]
        table.append(pa.table(columns, schema))
    yield table.refresh()
    catalogue.close()


@pytest.mark.parametrize(
    ("name", "ranges", "files", "deltas"),
    [
        ("t", {"one": (0, arrival(1, 3))}, 1, 4),  # the other gateway's file is as old, and not selected
        ("t", {"one": (0, arrival(1, 3)), "two": (0, arrival(1, 1))}, 2, 6),
        ("t", {"one": (0, arrival(1, 3)), "two": (0, arrival(1, 0))}, 2, None),
        ("t", {"one": (arrival(1, 0), arrival(1, 3)), "two": (0, arrival(1, 1))}, 2, None),
        # one of the files also has another table's deltas
        ("t", {"one": (0, arrival(2, 3)), "two": (0, arrival(1, 1))}, 3, None),
        ("u", {"one": (0, arrival(2, 3))}, 1, None),
        ("u", {"one": (0, arrival(1, 3))}, 0, 0),
        ("t", {"one": (arrival(1, 3), arrival(1, 9)), "two": (0, arrival(1, 1))}, 1, 2),
    ],
)
def test_column_bounds_give_the_size_of_an_increment(table, name, ranges, files, deltas):
    snapshot = table.current_snapshot().snapshot_id
    found = history_files(table, snapshot, Increment(name, ranges))
    assert (len(found.files), found.delta_count) == (files, deltas)
    days = [day_of(arrival(1, 0))]
    assert history_files(table, snapshot, Increment("t", ranges, days)).delta_count in (None, 0)


def test_a_file_whose_gateways_are_not_recorded_is_read(table, monkeypatch):
    bounds = column_bounds

    def without_gateway(of_table, file, column):
        return (None, None) if column == "gateway" else bounds(of_table, file, column)

    monkeypatch.setattr(merging, "column_bounds", without_gateway)
    found = history_files(table, table.current_snapshot().snapshot_id, Increment("t", {"one": (0, arrival(1, 3))}))
    assert (len(found.files), found.delta_count) == (2, None)


def test_an_increment_selects_only_its_own_deltas():
    columns = {
        "gateway": ["one", "one", "one", "two", "other"],
        "table_name": ["t", "t", "u", "t", "t"],
        "arrival": [arrival(1, 1), arrival(2, 2), arrival(1, 1), arrival(1, 5), arrival(1, 1)],
    }
    rows = pa.table({**columns, "day": pa.array([day_of(each) for each in columns["arrival"]])})
    ranges = {"one": (arrival(1, 0), arrival(2, 2)), "two": (arrival(1, 5), arrival(1, 9))}
    picked = Increment("t", ranges).pick(rows, ["gateway", "arrival"])
    assert picked.to_pylist() == [
        {"gateway": "one", "arrival": arrival(1, 1)},
        {"gateway": "one", "arrival": arrival(2, 2)},
    ]
    of_day = Increment("t", ranges, [day_of(arrival(2, 0))]).pick(rows, ["arrival"])
    assert of_day["arrival"].to_pylist() == [arrival(2, 2)]
