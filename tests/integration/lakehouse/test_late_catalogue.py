"""B1 to B3 if the catalogue's answers are late or missing, or a commit succeeds and its answer is lost."""

from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pyspark
import pytest
from pyspark.errors import PySparkException

from lakehouse.checks import duplicate_deltas, history_faults
from lakehouse.history.flush import flush_backlog
from lakehouse.maintenance import maintain
from lakehouse.sessions import session
from lakehouse.spark_errors import is_unanswered
from lakehouse.table_definitions import LakeNames
from lakehouse.tables import writes
from lakehouse.tables.merging import merge_table
from lakesync.cli.up import spark_server as spark_server_settings
from lakesync.config.pipeline_sections import MaintenanceSection
from lakesync.engine import Engine
from lakesync.model.delta import delta_id
from lakesync.model.errors import TransientError
from lakesync.model.schema import parse_schema
from lakesync.model.types import ColumnValue, RowDelta, SyncPush
from lakesync.staging import open_store
from tests.cluster.rest_catalogue import rest_catalogue
from tests.integration.gateway_support import wall_ms
from tests.integration.lakehouse.lost_answers import OF_REST, OF_SQL, Proxy, failing_after_commit, locked
from tests.mute_server import mute_server

SCHEMA = parse_schema({"table": "t", "columns": [{"name": "n", "type": "number"}]})

LIMIT_SECONDS = 10
"""Seconds of silence after which Spark's calls of the catalogue time out."""

pytestmark = pytest.mark.timeout(300)  # Spark's first queries take a minute on a busy machine


@pytest.fixture
def lab(spark_server, tmp_path):
    """Makes labs; closes them at the end."""
    closing = []

    def make(name, settings, **lake):
        warehouse = (tmp_path / "warehouse").as_uri()
        settings = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".warehouse": warehouse,
            ".io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
            ".cache-enabled": "false",
            **settings,
        }
        opened = session(spark_server["config"].replace(lake=lake))
        spark = opened.__enter__()
        closing.append(lambda: opened.__exit__(None, None, None))
        for key, value in settings.items():
            spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
        engine = Engine(open_store(f"sqlite://{tmp_path / 'staging'}", wall_ms), wall_ms)
        engine.open()
        closing.append(engine.close)
        return Lab(spark, engine, LakeNames(name))

    yield make
    for close in reversed(closing):
        close()


class Lab:
    """A gateway whose deltas go to a separate lake."""

    def __init__(self, spark, engine, names):
        self.spark, self.engine, self.names, self.pushed = spark, engine, names, []

    def push(self, count):
        now = wall_ms() << 16
        first = len(self.pushed)
        new = [_delta(number, now + number) for number in range(first, first + count)]
        self.engine.gateway("g").handle_push(SyncPush("c", tuple(new)))
        self.pushed += new

    def flush(self):
        self._until_done(lambda: flush_backlog(self.spark, self.engine.store, names=self.names))

    def merge(self, **options):
        upto = {"g": self.engine.store.cut_point("g").arrival}
        self._until_done(lambda: merge_table(self.spark, SCHEMA, upto, names=self.names, **options))

    def tidy(self, name, limits):
        self._until_done(lambda: maintain(self.spark, self.names, name, limits, self.engine.store.backlog()))

    def check(self, merged=True):
        """Check that each delta is in the lake once and confirmed, and each row merged."""
        rows = self.spark.table(self.names.deltas).select("delta_id").toArrow()["delta_id"].to_pylist()
        assert sorted(rows) == sorted(each.delta_id for each in self.pushed)
        assert duplicate_deltas(self.spark, self.names) == []
        assert history_faults(self.spark, self.engine.store, self.names).differences == []
        (waiting,) = self.engine.store.backlog()
        assert (waiting.deltas, waiting.flushed_seq) == (0, waiting.last_seq)
        if merged:
            rows = self.spark.table(self.names.state("t")).select("_row", "n").toArrow().to_pylist()
            assert {row["_row"]: row["n"] for row in rows} == {one.row_id: float(one.row_id) for one in self.pushed}
            assert len(rows) == len(self.pushed)

    def _until_done(self, work):
        """Retry after transient errors, as the pipeline does."""
        for _ in range(4):
            try:
                return work()
            except TransientError as error:
                last = error
        raise last


def _delta(number, hlc):
    cells = (ColumnValue.of("n", number),)
    identity = delta_id(client_id="c", hlc=hlc, table="t", row_id=f"{number}", columns=cells)
    return RowDelta("INSERT", "t", f"{number}", "c", cells, hlc, identity)


def _jdbc(uri):
    parts = urlsplit(uri)
    place = {".type": "jdbc", ".uri": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}"}
    user = {".jdbc.user": "postgres", ".jdbc.password": "postgres"}
    return {**place, **user, ".jdbc.schema-version": "V1", ".jdbc.socketTimeout": f"{LIMIT_SECONDS}"}


@pytest.fixture(
    params=["postgres", *(pytest.param(each, marks=pytest.mark.deep) for each in ("rest", "postgres behind rest"))]
)
def behind(request, own_database, lab, tmp_path):
    """Return a lab, and the proxy between it and its catalogue."""
    parts = urlsplit(own_database)
    places = (tmp_path / "warehouse").as_uri(), tmp_path, Path(pyspark.__file__).parent

    def over_rest(url):
        rest = {".type": "rest", ".uri": url, ".rest.client.socket-timeout-ms": f"{LIMIT_SECONDS * 1000}"}
        return lab(f"late_{len(request.param)}", rest, catalog_uri=own_database)

    if request.param == "rest":
        with (
            rest_catalogue(own_database, {}, *places) as url,
            closing(Proxy(urlsplit(url).hostname, urlsplit(url).port, OF_REST)) as proxy,
        ):
            yield over_rest(f"http://127.0.0.1:{proxy.port}/"), proxy
        return
    with closing(Proxy(parts.hostname, parts.port, OF_SQL)) as proxy:
        through = own_database.replace(f":{parts.port}/", f":{proxy.port}/")
        if request.param == "postgres":
            yield lab("late", _jdbc(through), catalog_uri=own_database), proxy
            return
        with rest_catalogue(through, {}, *places) as url:
            yield over_rest(url), proxy


def test_b1_a_commit_with_a_lost_answer_is_found_and_damages_nothing(behind, monkeypatch):
    lab, proxy = behind
    lab.push(5)
    lab.flush()
    lab.push(5)
    proxy.lost = 1
    lab.flush()
    assert proxy.lost == 0
    lab.merge()
    lab.push(5)
    lab.flush()
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: True)
    proxy.lost = 1
    lab.merge()
    assert proxy.lost == 0
    lab.check()


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_b1_answers_that_are_late_or_lost_at_any_commit_damage_nothing(behind):
    lab, proxy = behind
    lab.push(5)
    lab.flush()
    proxy.delay = 1.0
    lab.push(5)
    lab.flush()
    lab.merge()
    proxy.delay = 0.0
    lab.check()
    lab.push(5)
    proxy.lost = 2  # the answers to repeats are lost too
    lab.flush()
    limits = MaintenanceSection.model_construct(min_input_files=2, max_manifests=1, snapshot_retention_hours=0)
    forwarded = 0
    proxy.lost = 0
    while proxy.lost == 0:  # lose the first commit's answer, then the second's, until there are no more commits
        lab.push(5)
        lab.flush()
        proxy.lost, proxy.after = 1, forwarded
        lab.merge()
        lab.merge(rebuild=True)
        lab.tidy(lab.names.state("t"), limits)
        lab.tidy(lab.names.deltas, limits)
        lab.check()
        forwarded += 1
    assert forwarded > 5


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_b1_a_commit_that_is_answered_after_the_limit_damages_nothing(behind):
    lab, proxy = behind
    lab.push(5)
    lab.flush()
    lab.push(5)
    proxy.delay = LIMIT_SECONDS + 3.0
    lab.flush()
    proxy.delay = 0.0
    lab.merge()
    lab.check()


@pytest.mark.parametrize(
    ("scheme", "logs_in"),
    [("http://", False), ("postgresql://nobody@", False), ("postgresql://nobody@", True)],
    ids=["rest", "postgres that accepts no login", "postgres that answers no statement"],
)
def test_spark_times_out_on_a_silent_catalogue(spark_server, monkeypatch, scheme, logs_in):
    monkeypatch.setattr(spark_server_settings, "_RESPONSE_SECONDS", 1)
    with mute_server(logs_in=logs_in) as server, session(spark_server["config"]) as spark:
        lake = {"catalog": "silent", "catalog_uri": f"{scheme}127.0.0.1:{server.port}/lake"}
        for key, value in spark_server_settings.catalogue(spark_server["config"].replace(lake=lake)).items():
            spark.conf.set(key, value)
        with pytest.raises(PySparkException) as raised:
            spark.sql("SHOW NAMESPACES IN silent").collect()
    assert is_unanswered(raised.value)


@pytest.mark.deep
def test_b1_the_default_catalogue_fails_after_it_has_committed_and_while_it_is_locked(lab, tmp_path):
    catalogue = tmp_path / "catalogue.db"
    # each driver has its own name for the timeout
    patience = {".uri": f"jdbc:sqlite:file:{catalogue}?timeout=0.1", ".jdbc.busy_timeout": "100"}
    tried = lab("failing_after_commit", {".type": "jdbc", ".jdbc.schema-version": "V1", **patience})
    tried.push(5)
    tried.flush()
    tried.push(5)
    with locked(catalogue), pytest.raises(TransientError):
        tried.flush()
    tried.flush()
    tried.merge()
    tried.push(5)
    with failing_after_commit(catalogue), suppress(TransientError):
        tried.flush()
    tried.flush()
    with failing_after_commit(catalogue), suppress(TransientError):
        tried.merge()
    tried.merge()
    tried.check()
