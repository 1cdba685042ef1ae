"""A batch is counted in the files that hold it, whether they hold others too or not."""

import hashlib
from datetime import date

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DateType, NestedField, StringType

from lakehouse.commits import commit_files
from lakehouse.history.held import held_in_files
from lakehouse.history.log_files import partition_of
from lakehouse.table_files import Layout, data_files, write_data_file
from lakesync.delta import id_number
from lakesync.staging.records import Batch

FIELDS = {"gateway": StringType(), "day": DateType(), "batch_id": StringType(), "delta_id": StringType()}
SPEC = PartitionSpec(
    PartitionField(1, 1000, BucketTransform(4), "gateway_bucket"), PartitionField(2, 1001, IdentityTransform(), "day")
)
DAY = date(1970, 1, 2)


def batch(gateway, name):
    arrival = 86_400_000 << 16
    return Batch(name, gateway, "main", 1, 1, 9, 5, 100, arrival, arrival)


def test_a_batch_is_counted_among_others(tmp_path):
    catalogue = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalogue.create_namespace("lakesync")
    fields = [NestedField(number, name, kind) for number, (name, kind) in enumerate(FIELDS.items(), 1)]
    properties = {"write.metadata.metrics.column.batch_id": "full"}
    table = catalogue.create_table("lakesync.deltas", Schema(*fields), partition_spec=SPEC, properties=properties)
    assert held_in_files(table, batch("one", "b" * 40)) is None
    layout, files, ids = Layout.of(table), [], {}
    first, second = "b" * 40, "b" * 39 + "c"
    for number, (gateway, batches) in enumerate([("one", [first] * 3), ("one", [first, second]), ("two", [first])]):
        made = [hashlib.sha256(f"{number} {place}".encode()).hexdigest() for place in range(len(batches))]
        for name, identity in zip(batches, made, strict=True):
            ids.setdefault((gateway, name), []).append(identity)
        folder, values = partition_of(table, gateway, DAY)
        columns = [[gateway] * len(batches), [DAY] * len(batches), batches, made]
        told = write_data_file(layout, folder, [pa.table(columns, layout.schema)])
        files += data_files(table, pa.Table.from_batches([told]), lambda _, values=values: values)
    commit_files(table, None, files)
    table.refresh()
    for (gateway, name), held in ids.items():
        assert held_in_files(table, batch(gateway, name)) == (len(held), sum(map(id_number, held)) % 2**64)
    assert [len(held) for held in ids.values()] == [4, 1, 1]
    assert held_in_files(table, batch("two", second)) is None
    catalogue.close()
