"""Queries where a gateway has its own namespace: each table has its gateways' rows, merged or not."""

import json

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lakehouse.history.decoding import DELTAS_ARROW, day_of
from lakehouse.tables.kernel import STORED
from lakesync.analysis.as_of import AsOf
from lakesync.analysis.query import query
from lakesync.analysis.trace import trace
from lakesync.config import load
from lakesync.model.errors import NotFoundError

START = 1_790_000_000_000 << 16
PUSHED = [("eu", "1", '"e1"'), ("home", "1", '"h1"'), ("other", "2", '"o2"'), ("eu", "3", '"e3"')]
HISTORY = pa.schema(
    [
        *((name, pa.string()) for name in ("gateway", "shard", "batch_id", "table_name")),
        *((name, pa.int64()) for name in ("epoch", "seq", "arrival")),
        ("ordinal", pa.int32()),
        ("day", pa.date32()),
        *(field for field in DELTAS_ARROW if field.name in {"row_id", "op", "client_id", "hlc", "delta_id"}),
        ("width", pa.int32()),
        ("columns", pa.map_(pa.string(), pa.string())),
    ]
)


def delta(number, gateway, row, value):
    arrival = START + number * 256
    row_fields = {
        "gateway": gateway,
        "shard": "main",
        "batch_id": "b",
        "table_name": "orders",
        "epoch": 1,
        "seq": number,
    }
    row_fields |= {
        "arrival": arrival,
        "ordinal": 0,
        "day": day_of(arrival),
        "row_id": row,
        "op": "INSERT",
        "client_id": "c",
    }
    return {
        **row_fields,
        "hlc": START + number,
        "delta_id": f"delta-000{number}",
        "width": 1,
        "columns": [("title", value)],
    }


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A history that no state table has merged yet."""
    made = load({"data_dir": tmp_path_factory.mktemp("lake"), "gateways": {"eu": {"namespace": "shop_eu"}, "home": {}}})
    catalogue = SqlCatalog("lake", uri=made.lake.catalog_uri, warehouse=made.lake.warehouse)
    for namespace in ("lakesync", "tables", "shop_eu"):
        catalogue.create_namespace(namespace)
    deltas = catalogue.create_table("lakesync.deltas", HISTORY)
    deltas.append(pa.Table.from_pylist([delta(number, *each) for number, each in enumerate(PUSHED)], HISTORY))
    for namespace in ("tables", "shop_eu"):
        stored = pa.schema([*STORED, ("title", pa.string())])
        state = catalogue.create_table(f"{namespace}.orders", stored)
        with state.update_schema() as change:
            change.update_column("title", doc="string")
        with state.transaction() as change:
            change.set_properties({"lakesync.merged": json.dumps({"eu": 1} if namespace == "shop_eu" else {})})
    catalogue.close()
    return made


def titles(config, table, moment=None):
    found = query(config, f"SELECT _gateway, _row, title FROM {table}", moment).to_pylist()
    return {(row["_gateway"], row["_row"]): row["title"] for row in found}


@pytest.mark.parametrize("shared", ["orders", "tables.orders", "ORDERS"])
def test_the_shared_table_has_the_rows_of_gateways_without_a_namespace(config, shared):
    assert titles(config, shared) == {("home", "1"): "h1", ("other", "2"): "o2"}


def test_a_namespace_has_the_rows_of_its_gateways_now_and_in_the_past(config):
    assert titles(config, "shop_eu.orders") == {("eu", "1"): "e1", ("eu", "3"): "e3"}
    assert titles(config, "shop_eu.orders", AsOf(arrival=START + 256)) == {("eu", "1"): "e1"}


def test_tables_of_two_namespaces_are_joined_and_the_history_has_all_gateways(config):
    joined = query(config, "SELECT e.title AS e, h.title AS h FROM shop_eu.orders e JOIN orders h USING (_row)")
    assert joined.to_pylist() == [{"e": "e1", "h": "h1"}]
    assert query(config, "SELECT count(*) AS n FROM lakesync.deltas").to_pylist() == [{"n": 4}]


def test_an_unknown_table_lists_known_ones_and_a_delta_is_traced_to_its_namespace(config):
    with pytest.raises(
        NotFoundError, match=r"no table 'shop_eu.bills' in the lake; known tables: deltas, orders, shop_eu"
    ):
        query(config, "FROM shop_eu.bills")
    assert trace(config, "delta-0000").state.merged_hlc == 1
    assert trace(config, "delta-0001").state.merged_hlc is None
