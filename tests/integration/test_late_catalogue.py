"""B1 to B3 where the catalogue answers late, or commits and its answer is lost: a proxy stands before its Postgres."""

import socket
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from lakesync.delta import delta_id
from lakesync.engine import Engine
from lakesync.exceptions import LakeSyncError
from lakesync.schema import parse_schema
from lakesync.staging import open_store
from lakesync.types import ColumnValue, RowDelta, SyncPush
from resources.lake.checks import duplicate_deltas, ledger_against_lake
from resources.lake.deltas import flush_due
from resources.lake.state import merge_table
from resources.lake.tables import LakeNames
from resources.spark import session
from tests.integration.gateway_support import wall_ms

NAMES = LakeNames("late")
SCHEMA = parse_schema({"table": "t", "columns": [{"name": "n", "type": "number"}]})
COMMIT = b"UPDATE iceberg_tables SET"

pytestmark = pytest.mark.timeout(300)  # Spark's first queries take a minute where the machine is busy


class Proxy:
    """Passes bytes on, and does something to the answers of statements that commit to the catalogue."""

    def __init__(self, host, port):
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.delay = 0.0
        self.lost = 0
        """Answers to be lost from now on: the statement was done, and the connection ends."""
        self.met = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            commits = threading.Event()
            for pair in ((client, server, commits, True), (server, client, commits, False)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source, target, commits, asks):
        try:
            while data := source.recv(1 << 16):
                if asks and COMMIT in data:
                    commits.set()
                if not asks and commits.is_set():
                    commits.clear()
                    self.met += 1
                    time.sleep(self.delay)
                    if self.lost:
                        self.lost -= 1
                        break
                target.sendall(data)
        except OSError:
            pass  # the other side is gone, as one may be
        finally:
            for end in (source, target):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)  # a thread that reads it hears of it, as it would not of a close


@pytest.fixture
def proxy(own_database):
    parts = urlsplit(own_database)
    proxy = Proxy(parts.hostname, parts.port)
    yield proxy
    proxy.close()


@pytest.fixture
def spark(spark_server, proxy, own_database, tmp_path):
    """A session with a catalogue on Postgres, which it reaches through the proxy."""
    config = spark_server["config"].replace(lake={"catalog_uri": own_database})
    catalogue = "spark.sql.catalog.late"
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:postgresql://127.0.0.1:{proxy.port}{urlsplit(own_database).path}",
        ".jdbc.user": "postgres",
        ".jdbc.password": "postgres",
        ".jdbc.schema-version": "V1",
        ".warehouse": tmp_path.as_uri(),
        ".io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
        ".cache-enabled": "false",
    }
    with session(config) as spark:
        for name, value in settings.items():
            spark.conf.set(f"{catalogue}{name}", value)
        yield spark


def delta(number, hlc):
    cells = (ColumnValue.of("n", number),)
    identity = delta_id(client_id="c", hlc=hlc, table="t", row_id=f"{number}", columns=cells)
    return RowDelta("INSERT", "t", f"{number}", "c", cells, hlc, identity)


@pytest.mark.deep
def test_b1_a_catalogue_that_answers_late_or_commits_and_is_not_heard(spark, proxy, tmp_path):
    engine = Engine(open_store(f"sqlite://{tmp_path / 'staging'}", wall_ms), wall_ms)
    engine.open()
    gateway, store = engine.gateway("g"), engine.store
    pushed = []

    def push(count):
        now = wall_ms() << 16
        new = [delta(number, now + number) for number in range(len(pushed), len(pushed) + count)]
        gateway.handle_push(SyncPush("c", tuple(new)))
        pushed.extend(new)

    def until_done(work):
        """As the pipeline does: what raises is tried again."""
        for _ in range(4):
            try:
                return work()
            except LakeSyncError as error:
                last = error
        raise last

    def check():
        rows = spark.table(NAMES.deltas).select("delta_id").toArrow()["delta_id"].to_pylist()
        assert sorted(rows) == sorted(each.delta_id for each in pushed)
        assert duplicate_deltas(spark, NAMES) == []
        assert ledger_against_lake(spark, store, NAMES) == []
        (waiting,) = store.backlog()
        assert (waiting.deltas, waiting.flushed_seq) == (0, waiting.last_seq)

    try:
        push(5)
        flush_due(spark, store, names=NAMES)
        proxy.delay = 1.0
        push(5)
        flush_due(spark, store, names=NAMES)
        assert proxy.met
        proxy.delay = 0.0
        check()
        for lost in (1, 2):  # the second time the repeat of the statement is not heard either
            proxy.lost = lost
            push(5)
            until_done(lambda: flush_due(spark, store, names=NAMES))
            proxy.lost = 0
            check()
        proxy.lost = 1
        upto = {"g": store.hold("g").arrival}
        until_done(lambda: merge_table(spark, SCHEMA, upto, names=NAMES))
        proxy.lost = 0
        merge_table(spark, SCHEMA, upto, rebuild=True, names=NAMES)
        rows = spark.table(NAMES.state("t")).select("_row", "n").toArrow().to_pylist()
        assert {row["_row"]: row["n"] for row in rows} == {each.row_id: float(each.row_id) for each in pushed}
    finally:
        engine.close()
