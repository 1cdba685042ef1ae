"""Servers that accept connections and never answer: the catalogue, Spark, BigQuery. Calls fail in a bounded time."""

from __future__ import annotations

from contextlib import closing

import pytest

from lakehouse import sessions
from lakehouse.sessions import guard_commits
from lakesync.adapters import open_adapter
from lakesync.analysis.catalogue import open_catalogue
from lakesync.config import load
from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.host_policy import HostPolicy
from lakesync.connectors.sql import bigquery
from lakesync.model.errors import AdapterError, ConfigurationError, LakeUnavailableError
from lakesync.wire import http_sessions, postgres
from tests.mute_server import HTTP2_GREETING, mute_server

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def silent(monkeypatch):
    """The address of a silent server, with a timeout of a second."""
    monkeypatch.setattr(http_sessions, "RESPONSE_SECONDS", 1.0)
    with mute_server() as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.mark.parametrize("settings", [{}, {"spark.sql.catalog.lake.credential": "user:secret"}])
def test_a_silent_rest_catalogue_times_out(silent, settings, tmp_path):
    config = load({"data_dir": tmp_path, "lake": {"catalog_uri": silent}, "spark": {"settings": settings}})
    with pytest.raises(LakeUnavailableError, match=r"the Iceberg catalogue at .* cannot be read: .*timed out"):
        open_catalogue(config)


_SIGNED = (
    "&rest.sigv4-enabled=true&rest.sigv4.max-retries=0&rest.signing-region=us-east-1"
    "&client.access-key-id=k&client.secret-access-key=s"
)


@pytest.mark.parametrize("options", ["", _SIGNED], ids=["plain", "signed"])
def test_an_adapter_times_out_on_a_silent_rest_catalogue(silent, options):
    with pytest.raises(ConfigurationError, match="timed out"):
        open_adapter(f"iceberg://lakesync?uri={silent}&warehouse=w{options}")


@pytest.mark.parametrize("logs_in", [False, True])
def test_opening_a_session_times_out_if_the_catalogue_is_silent(logs_in, monkeypatch):
    monkeypatch.setattr(postgres, "RESPONSE_SECONDS", 1.0)
    with mute_server(logs_in=logs_in) as server, pytest.raises(LakeUnavailableError, match="cannot be reached"):
        guard_commits(f"postgresql://nobody@127.0.0.1:{server.port}/lake?connect_timeout=2")


@pytest.mark.parametrize("greeting", [b"", HTTP2_GREETING], ids=["mute", "greets"])
@pytest.mark.parametrize("token", [None, "a-token-of-this-test"])
def test_opening_a_session_times_out_if_spark_is_silent(token, greeting, monkeypatch, tmp_path):
    monkeypatch.setattr(sessions, "RETRY_SECONDS", 1.0)
    with mute_server(greeting=greeting) as server:
        spark = {"remote": f"sc://localhost:{server.port}", "token": token}
        config = load({"data_dir": tmp_path, "spark": spark})
        with pytest.raises(LakeUnavailableError, match="does not answer within 1 s"):
            sessions.connect(config)


def test_a_connector_times_out_on_a_silent_bigquery(silent, monkeypatch):
    monkeypatch.setattr(bigquery, "_RETRY_SECONDS", 1.0)
    settings = {"projectId": "p", "dataset": "d", "endpoint": silent}
    reader = bigquery.reader(ConnectorConfig("gw", "db", "bigquery", settings, hosts=HostPolicy(("127.0.0.1",))))
    with closing(reader), pytest.raises(AdapterError, match="BigQuery failed"), reader.snapshot() as snapshot:
        snapshot.columns("SELECT 1 AS one")
