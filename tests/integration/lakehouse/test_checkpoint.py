"""K1 and K3: a checkpoint's frames have exactly the state at its arrival; all are published, or none."""

import os
import random
import signal
from datetime import date, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from lakehouse.checkpoints.checkpoint import make_checkpoint
from lakehouse.table_access import at_snapshot
from lakehouse.table_definitions import LakeNames
from lakehouse.tables.merge_job import merged_frames
from lakehouse.tables.merging import merge_table
from lakesync.model.delta import delta_id
from lakesync.model.errors import IntegrityError
from lakesync.model.merge import RowState
from lakesync.model.schema import parse_schema
from lakesync.model.types import ColumnValue, RowDelta
from lakesync.staging.remote import RemoteStore
from lakesync.wire.frames import read_checkpoint
from lakesync.wire.protobuf import decode_response
from tests import lake_drivers
from tests.forked import Forked
from tests.integration.gateway_support import SERVICE
from tests.lake_support import arrivals, fill, held, states
from tests.spelling import spelled

DAYS = [date(2013, 1, 1) + timedelta(days=number) for number in range(3)]
COLUMNS = {"title": "string", "size": "number"}
pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


@pytest.fixture(scope="module")
def served(serve):
    return serve()


@pytest.fixture
def store(served):
    store = RemoteStore(served.url, SERVICE)
    yield store
    store.close()


@pytest.fixture
def names(request):
    return LakeNames("lake", f"sys_{request.node.name}", f"tab_{request.node.name}")


def schema(table):
    return parse_schema({"table": table, "columns": [{"name": name, "type": kind} for name, kind in COLUMNS.items()]})


def random_history(seed):
    """Pushes to two tables over three days, some rows deleted, a few rows of more than one stamp."""
    rng = random.Random(seed)
    pushes = []
    for arrival in (arrival for day in DAYS for arrival in arrivals(day, 5)):
        deltas = []
        for _ in range(6):
            op = rng.choices(["INSERT", "UPDATE", "DELETE"], [3, 6, 1])[0]
            table, row, hlc, client = (
                rng.choice("tu"),
                f"row-{rng.randint(1, 15)}",
                rng.randint(1, 90),
                rng.choice("abc"),
            )
            names = [] if op == "DELETE" else rng.sample(list(COLUMNS), rng.randint(1, 2))
            cells = tuple(ColumnValue.of(name, rng.choice(["é", 1, None])) for name in names)
            identity = delta_id(client_id=client, hlc=hlc, table=table, row_id=row, columns=cells)
            deltas.append(RowDelta(op, table, row, client, cells, hlc, identity))
        pushes.append((arrival, deltas))
    return pushes


def visible(deltas, table):
    """The rows that a client should have after applying a checkpoint, by the Python merge."""
    rows = merged(deltas, table)
    return {
        row: {name: cell["value"] for name, cell in state["cells"].items()}
        for row, state in rows.items()
        if state["visible"]
    }


def merged(deltas, table):
    rows = {}
    for delta in deltas:
        if delta.table == table:
            rows.setdefault(delta.row_id, RowState()).merge(delta)
    return {row: spelled(state) for row, state in rows.items()}


def applied(part, arrival):
    """The rows of a checkpoint's table as the stock client applies it: each INSERT once, UPDATEs of existing rows."""
    rows, stamps = {}, {}
    for uri in part.frames:
        with Path(urlsplit(uri).path).open("rb") as stream:
            for message in read_checkpoint(stream):
                response = decode_response(message)
                assert (response.server_hlc, response.has_more) == (arrival, False)
                for delta in response.deltas:
                    assert delta.table == part.table
                    assert (delta.op == "INSERT") == (delta.row_id not in rows)
                    assert stamps.get(delta.row_id, (-1, "")) < delta.stamp
                    stamps[delta.row_id] = delta.stamp
                    values = {cell.column: bytes(cell.value).decode() for cell in delta.columns}
                    rows.setdefault(delta.row_id, {}).update(values)
    return rows


def deltas_upto(pushes, arrival):
    return [delta for at, deltas in pushes if at <= arrival for delta in deltas]


def test_k1_frames_have_the_state_at_the_arrival_and_nothing_newer(spark, names, store, served, tmp_path):
    served.engine.gateway("shop")
    pushes, others = random_history(1), random_history(2)
    fill(spark, names, pushes, "shop")
    fill(spark, names, others, "other")
    middle, last = pushes[6][0], pushes[-1][0]
    schemas = [schema("u"), schema("t")]
    merge_table(spark, schema("t"), {"shop": pushes[2][0], "other": others[-1][0]}, names=names)

    checkpoint = make_checkpoint(
        spark, store, held(store, "shop", middle), schemas, directory_uri=tmp_path.as_uri(), names=names
    )
    assert store.newest_checkpoint("shop") == checkpoint
    merge_table(spark, schema("t"), {"shop": last}, names=names)
    for part in checkpoint.tables:
        expected = visible(deltas_upto(pushes, middle), part.table)
        assert applied(part, middle) == expected
        assert part.rows == len(expected)
        sizes = [Path(urlsplit(uri).path).stat().st_size for uri in part.frames]
        assert part.bytes == sum(sizes)
    [snapshot] = [part.snapshot_id for part in checkpoint.tables if part.table == "t"]
    at_checkpoint = states(at_snapshot(spark, names.state("t"), snapshot).where("_gateway = 'shop'"))
    truth = merged(deltas_upto(pushes, middle), "t")
    assert {row: spelled(state) for (_, row), state in at_checkpoint.items()} == truth
    history = spark.table(names.deltas).where(f"gateway = 'shop' AND table_name = 't' AND arrival <= {middle}")
    assert states(merged_frames(history, None, list(COLUMNS.items()))) == at_checkpoint
    assert not list(tmp_path.rglob("*.tmp"))

    assert (
        make_checkpoint(
            spark, store, held(store, "shop", middle), schemas, directory_uri=tmp_path.as_uri(), names=names
        )
        == checkpoint
    )
    with pytest.raises(IntegrityError, match="later than the checkpoint's"):
        make_checkpoint(
            spark, store, held(store, "shop", pushes[8][0]), schemas, directory_uri=tmp_path.as_uri(), names=names
        )
    assert store.newest_checkpoint("shop") == checkpoint
    tags = spark.table(f"{names.state('t')}.refs").where("type = 'TAG'").toArrow()["name"].to_pylist()
    assert f"cut-shop-{middle}" in tags


def test_k3_a_killed_checkpoint_is_not_published_and_is_repeated(spark, spark_server, names, store, served, tmp_path):
    served.engine.gateway("killed")
    pushes = random_history(3)
    fill(spark, names, pushes, "killed")
    last = pushes[-1][0]
    lake = {"system_namespace": names.system, "namespace": names.tables, "checkpoints": str(tmp_path)}
    config = spark_server["config"].replace(gateway={"url": served.url}, service_token=SecretStr(SERVICE), lake=lake)
    for point in ("tables.merged:2", "checkpoint.tagged", "checkpoint.written"):
        environment = {**os.environ, **config.environment(), "LAKESYNC_CRASH_AT": point}
        assert Forked(lake_drivers.checkpoint, "killed", last, environment=environment).wait(240) == -signal.SIGKILL
        assert store.newest_checkpoint("killed") is None
    schemas = [schema("t"), schema("u")]
    checkpoint = make_checkpoint(
        spark, store, held(store, "killed", last), schemas, directory_uri=tmp_path.as_uri(), names=names
    )
    for part in checkpoint.tables:
        assert applied(part, last) == visible(deltas_upto(pushes, last), part.table)


def test_a_checkpoint_of_empty_tables_has_no_frames(spark, names, store, served, tmp_path):
    served.engine.gateway("empty")
    hold = held(store, "empty", arrivals(DAYS[0], 1)[0])
    checkpoint = make_checkpoint(spark, store, hold, [schema("t")], directory_uri=tmp_path.as_uri(), names=names)
    assert [part.frames for part in checkpoint.tables] in ([], [()])
    assert store.newest_checkpoint("empty") == checkpoint
