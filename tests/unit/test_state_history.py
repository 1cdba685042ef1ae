"""How many deltas an increment has, as far as the bounds of the history's files say it."""

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType

from lakehouse.commits import commit_files
from lakehouse.history.decoding import day_of
from lakehouse.history.log_files import partition_of
from lakehouse.table_files import Layout, data_files, write_data_file
from lakehouse.tables.buckets import Increment
from lakehouse.tables.extents import _planned

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
    layout, files = Layout.of(table), []
    for gateway, day, tables in (("one", 1, "tttt"), ("one", 2, "tuut"), ("two", 1, "tt")):
        arrivals = [arrival(day, number) for number in range(len(tables))]
        columns = [[gateway] * len(tables), [day_of(each) for each in arrivals], list(tables), arrivals]
        folder, values = partition_of(table, gateway, day_of(arrivals[0]))
        told = write_data_file(layout, folder, [pa.table(columns, layout.schema)])
        files += data_files(table, pa.Table.from_batches([told]), lambda _, values=values: values)
    commit_files(table, None, files)
    yield table.refresh()
    catalogue.close()


@pytest.mark.parametrize(
    ("name", "ranges", "files", "deltas"),
    [
        ("t", {"one": (0, arrival(1, 3))}, 1, 4),  # the other gateway's file is as old, and not met
        ("t", {"one": (0, arrival(1, 3)), "two": (0, arrival(1, 1))}, 2, 6),
        ("t", {"one": (0, arrival(1, 3)), "two": (0, arrival(1, 0))}, 2, None),
        ("t", {"one": (arrival(1, 0), arrival(1, 3)), "two": (0, arrival(1, 1))}, 2, None),
        ("t", {"one": (0, arrival(2, 3)), "two": (0, arrival(1, 1))}, 3, None),  # one of them has another table's too
        ("u", {"one": (0, arrival(2, 3))}, 1, None),
        ("u", {"one": (0, arrival(1, 3))}, 0, 0),
        ("t", {"one": (arrival(1, 3), arrival(1, 9)), "two": (0, arrival(1, 1))}, 1, 2),
    ],
)
def test_what_bounds_say_of_an_increment(table, name, ranges, files, deltas):
    found = _planned(table, table.current_snapshot().snapshot_id, Increment(name, ranges, None))
    assert (len(found.files.data), found.deltas) == (files, deltas)
    days = [day_of(arrival(1, 0))]
    assert _planned(table, table.current_snapshot().snapshot_id, Increment("t", ranges, days)).deltas in (None, 0)
