"""B1: each acknowledged delta is in `deltas` exactly once, after any crash and any number of runs."""

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from lakehouse.checks import duplicate_deltas, history_faults
from lakehouse.history import flush as deltas_module
from lakehouse.history.flush import flush_backlog, flush_batch, flushed_arrivals
from lakehouse.sessions import session
from lakehouse.table_creation import ensure_deltas
from lakehouse.table_definitions import LakeNames
from lakesync.config import Config
from lakesync.engine import Engine
from lakesync.model.delta import delta_id
from lakesync.model.errors import FlushError, IntegrityError, LakeSyncError
from lakesync.model.types import ColumnValue, RowDelta, SyncPush
from lakesync.staging import open_store
from lakesync.staging.remote import RemoteStore
from lakesync.staging.store import StagingStore
from tests import lake_drivers
from tests.forked import Forked
from tests.integration.gateway_support import SERVICE, wall_ms

DEADLINE = 240
pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


@dataclass
class Lab:
    """A gateway whose deltas go to a lake."""

    config: Config
    engine: Engine
    store: StagingStore
    gateway: str
    pushed: list

    @property
    def names(self):
        lake = self.config.lake
        return LakeNames(lake.catalog, lake.system_namespace, lake.namespace)

    def push(self, count, client="client-1"):
        """Push new rows; the push is acknowledged."""
        first = len(self.pushed)
        deltas = []
        for number in range(first, first + count):
            cells = (ColumnValue.of("number", number), ColumnValue.of("text", f'é "{number}"'))
            hlc = (wall_ms() << 16) + number % 60_000
            identity = delta_id(client_id=client, hlc=hlc, table="t", row_id=f"row-{number}", columns=cells)
            deltas.append(RowDelta("INSERT", "t", f"row-{number}", client, cells, hlc, identity))
        self.engine.gateway(self.gateway).handle_push(SyncPush(client, tuple(deltas)))
        self.pushed += deltas
        return deltas

    def again(self, deltas):
        """Repeat an acknowledged push."""
        self.engine.gateway(self.gateway).handle_push(SyncPush(deltas[0].client_id, tuple(deltas)))

    def flush(self, spark, **options):
        return flush_backlog(spark, self.store, gateways=[self.gateway], names=self.names, **options)

    def driver(self, **variables):
        """Run `flush` in a separate process."""
        environment = {**os.environ, **self.config.environment(), **variables}
        return Forked(lake_drivers.flush, self.gateway, environment=environment)

    def held(self, spark):
        """The delta ids in the lake."""
        rows = spark.table(self.names.deltas).where(f"gateway = '{self.gateway}'").select("delta_id").toArrow()
        return sorted(rows["delta_id"].to_pylist())

    def differences(self, spark, store=None):
        """The differences of the gateway between the lake and the ledger."""
        found = history_faults(spark, store or self.store, self.names).differences
        return [each for each in found if each.gateway == self.gateway]

    def check(self, spark):
        """Check that each delta is in the lake once, and that staging has confirmed it."""
        assert self.held(spark) == sorted(delta.delta_id for delta in self.pushed)
        assert duplicate_deltas(spark, self.names) == []
        assert self.differences(spark) == []
        (waiting,) = [one for one in self.store.backlog() if one.gateway == self.gateway]
        assert (waiting.deltas, waiting.flushed_seq) == (0, waiting.last_seq)
        assert flushed_arrivals(spark, self.names)[self.gateway] == waiting.last_arrival

    def data_files(self):
        """The data files that Spark has started to write for `deltas`."""
        folder = Path(urlsplit(self.config.lake.warehouse).path) / self.names.system / "deltas" / "data"
        return {path for path in folder.rglob("*.parquet") if not path.name.startswith(".")}


@pytest.fixture(scope="module")
def labs(spark_server, serve, request):
    """Makes labs over a kind of staging, each with a separate gateway."""
    made, closing = [], []

    def make(kind="sqlite", config=spark_server["config"]):
        lake = {"system_namespace": f"sys_flush_{kind}"}
        if kind == "sqlite":
            served = serve()
            engine, store = served.engine, RemoteStore(served.url, SERVICE)
            staging = {"gateway": {"url": served.url}, "service_token": SecretStr(SERVICE)}
            closing.append(store.close)
        else:
            url = request.getfixturevalue("postgres_uri")
            engine = Engine(open_store(url, wall_ms), wall_ms)
            engine.open()
            store = engine.store
            staging = {"staging": {"url": url}}
            closing.append(engine.close)
        lab = Lab(config.replace(lake=lake, **staging), engine, store, f"flush-{len(made)}", [])
        made.append(lab)
        return lab

    yield make
    for close in closing:
        close()


def until(condition, what):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE} s for {what}"
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_b1_acknowledged_deltas_are_in_the_lake_once(labs, spark, kind):
    lab = labs(kind)
    first = lab.push(30)
    lab.push(20, "client-2")
    (report,) = lab.flush(spark)
    assert (report.deltas, report.already_there) == (50, False)
    lab.check(spark)

    lab.again(first)
    lab.push(7)
    lab.push(8)
    held = {lab.gateway: lab.store.cut_point(lab.gateway)}
    lab.push(9)  # tables and checkpoint end at the cut point: this is the next flush's
    assert [report.deltas for report in lab.flush(spark, max_deltas=16, cut_points=held)] == [15]
    assert [report.deltas for report in lab.flush(spark, max_deltas=16)] == [9]
    lab.check(spark)
    assert lab.flush(spark) == []
    row = spark.table(lab.names.deltas).where(f"gateway = '{lab.gateway}' and row_id = 'row-50'").collect()[0]
    assert row["columns"] == {"number": "50", "text": '"é \\"50\\""'}
    assert (row["seq"], row["ordinal"], row["width"], row["client_id"]) == (3, 0, 2, "client-1")
    assert row["day"].isoformat() == time.strftime("%Y-%m-%d", time.gmtime((row["arrival"] >> 16) / 1000))


def test_a_batch_that_another_run_planned_beyond_the_cut_point_does_not_count_as_flushed(labs, spark):
    """A run that Dagster considers dead continues beside a later one, which has planned more."""
    lab = labs("sqlite")
    lab.push(5)
    held = {lab.gateway: lab.store.cut_point(lab.gateway)}
    lab.push(6)
    planned = lab.store.plan(lab.gateway, "main", 100)
    failed = {}
    assert lab.flush(spark, cut_points=held, on_failed=failed.setdefault) == []
    assert isinstance(failed[lab.gateway], FlushError), "its tables would be merged only up to the cut point"
    (report,) = lab.flush(spark)
    assert (report.batch_id, report.deltas) == (planned.batch_id, 11)
    lab.check(spark)


class FlushingStore:
    """A lab's store; all pushes are flushed just before the ledger is read."""

    def __init__(self, lab, spark):
        self.lab, self.spark = lab, spark

    def ledger(self, gateway):
        self.lab.flush(self.spark)
        return self.lab.store.ledger(gateway)

    def __getattr__(self, name):
        return getattr(self.lab.store, name)


def test_a_flush_during_the_check_is_not_reported_as_a_difference_from_the_ledger(labs, spark):
    lab = labs()
    lab.push(5)
    assert lab.differences(spark, FlushingStore(lab, spark)) == []
    lab.push(3)
    batch = lab.store.plan(lab.gateway, "main", 100)
    report = flush_batch(spark, lab.store, batch, lab.names)
    assert lab.differences(spark) == [], "written and not confirmed yet"
    lab.store.confirm(batch.batch_id, report.deltas, report.id_sum, report.snapshot_id)
    lab.check(spark)
    spark.sql(f"DELETE FROM {lab.names.deltas} WHERE gateway = '{lab.gateway}' AND row_id = 'row-6'")
    lab.push(2)
    found = lab.differences(spark, FlushingStore(lab, spark))
    assert sum(each.ledger_count - each.lake_count for each in found) == 1


POINTS = {"flush.planned": [False], "flush.written": [True], "flush.committed": [True], "flush.confirmed": []}
"""Whether the next run finds the batch of one that was killed there."""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.deep)])
def test_b1_a_run_killed_at_a_named_point_is_completed(labs, spark, kind):
    lab = labs(kind)
    for point, already_there in POINTS.items():
        lab.push(40)
        driver = lab.driver(LAKESYNC_CRASH_AT=point)
        assert driver.wait(DEADLINE) == -signal.SIGKILL, point
        lab.push(2)  # later pushes do not change the planned batch
        reports = lab.flush(spark)
        assert [report.already_there for report in reports] == [*already_there, False], point
    lab.check(spark)


def test_b1_two_concurrent_runs_write_a_batch_once(labs, spark_server, spark, monkeypatch):
    lab = labs()
    lab.push(40)
    lab.flush(spark)
    lab.push(40)
    batch = lab.store.plan(lab.gateway, "main", 1000)
    both = threading.Barrier(2, timeout=DEADLINE)
    monkeypatch.setattr(deltas_module, "crash_point", lambda name: name == "flush.planned" and both.wait())
    reports = []

    def run():
        with session(spark_server["config"]) as own:
            reports.append(flush_batch(own, lab.store, batch, lab.names))

    runs = [threading.Thread(target=run) for _ in range(2)]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join(DEADLINE)
    assert sorted(report.already_there for report in reports) == [False, True]
    for report in reports:
        lab.store.confirm(batch.batch_id, report.deltas, report.id_sum)
    lab.check(spark)


def test_b1_a_killed_driver_whose_server_continues_duplicates_nothing(labs, spark):
    lab = labs()
    for _ in range(6):
        lab.push(5_000)
    before = lab.data_files()
    driver = lab.driver()
    until(lambda: lab.data_files() - before or driver.poll() is not None, "the server to begin to write")
    driver.kill()
    driver.wait(DEADLINE)
    lab.push(3)
    lab.flush(spark)
    lab.check(spark)
    lab.push(3)
    lab.flush(spark)
    lab.check(spark)


def test_b1_a_commit_with_a_lost_answer_is_found(labs, spark, monkeypatch):
    lab = labs()
    lab.push(10)
    write = deltas_module._write

    def write_and_lose_the_answer(*arguments):
        write(*arguments)
        raise ConnectionResetError("the answer was lost")

    monkeypatch.setattr(deltas_module, "_write", write_and_lose_the_answer)
    (report,) = lab.flush(spark)
    assert report.already_there
    lab.check(spark)


def test_b1_a_write_that_fails_leaves_the_batch_planned(labs, spark, monkeypatch):
    lab, other = labs(), labs()
    lab.push(10)

    def fail(*_):
        raise ConnectionResetError("nothing was sent")

    with monkeypatch.context() as patch:
        patch.setattr(deltas_module, "_write", fail)
        with pytest.raises(FlushError, match="stays planned"):
            lab.flush(spark)
    assert lab.held(spark) == []
    lab.flush(spark)
    lab.check(spark)
    other.push(1)


def test_b1_a_trim_before_the_confirmation_deletes_nothing(labs, spark):
    lab = labs()
    lab.push(10)
    batch = lab.store.plan(lab.gateway, "main", 1000)
    assert lab.store.trim(lab.gateway, "main") == 0
    ensure_deltas(spark, lab.names)
    report = flush_batch(spark, lab.store, batch, lab.names)
    assert lab.store.trim(lab.gateway, "main") == 0
    with pytest.raises(IntegrityError, match=r"nothing is confirmed"):
        lab.store.confirm(batch.batch_id, report.deltas - 1, report.id_sum)
    with pytest.raises(IntegrityError):
        lab.store.confirm(batch.batch_id, report.deltas, report.id_sum + 1)
    assert lab.store.trim(lab.gateway, "main") == 0
    again = flush_batch(spark, lab.store, batch, lab.names)
    assert again.already_there
    lab.store.confirm(batch.batch_id, again.deltas, again.id_sum)
    lab.store.confirm(batch.batch_id, again.deltas, again.id_sum)
    until(lambda: lab.store.trim(lab.gateway, "main") > 0, "the write-behind, after which the log is trimmed")
    lab.check(spark)


@pytest.mark.slow
def test_b1_a_flush_is_completed_after_spark_was_killed_and_restarted(labs, spark_server, spark_server_process):
    """This test is the last one that needs Spark, because the restarted server has lost its compiled code."""
    lab = labs()
    for _ in range(6):
        lab.push(5_000)
    before = lab.data_files()
    outcome = []

    def run():
        try:
            with session(spark_server["config"]) as own:
                outcome.append(lab.flush(own))
        except LakeSyncError as error:
            outcome.append(error)

    flushing = threading.Thread(target=run)
    flushing.start()
    try:
        until(lambda: lab.data_files() - before, "the server to begin to write")
    finally:
        spark_server_process.kill()
        spark_server_process.again()
    flushing.join(DEADLINE)
    assert outcome, "the flush neither ended nor failed"
    with session(spark_server["config"]) as own:
        lab.flush(own)
        lab.check(own)
