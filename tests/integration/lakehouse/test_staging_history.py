"""Reading the lake for a rebuild: in order of arrival, in whatever order, files and days it was written."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lakesync import config
from lakesync.cli.local import lake_history
from lakesync.cli.local.lake_history import CONFIG_PROPERTY, LakeHistory
from lakesync.engine.rebuild import LakePush
from lakesync.model.errors import LakeUnavailableError
from lakesync.model.types import ColumnValue, RowDelta
from lakesync.staging.records import GatewayConfig

DAY_MS = 86_400_000
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("gateway", "shard")),
        *((name, pa.int64()) for name in ("epoch", "seq")),
        ("ordinal", pa.int32()),
        ("arrival", pa.int64()),
        ("day", pa.date32()),
        *((name, pa.string()) for name in ("table_name", "row_id", "op", "client_id")),
        ("hlc", pa.int64()),
        ("delta_id", pa.string()),
        ("columns", pa.map_(pa.string(), pa.string())),
    ]
)


@pytest.fixture
def lake(tmp_path, monkeypatch):
    """A catalogue with a namespace, and its configuration."""
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    conf = config.load({"data_dir": tmp_path})
    with SqlCatalog(conf.lake.catalog, uri=conf.lake.catalog_uri, warehouse=conf.lake.warehouse) as catalogue:
        catalogue.create_namespace("lakesync")
        yield conf, catalogue


def pushes_of(gateway, count):
    pushes = []
    for number in range(count):
        arrival = (1_700_000_000_000 + number * DAY_MS // 3) << 16
        deltas = [
            RowDelta("UPDATE", "t", f"r{n}", f"c{number % 3}", (ColumnValue.of("x", f"é{n}"),), number * 10 + n, f"{n}")
            for n in range(1 + number % 4)
        ]
        if number % 5 == 0:
            deltas.append(RowDelta("DELETE", "t", "gone", f"c{number % 3}", (), number * 10 + 9, "deleted"))
        pushes.append(LakePush(arrival, f"c{number % 3}", deltas))
    return pushes


def rows_of(gateway, pushes):
    return [
        {
            "gateway": gateway,
            "shard": "main",
            "epoch": 1 + seq // 7,
            "seq": seq,
            "ordinal": ordinal,
            "arrival": push.arrival,
            "day": datetime.fromtimestamp((push.arrival >> 16) / 1000, UTC).date(),
            "table_name": delta.table,
            "row_id": delta.row_id,
            "op": delta.op,
            "client_id": delta.client_id,
            "hlc": delta.hlc,
            "delta_id": delta.delta_id,
            "columns": [(cell.column, bytes(cell.value).decode()) for cell in delta.columns],
        }
        for seq, push in enumerate(pushes, 1)
        for ordinal, delta in enumerate(push.deltas)
    ]


@pytest.mark.parametrize("at_once", [3, 1_000_000])
def test_pushes_are_read_whole_and_in_order(lake, monkeypatch, at_once):
    conf, catalogue = lake
    monkeypatch.setattr(lake_history, "_DELTAS_AT_ONCE", at_once)
    expected = {gateway: pushes_of(gateway, 20) for gateway in ("g", "h")}
    rows = [row for gateway, pushes in expected.items() for row in rows_of(gateway, pushes)]
    random.Random(5).shuffle(rows)
    table = catalogue.create_table("lakesync.deltas", SCHEMA)
    for start in range(0, len(rows), 25):
        table.append(pa.Table.from_pylist(rows[start : start + 25], SCHEMA))
    with LakeHistory(conf) as history:
        assert history.gateways() == ["g", "h"]
        for gateway, pushes in expected.items():
            assert list(history.pushes(gateway)) == pushes
        assert list(history.pushes("nobody")) == []
        assert history.config("g") is None


def test_configurations_are_read_from_the_table_of_gateways(lake):
    conf, catalogue = lake
    catalogue.create_table("lakesync.deltas", SCHEMA)
    config = msgspec.structs.replace(GatewayConfig(), version=3)
    properties = {f"{CONFIG_PROPERTY}shop": msgspec.json.encode(config).decode(), "other": "x"}
    catalogue.create_table("lakesync.gateways", pa.schema([("gateway", pa.string())]), properties=properties)
    with LakeHistory(conf) as history:
        assert history.gateways() == ["shop"]
        assert history.config("shop") == config


def test_a_row_of_the_table_gateways_overrides_an_old_property(lake):
    conf, catalogue = lake
    catalogue.create_table("lakesync.deltas", SCHEMA)
    old, new = (msgspec.structs.replace(GatewayConfig(), version=version) for version in (3, 4))
    columns = pa.schema([("gateway", pa.string()), ("config", pa.string())])
    properties = {f"{CONFIG_PROPERTY}{gateway}": msgspec.json.encode(old).decode() for gateway in ("shop", "quiet")}
    table = catalogue.create_table("lakesync.gateways", columns, properties=properties)
    table.append(pa.Table.from_pylist([{"gateway": "shop", "config": msgspec.json.encode(new).decode()}], columns))
    with LakeHistory(conf) as history:
        assert (history.config("shop"), history.config("quiet")) == (new, old)


def test_a_catalogue_on_postgres_is_read(postgres_uri, tmp_path, monkeypatch):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    conf = config.load({"data_dir": tmp_path, "lake": {"catalog_uri": postgres_uri, "system_namespace": "history"}})
    uri = postgres_uri.replace("postgresql://", "postgresql+psycopg://")
    expected = pushes_of("g", 3)
    with SqlCatalog(conf.lake.catalog, uri=uri, warehouse=conf.lake.warehouse) as catalogue:
        catalogue.create_namespace("history")
        with pytest.raises(LakeUnavailableError, match=r"history\.deltas") as refused:
            LakeHistory(conf)
        assert "postgres:postgres" not in str(refused.value)
        table = catalogue.create_table("history.deltas", SCHEMA)
        table.append(pa.Table.from_pylist(rows_of("g", expected), SCHEMA))
    with LakeHistory(conf) as history:
        assert list(history.pushes("g")) == expected


def test_a_missing_lake_is_reported(lake):
    with pytest.raises(LakeUnavailableError, match=r"no table lakesync\.deltas"):
        LakeHistory(lake[0])
