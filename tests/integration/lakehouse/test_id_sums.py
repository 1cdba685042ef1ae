"""A batch is counted from the files that contain it, whether or not they contain other batches."""

import hashlib
from datetime import date

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DateType, NestedField, StringType

from lakehouse.history.id_sums import batch_files, sum_batch
from lakehouse.sessions import session
from lakesync.model.delta import id_number
from lakesync.staging.records import Batch

FIELDS = {"gateway": StringType(), "day": DateType(), "batch_id": StringType(), "delta_id": StringType()}
SPEC = PartitionSpec(
    PartitionField(1, 1000, BucketTransform(4), "gateway_bucket"), PartitionField(2, 1001, IdentityTransform(), "day")
)
DAY = date(1970, 1, 2)


def batch(gateway, name):
    arrival = 86_400_000 << 16
    return Batch(name, gateway, "main", 1, 1, 9, 5, 100, arrival, arrival)


@pytest.fixture
def spark(spark_server):
    with session(spark_server["config"], shared=True) as spark:
        yield spark


def test_a_batch_is_counted_in_files_with_several_batches(spark, tmp_path):
    catalogue = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalogue.create_namespace("lakesync")
    fields = [NestedField(number, name, kind) for number, (name, kind) in enumerate(FIELDS.items(), 1)]
    properties = {"write.metadata.metrics.column.batch_id": "full"}
    table = catalogue.create_table("lakesync.deltas", Schema(*fields), partition_spec=SPEC, properties=properties)

    def held(wanted):
        return sum_batch(spark, batch_files(table, table.metadata.current_snapshot_id, wanted), wanted)

    assert held(batch("one", "b" * 40)) is None
    ids = {}
    first, second = "b" * 40, "b" * 39 + "c"
    for number, (gateway, batches) in enumerate([("one", [first] * 3), ("one", [first, second]), ("two", [first])]):
        made = [hashlib.sha256(f"{number} {place}".encode()).hexdigest() for place in range(len(batches))]
        for name, identity in zip(batches, made, strict=True):
            ids.setdefault((gateway, name), []).append(identity)
        rows = [[gateway] * len(batches), [DAY] * len(batches), batches, made]
        table.append(pa.table(rows, table.schema().as_arrow()))
    for (gateway, name), expected in ids.items():
        assert held(batch(gateway, name)) == (len(expected), sum(map(id_number, expected)) % 2**64)
    assert [len(each) for each in ids.values()] == [4, 1, 1]
    assert held(batch("two", second)) is None
    catalogue.close()
