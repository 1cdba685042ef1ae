"""The servers that tests and `lakesync up` start respond, and both engines read the same lake."""

import psutil
import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakesync.model.errors import StartupError
from tests import backend_servers
from tests.backend_servers import Server


def test_a_server_that_is_not_ready_in_time_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(backend_servers, "_READY_SECONDS", 0.1)
    server = Server("sleeper", tmp_path)
    with pytest.raises(StartupError, match="sleeper was not ready"):
        server.start(["sleep", "600"], lambda: False)
    assert not psutil.pid_exists(server.pid)


@pytest.fixture
def session(spark_server):
    spark = SparkSession.builder.remote(f"{spark_server['remote']}/;token={spark_server['token']}").create()
    yield spark
    spark.stop()


def test_spark_writes_what_pyiceberg_reads(session, spark_server):
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.servers")
    session.sql("CREATE TABLE lake.servers.t (a bigint, b string) USING iceberg")
    session.sql("INSERT INTO lake.servers.t VALUES (1, 'x'), (2, NULL)")
    catalog = SqlCatalog("lake", uri=spark_server["catalog_uri"], warehouse=spark_server["warehouse"])
    try:
        rows = catalog.load_table("servers.t").scan().to_arrow().sort_by("a").to_pylist()
    finally:
        catalog.close()
    assert rows == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


def test_the_session_uses_utc_and_runs_python_functions(session):
    assert session.conf.get("spark.sql.session.timeZone") == "UTC"

    def double(batches):
        for batch in batches:
            yield batch.assign(id=batch["id"] * 2)

    assert session.range(3).mapInPandas(double, "id long").agg({"id": "sum"}).collect()[0][0] == 6


def test_spark_rejects_a_wrong_token(spark_server):
    spark = SparkSession.builder.remote(f"{spark_server['remote']}/;token=wrong").create()
    with pytest.raises(PySparkException, match=r"(?i)auth|token"):
        spark.range(1).collect()
    spark.client.close()


def test_postgres_answers_on_tcp(postgres_uri):
    with psycopg.connect(postgres_uri) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
