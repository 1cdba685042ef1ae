"""The command line of the embedded Spark server."""

import re
import stat

import pytest

from lakesync import config
from lakesync.cli.up import spark_server
from lakesync.model.errors import ConfigurationError, StartupError


@pytest.fixture
def conf(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return config.load({"data_dir": tmp_path, "spark": {"memory": "3g", "settings": {"spark.sql.ansi.enabled": "no"}}})


def test_the_catalogues_host_may_be_an_ipv6_address(conf):
    conf = conf.replace(lake={"catalog_uri": "postgresql://u@[::1]:5433/lake"})
    assert spark_server.catalogue(conf)["spark.sql.catalog.lake.uri"] == "jdbc:postgresql://[::1]:5433/lake"


def test_the_command_line_contains_no_secrets(conf, tmp_path):
    conf = conf.replace(lake={"catalog_uri": "postgresql://u:p%40ss@db:5433/lake?sslmode=require"})
    server = spark_server.prepare(conf, port=4, token="t0ken", jars=[tmp_path / "a b.jar"])
    assert server.command[0].endswith("java-runtime/bin/java")
    assert server.command[1] == f"@{tmp_path}/spark/server.args"
    arguments = tmp_path / "spark/server.args"
    assert stat.S_IMODE(arguments.stat().st_mode) == 0o600
    lines = arguments.read_text().splitlines()
    assert '"-Xmx3g"' in lines
    assert '"-Dspark.sql.catalog.lake.uri=jdbc:postgresql://db:5433/lake?sslmode=require"' in lines
    assert '"-Dspark.sql.catalog.lake.jdbc.password=p@ss"' in lines
    assert lines[-2].endswith(f'/jars/*:{tmp_path}/a b.jar"')
    assert "t0ken" not in arguments.read_text()
    assert server.environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] == "t0ken"
    assert re.fullmatch(r"sc://localhost:4/;session_id=[0-9a-f-]{36}", server.remote)
    assert "t0ken" not in repr(server)


@pytest.mark.parametrize(("memory", "first"), [("64m", "64m"), ("900m", "64m"), ("1g", "64m")])
def test_the_initial_heap_does_not_exceed_the_maximum(conf, tmp_path, memory, first):
    spark_server.prepare(conf.replace(spark={"memory": memory}), port=4, token="t", jars=[])
    lines = (tmp_path / "spark/server.args").read_text().splitlines()
    assert lines[:2] == [f'"-Xmx{memory}"', f'"-Xms{first}"']


@pytest.mark.parametrize(("cores", "collector"), [(2, "Serial"), (4, "Serial"), (8, "Parallel")])
def test_the_parallel_collector_is_used_with_many_cores(conf, tmp_path, cores, collector):
    spark_server.prepare(conf.replace(spark={"cores": cores}), port=4, token="t", jars=[])
    assert f'"-XX:+Use{collector}GC"' in (tmp_path / "spark/server.args").read_text().splitlines()


def test_settings_of_the_user_take_precedence(conf):
    assert spark_server.settings(conf, 1)["spark.sql.ansi.enabled"] == "no"


def test_sparks_files_are_found_in_a_folder_with_spaces(conf, tmp_path):
    folder = tmp_path / "my data é"
    conf = conf.replace(data_dir=folder)
    spark_server.prepare(conf, port=4, token="t", jars=[])
    paths = {name: value for name, value in spark_server.settings(conf, 4).items() if value.startswith("file:")}
    assert paths["spark.scheduler.allocation.file"] == f"file:{folder}/spark/pools.xml"  # Hadoop decodes no %20
    assert [name for name, value in paths.items() if "%" in value] == []


def test_spark_and_pyiceberg_open_the_same_sqlite_catalogue(conf, tmp_path):
    assert spark_server.catalogue(conf)["spark.sql.catalog.lake.uri"] == f"jdbc:sqlite:file:{tmp_path}/catalog.db"
    assert conf.lake.catalog_uri == f"sqlite:///{tmp_path}/catalog.db"


def test_spark_is_configured_for_a_rest_catalogue_and_a_warehouse_on_s3(conf):
    conf = conf.replace(lake={"catalog_uri": "https://lake.test/api", "warehouse": "s3://bucket/lake"})
    found = spark_server.catalogue(conf)
    assert found["spark.sql.catalog.lake.type"] == "rest"
    assert found["spark.sql.catalog.lake.uri"] == "https://lake.test/api"
    assert found["spark.sql.catalog.lake.io-impl"].endswith("ResolvingFileIO")
    assert not any("jdbc" in key for key in found)


def test_a_clusters_workers_fetch_the_jars_from_the_driver(conf, tmp_path):
    conf = conf.replace(spark={"master": "spark://m:7077"})
    server = spark_server.prepare(conf, port=4, token="t", jars=[tmp_path / "a.jar", tmp_path / "b.jar"])
    lines = (tmp_path / "spark/server.args").read_text().splitlines()
    assert '"-Dspark.master=spark://m:7077"' in lines
    assert f'"-Dspark.jars=file://{tmp_path}/a.jar,file://{tmp_path}/b.jar"' in lines
    assert server.port == 4


def java(tmp_path, version, first_line=""):
    program = tmp_path / "bin/java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{first_line}openjdk version \"{version}\" 2025\nEND\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "first_line"),
    [("17.0.15", ""), ("21-ea", ""), ("17", 'Picked up JAVA_TOOL_OPTIONS: -Dname="a b"\n')],
)
def test_java_home_takes_precedence(tmp_path, monkeypatch, version, first_line):
    java(tmp_path, version, first_line)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert spark_server.java_home() == tmp_path


def test_an_old_or_missing_java_home_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="no Java"):
        spark_server.java_home()
    java(tmp_path, "1.8.0_402")
    with pytest.raises(ConfigurationError, match=r"Java 8\b"):
        spark_server.java_home()


def test_a_missing_package_is_reported_with_a_remedy(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(StartupError, match=r"lakesync\[platform\]"):
        spark_server.prepare.__globals__["_package"]("pyspark")
