"""A delta is traced from its log row to snapshot, state table and checkpoint, in a lake that pyiceberg writes."""

from __future__ import annotations

import json

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from typer.testing import CliRunner

from lakesync import config
from lakesync.analysis.trace import trace
from lakesync.cli.app import app
from lakesync.engine import Engine
from lakesync.model.errors import LakeUnavailableError, NotFoundError, ValidationError
from lakesync.model.types import SyncPush
from lakesync.staging import open_staging
from lakesync.testing import ManualClock
from tests.conformance.book import make_delta

DELTAS = pa.schema(
    [
        *((name, pa.string()) for name in ("gateway", "shard", "batch_id", "table_name", "row_id", "op", "client_id")),
        *((name, pa.int64()) for name in ("epoch", "seq", "arrival", "hlc")),
        ("delta_id", pa.string()),
        ("ordinal", pa.int32()),
        ("width", pa.int32()),
    ]
)
REJECTED = pa.schema(
    [(name, pa.string()) for name in ("gateway", "table_name", "row_id", "column_name", "type", "value")]
)


def delta(delta_id, *, seq, arrival, batch):
    given = {"gateway": "shop", "shard": "main", "batch_id": batch, "table_name": "todos", "row_id": "t1"}
    given |= {"op": "UPDATE", "client_id": "alice", "epoch": 1, "seq": seq, "arrival": arrival, "hlc": 5 << 16}
    return {**given, "delta_id": delta_id, "ordinal": 0, "width": 2}


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """A lake with two batches; the first is merged into the state table and contained in a checkpoint."""
    folder = tmp_path_factory.mktemp("lake")
    place = config.load({"data_dir": folder})
    catalogue = SqlCatalog("lake", uri=place.lake.catalog_uri, warehouse=place.lake.warehouse)
    for namespace in ("lakesync", "tables"):
        catalogue.create_namespace(namespace)
    deltas = catalogue.create_table("lakesync.deltas", DELTAS)
    first, second = (
        delta("aaaa0000first", seq=1, arrival=100, batch="b1"),
        delta("bbbb0000", seq=2, arrival=200, batch="b2"),
    )
    deltas.append(pa.Table.from_pylist([first, {**first, "delta_id": "aaaa0000other", "ordinal": 1}], DELTAS))
    written = deltas.current_snapshot().snapshot_id
    deltas.append(pa.Table.from_pylist([second], DELTAS))
    state = catalogue.create_table("tables.todos", pa.schema([("_row", pa.string())]))
    state.append(pa.table({"_row": ["t1"]}))
    with state.transaction() as change:
        change.set_properties({"lakesync.merged": json.dumps({"shop": 150})})
    state.manage_snapshots().create_tag(state.current_snapshot().snapshot_id, "cut-shop-150").commit()
    rejected = {"gateway": "shop", "table_name": "todos", "row_id": "t1", "column_name": "done", "type": "boolean"}
    catalogue.create_table("lakesync.rejected", REJECTED).append(
        pa.Table.from_pylist([{**rejected, "value": '"perhaps"'}], REJECTED)
    )
    catalogue.close()
    return place, written


def test_a_merged_delta_is_traced_to_its_batch_snapshot_table_and_checkpoint(lake):
    place, written = lake
    found = trace(place, "aaaa0000first")
    assert (found.batch_id, found.arrival_hlc, found.seq, found.columns) == ("b1", 100, 1, 2)
    assert found.snapshot.snapshot_id == written
    assert found.snapshot.committed_ms > 0
    assert (found.state.merged_hlc, found.state.contains_delta, found.state.checkpoint_hlc) == (150, True, 150)


def test_an_unmerged_delta_is_in_no_checkpoint(lake):
    place, written = lake
    found = trace(place, "bbbb0000", "shop")
    assert found.snapshot.snapshot_id != written
    assert (found.state.contains_delta, found.state.checkpoint_hlc) == (False, None)


def test_an_ambiguous_or_short_id_is_rejected(lake):
    place, _ = lake
    with pytest.raises(ValidationError, match="8 characters"):
        trace(place, "aaaa")
    with pytest.raises(ValidationError, match=r"2 deltas of .* start with"):
        trace(place, "aaaa0000")
    for gateway, delta_id in ((None, "cccc0000"), ("other", "bbbb0000")):
        with pytest.raises(NotFoundError, match="no delta"):
            trace(place, delta_id, gateway)


def test_an_ambiguous_id_in_the_log_is_rejected(tmp_path):
    place, clock = config.load({"data_dir": tmp_path}), ManualClock()
    engine = Engine(open_staging(place.staging.url, None, clock), clock)
    engine.open()
    delta = make_delta("ann", clock.now_ms << 16, "r1", x=1)
    for gateway in ("shop", "depot", "depot"):
        engine.gateway(gateway).handle_push(SyncPush("ann", (delta,)))
    engine.close()
    with pytest.raises(ValidationError, match=r"2 deltas of .* start with"):
        trace(place, delta.delta_id)
    assert trace(place, delta.delta_id, "depot").gateway == "depot"


def test_no_catalogue_file_is_created_by_a_read(tmp_path):
    place = config.load({"data_dir": tmp_path / "nothing"})
    with pytest.raises(LakeUnavailableError, match="not in staging"):
        trace(place, "aaaa0000")
    assert not (tmp_path / "nothing").exists()


def test_the_commands_read_the_lake_and_report_unreachable_parts(lake, monkeypatch):
    place, _ = lake
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    monkeypatch.setenv("LAKESYNC_REMOTE_URL", "http://127.0.0.1:1")
    words = ["--gateway", "shop", "--data", str(place.data_dir)]
    result = CliRunner().invoke(app, ["trace", "aaaa0000first", "--json", *words])
    assert result.exit_code == 6
    assert msgspec.json.decode(result.stdout)["state"] == {
        "mergedHlc": 150,
        "containsDelta": True,
        "checkpointHlc": 150,
    }
    listed = CliRunner().invoke(app, ["dlq", "list", "--json", *words])
    assert listed.exit_code == 6
    assert msgspec.json.decode(listed.stdout)["id"] == "todos/t1/done"
    shown = CliRunner().invoke(app, ["dlq", "show", "todos/t1/done", *words])
    assert 'done = "perhaps" of row t1' in shown.stdout
    assert "the column has type boolean" in shown.stdout
