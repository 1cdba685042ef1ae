"""A missing or unconfigured Spark is reported immediately."""

import time

import pytest

from lakehouse.sessions import connect
from lakesync import config
from lakesync.cli.up.process import free_ports
from lakesync.model.errors import ConfigurationError, LakeUnavailableError


def configured(monkeypatch, tmp_path, **spark):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    return config.load({"data_dir": tmp_path, "spark": spark})


def test_a_remote_without_a_listener_fails_immediately(monkeypatch, tmp_path):
    (port,) = free_ports(1)
    started = time.monotonic()
    with pytest.raises(LakeUnavailableError, match=f"nothing listens at localhost:{port}"):
        connect(configured(monkeypatch, tmp_path, remote=f"sc://127.0.0.1:{port}"))
    assert time.monotonic() - started < 120, "pyspark itself retries for ten minutes"


@pytest.mark.parametrize("remote", ["http://localhost:1", "sc://", "localhost:15002", "sc://host:port"])
def test_a_malformed_spark_remote_is_rejected(monkeypatch, tmp_path, remote):
    with pytest.raises(ConfigurationError, match="sc://HOST:PORT"):
        connect(configured(monkeypatch, tmp_path, remote=remote))


def test_the_error_of_a_malformed_spark_remote_contains_no_token(monkeypatch, tmp_path):
    with pytest.raises(ConfigurationError, match="sc://host:port/'") as failed:
        connect(configured(monkeypatch, tmp_path, remote="sc://host:port/;token=hush-1234"))
    assert "hush-1234" not in str(failed.value)


def test_a_missing_spark_address_is_reported(monkeypatch, tmp_path):
    with pytest.raises(ConfigurationError, match="lakesync up"):
        connect(configured(monkeypatch, tmp_path))
