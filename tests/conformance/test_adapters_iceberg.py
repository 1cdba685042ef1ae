"""The lake's deltas can be read like those of any other adapter, in whatever files they are."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import StringType

from lakesync.adapters import DeltaQuery, SqliteAdapter, StoredDelta, open_adapter
from lakesync.adapters.arrow import to_arrow
from lakesync.adapters.transfer.flow_pages import RowFilter, written_by
from lakesync.adapters.transfer.flows import run_flow
from lakesync.adapters.transfer.migration import MigrationScope, migrate_adapter, scope_checksum
from lakesync.model.errors import AdapterError, ConfigurationError
from lakesync.model.hlc import decode, encode
from tests.conformance.book import make_delta
from tests.conformance.test_adapters import batch, everything, plain, texts

DAY = 86_400_000


@pytest.fixture
def lake(tmp_path):
    """A lake of three days, two gateways and six files, and the same deltas in SQLite."""
    options = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    catalog = SqlCatalog("lake", **options)
    catalog.create_namespace("lakesync")
    same = SqliteAdapter(tmp_path / "same.db")
    made = [
        batch(
            0,
            *(make_delta("c", encode(n * DAY // 4, n), f"r{n % 3}", table="tu"[n % 2], x=n) for n in range(12)),
            gateway=gateway,
            step=encode(DAY // 4, 0),
        )
        for gateway in ("g", "h")
    ]
    table = None
    for each in made:
        same.insert_deltas(each)
        for some in (each.deltas[:5], each.deltas[5:]):
            rows = to_arrow(some)
            days = [datetime.fromtimestamp(decode(stored.arrival)[0] / 1000, UTC).date() for stored in some]
            rows = rows.append_column(pa.field("day", pa.date32()), pa.array(days))
            if table is None:
                table = catalog.create_table("lakesync.deltas", rows.schema)
                with table.update_spec() as spec:
                    spec.add_field("gateway", BucketTransform(4), "bucket")
                    spec.add_field("day", IdentityTransform(), "day")
            table.append(rows)
    adapter = open_adapter(f"iceberg://lakesync?uri={options['uri']}&warehouse={options['warehouse']}")
    yield adapter, same
    adapter.close()
    same.close()
    catalog.close()


def test_iceberg_queries_return_the_same_as_a_database(lake, tmp_path):
    adapter, same = lake
    queries = [
        DeltaQuery(order=order, limit=limit, gateway=gateway, tables=tables, since=since, rows=rows)
        for order in ("arrival", "hlc")
        for limit, gateway, tables, since, rows in [
            (5, None, (), -1, ()),
            (100, "g", (), encode(DAY, 0), ()),
            (3, "h", ("t",), -1, ()),
            (100, None, (), -1, ("r1",)),
        ]
    ]
    for query in queries:
        assert list(map(plain, everything(adapter, query))) == list(map(plain, everything(same, query)))
    for gateway in (None, "g", "h", "another"):
        assert adapter.newest_position(gateway) == same.newest_position(gateway)
    assert texts(adapter.get_latest_state("g", "t", ["r0"])["r0"]) == texts(
        same.get_latest_state("g", "t", ["r0"])["r0"]
    )
    copy = SqliteAdapter(tmp_path / "copy.db")
    assert migrate_adapter(adapter, copy, page=7).deltas == 24
    assert scope_checksum(copy, MigrationScope()) == scope_checksum(same, MigrationScope())
    copy.close()


def test_iceberg_is_read_only_and_reports_a_missing_table(lake, tmp_path):
    adapter, _ = lake
    with pytest.raises(ConfigurationError, match="pipeline"):
        adapter.insert_deltas(batch(1, make_delta("c", 1, "r", x=1)))
    with pytest.raises(ConfigurationError, match="iceberg://lakesync"):
        open_adapter("iceberg://lakesync?type=nothing")
    for uri in (
        "iceberg://lakesync?uri=nosuch://ada:s3cret@host/db",
        "iceberg://ada:s3cret@lakesync?type=nothing",
        "iceberg://lakesync?type=sql&uri=s3cret",
    ):
        with pytest.raises(ConfigurationError) as failure:
            open_adapter(uri)
        assert "s3cret" not in str(failure.value)
    empty = open_adapter(f"iceberg://other?uri=sqlite:///{tmp_path}/catalog.db&warehouse=file://{tmp_path}/warehouse")
    with pytest.raises(AdapterError, match=r"other\.deltas"):
        everything(empty)
    empty.close()


def test_iceberg_newest_position_is_found_beside_a_file_without_statistics(lake, tmp_path):
    adapter, same = lake
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    table = catalog.load_table("lakesync.deltas")
    with table.transaction() as change:
        change.set_properties({"write.metadata.metrics.default": "none"})
    oldest = to_arrow(everything(same, DeltaQuery())[:1])
    table.append(oldest.append_column("day", pa.array([datetime(1970, 1, 1, tzinfo=UTC).date()])))
    files_without = [each for each in table.inspect.files().to_pylist() if not each["upper_bounds"]]
    catalog.close()
    assert len(files_without) == 1
    assert adapter.newest_position() == same.newest_position()


def test_a_flow_from_the_lake_finds_deltas_that_a_shard_flushed_late(lake, tmp_path):
    """Shards are flushed one after the other, so the deltas of one gateway are not in order of arrival."""
    adapter, _ = lake
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    table = catalog.load_table("lakesync.deltas")
    with table.update_schema() as change:
        change.add_column("shard", StringType())

    def flush(shard, quarters):
        ms = quarters * DAY // 4
        arrival = encode(ms, 0)
        rows = to_arrow([StoredDelta("g", arrival, make_delta("c", arrival, f"{shard} {quarters}"))])
        day = datetime.fromtimestamp(ms / 1000, UTC).date()
        table.append(rows.append_column("day", pa.array([day])).append_column("shard", pa.array([shard])))
        return arrival

    target = SqliteAdapter(tmp_path / "target.db")

    def flow():
        written = partial(written_by, adapter)
        return list(run_flow(adapter, target, "flows/f", RowFilter(gateways=("g",)), read_written=written))

    flush("one", 40)
    flow()
    two, one = flush("two", 44), flush("one", 48)
    flow()
    late = flush("two", 46)
    assert adapter.latest_arrivals() == {"g/one": one, "g/two": late}
    assert sum(step.deltas for step in flow()) == 1
    assert late in {stored.arrival for stored in everything(target)} > {one, two}
    assert flow() == []
    target.close()
    catalog.close()
