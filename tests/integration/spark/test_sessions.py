"""Concurrent sessions on one Spark Connect server."""

import gc
import os
import socket
import sys
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator as Answers
from pyspark.sql.connect.plan import LogicalPlan
from pyspark.sql.datasource import DataSource, DataSourceReader

from lakehouse import sessions
from lakehouse.sessions import connect, session
from lakehouse.task_runner import in_tasks
from tests.conformance.wire import Wire


def workers_of(spark):
    """The processes of two tasks, and the pipeline's modules that they had loaded before their first line."""

    def part(_):
        had = "lakehouse.tables.merge_job" in sys.modules
        yield pa.record_batch({"pid": [os.getpid()], "daemon": [os.getppid()], "had": [had]})

    return in_tasks(spark, 2, part, "pid long, daemon long, had boolean").collect()


def session_id(spark: Any) -> str:
    """The id of a Spark Connect session, which a classic session lacks."""
    return str(spark.session_id)


def test_runs_share_a_session_and_its_python_workers(spark_server):
    config = spark_server["config"]
    with session(config, shared=True) as one:
        first = workers_of(one)
        with session(config, shared=True) as other:
            second = workers_of(other)
            assert session_id(one) == session_id(other)
        assert workers_of(one)  # it continues after another session has ended
    with session(config) as apart:
        assert session_id(apart) != session_id(one)
        third = workers_of(apart)
    assert {row["daemon"] for row in first} == {row["daemon"] for row in second} != {row["daemon"] for row in third}
    assert all(row["had"] for row in [*first, *second, *third])


def source_of(number):
    """A data source of one row. A class of the function, because Spark's workers cannot import this module."""

    class Reader(DataSourceReader):
        def read(self, partition):  # noqa: ARG002 - Spark names it
            yield (number,)

    class Numbered(DataSource):
        @classmethod
        def name(cls):
            return "numbered"

        def schema(self):
            return "number int"

        def reader(self, schema):  # noqa: ARG002 - Spark names it
            return Reader()

    return Numbered


def test_runs_with_equal_plan_ids_read_their_own_sources(spark_server, monkeypatch):
    """The run host forks runs, so their plans have the same ids, by which Spark may keep plans of a shared session."""
    for number in (1, 2):
        monkeypatch.setattr(LogicalPlan, "_nextPlanId", 0)
        with session(spark_server["config"], shared=True) as spark:
            spark.dataSource.register(source_of(number))
            assert spark.read.format("numbered").load().collect() == [(number,)]


def test_the_name_localhost_need_not_resolve(spark_server, monkeypatch):
    """A container may have no /etc/hosts. gRPC resolves names by itself, so the channel's address must be a number."""
    resolve = socket.getaddrinfo

    def without_localhost(host, *args, **options):
        if host == "localhost":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", without_localhost)
    with session(spark_server["config"]) as spark:
        assert spark.range(3).count() == 3
        assert spark.client.host == "localhost"  # for which PySpark sends the token without TLS
    for host, reached in (("localhost", "127.0.0.1"), ("spark-localhost", "spark-localhost")):
        assert sessions._ChannelBuilder(f"sc://{host}:15002/;token=t").endpoint == f"{reached}:15002"


def test_workers_do_not_import_from_archives(spark_server):
    """They would read the archive's directory again before each task."""

    def part(_):
        archives = [path for path, found in sys.path_importer_cache.items() if type(found).__name__ == "zipimporter"]
        yield pa.record_batch({"archives": [archives]}, pa.schema([("archives", pa.list_(pa.string()))]))

    with session(spark_server["config"], shared=True) as spark:
        (row,) = in_tasks(spark, 1, part, "archives array<string>").collect()
    assert row["archives"] == []


def test_each_day_has_its_own_session(spark_server, monkeypatch):
    with session(spark_server["config"], shared=True) as today:
        monkeypatch.setattr("lakehouse.sessions.datetime", Tomorrow)
        with session(spark_server["config"], shared=True) as tomorrow:
            assert session_id(today) != session_id(tomorrow)
            assert tomorrow.range(2).count() == 2


@pytest.mark.deep  # the client pings at most once a minute
def test_a_request_fails_when_spark_becomes_silent(spark_server, monkeypatch):
    monkeypatch.setattr(sessions, "KEEPALIVE", {"grpc.keepalive_time_ms": 1_000, "grpc.keepalive_timeout_ms": 1_000})
    config = spark_server["config"]
    wire = Wire(config.spark.port)
    with session(config.replace(spark={"remote": f"sc://localhost:{wire.port}"})) as spark:
        spark.client.set_retry_policies([])
        wire.hold(b"never.answered")
        with pytest.raises(SparkConnectGrpcException, match="UNAVAILABLE"):
            spark.conf.get("never.answered", "")
        assert wire.passed == 1
    wire.close()


class Tomorrow(datetime):
    """A clock that is a day ahead."""

    @classmethod
    def now(cls, tz=None):
        """Tomorrow, at this time."""
        return super().now(tz) + timedelta(days=1)


def test_a_collected_session_does_not_close_others(spark_server):
    with session(spark_server["config"]) as living:
        forgotten = connect(spark_server["config"])
        for spark in (living, forgotten):
            assert spark.range(3).count() == 3
        shared, client = Answers._release_thread_pool_instance, forgotten.client
        del forgotten, spark
        gc.collect()
        assert not client.is_closed
        assert Answers._release_thread_pool_instance is shared
        assert living.range(3).count() == 3
        client.release_session()
        client.close()


@pytest.mark.parametrize("text", ["${env:HOME}", "${spark.app.id}", "${system:user.dir}"])
def test_spark_substitutes_nothing_in_the_text_of_a_statement(spark_server, text):
    address = f"{spark_server['remote']}/;token={spark_server['token']}"
    bare = SparkSession.builder.remote(address).create()  # without the settings of LakeSync's sessions
    try:
        assert bare.sql(f"SELECT '{text}'").first()[0] == text
    finally:
        bare.stop()
    with session(spark_server["config"]) as spark:
        assert spark.conf.get("spark.sql.variable.substitute") == "false"
        assert spark.sql(f"SELECT '{text}'").first()[0] == text
