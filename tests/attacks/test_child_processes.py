"""The environment variables of each service process, which an attacker of the process could read."""

from __future__ import annotations

import json
import os
import sys

import pytest

from lakesync import config
from lakesync.cli.data_folder import ensure_secrets
from lakesync.cli.local.query import _child_environment
from lakesync.cli.up.process import Process
from lakesync.cli.up.services import services
from lakesync.cli.up.spark_server import SparkServer
from lakesync.config import files

SECRETS = {
    "jwt_secret": "j" * 32,
    "jwt_secret_previous": "p" * 32,
    "service_token": "s" * 32,
    "metrics_token": "m" * 32,
    "secret_key": "k" * 32,
    "secret_key_previous": "q" * 32,
    "token": "t" * 32,
    "spark.token": "x" * 32,
    "dagster.alert_webhook": "w" * 32,
    "dagster.alert_secret": "a" * 32,
    "dagster.storage_url": "d" * 32,
    "gateway.issuers": "i" * 32,
    "staging.url": "u" * 32,
    "adapters": "b" * 32,
}
NEEDED = {
    "gateway": {
        "jwt_secret",
        "jwt_secret_previous",
        "service_token",
        "metrics_token",
        "secret_key",
        "secret_key_previous",
        "gateway.issuers",
        "staging.url",
        "adapters",
    },
    "code_server": {
        "service_token",
        "dagster.alert_webhook",
        "dagster.alert_secret",
        "dagster.storage_url",
        "staging.url",
        "adapters",
    },
    "runs": {
        "service_token",
        "secret_key",
        "secret_key_previous",
        "spark.token",
        "dagster.storage_url",
        "staging.url",
        "adapters",
    },
    "spark": {"spark.token"},
    "dagster": {"dagster.storage_url"},
    "daemon": {"dagster.storage_url"},
    "recovery": {"dagster.storage_url"},
}


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """The settings, with all secrets among the variables of this process."""
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    monkeypatch.setenv("CONNECTOR_shop_TOKEN", "of a connector")
    monkeypatch.setenv("UNRELATED", "kept")
    for number, (name, value) in enumerate(SECRETS.items()):
        if name in ("dagster.storage_url", "staging.url", "adapters"):
            value = f"postgresql://lakesync:{value}@127.0.0.1/{name}"  # noqa: PLW2901
        given = {
            "gateway.issuers": json.dumps([{"issuer": "https://login", "secret": value}]),
            "adapters": json.dumps({"copy": value}),
        }.get(name, value)
        monkeypatch.setenv(f"LAKESYNC_{name.upper().replace('.', '_')}", given)
        monkeypatch.setenv(f"ANOTHER_NAME_{number}", f"prefix {value}")
    ports = {"gateway": {"url": "http://127.0.0.1:1"}, "dagster": {"url": "http://127.0.0.1:2"}}
    return config.load({"data_dir": tmp_path, **ports})


@pytest.fixture
def started(configured, tmp_path):
    """Every service of `lakesync up`."""
    spark = SparkServer(("true",), {"SPARK_CONNECT_AUTHENTICATE_TOKEN": SECRETS["spark.token"]}, "sc://localhost:3", 3)
    return {each.name: each for each in services(configured, spark, tmp_path / "workspace.yaml")}


def variables(service, folder):
    """Return the environment variables of a service's process, read from that process."""
    output = folder / f"{service.name}.json"
    code = f"import json, os; open({str(output)!r}, 'w').write(json.dumps(dict(os.environ)))"
    process = Process(service.name, (sys.executable, "-c", code), service.environment, folder / "log")
    process.wait_ready(lambda: process.exit_code == 0, timeout=60)
    return json.loads(output.read_text())


def secrets_in(variables):
    """Return the names of the secrets that variables contain."""
    return {secret for secret, value in SECRETS.items() if any(value in each for each in variables.values())}


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_each_process_has_only_the_secrets_that_it_needs(started, tmp_path, name):
    found = variables(started[name], tmp_path)
    assert secrets_in(found) == NEEDED[name]
    assert ("CONNECTOR_shop_TOKEN" in found) == (name in {"gateway", "runs"})
    assert found["UNRELATED"] == "kept"
    assert found["PATH"] == os.environ["PATH"]


def test_the_table_of_secrets_has_every_process(started):
    assert set(started) == set(NEEDED)


def test_each_secret_is_in_the_table_and_reaches_a_process():
    urls = {"lake.catalog_uri", "flush.to_uri"}  # as `staging.url`
    assert set(files.SECRETS) - urls <= set(SECRETS)
    assert set(SECRETS) - set().union(*NEEDED.values()) == {"token"}, "a command's own"


def test_the_child_of_a_query_has_only_the_secrets_that_it_needs(configured):
    found = _child_environment(configured)
    assert secrets_in(found) == {"service_token", "spark.token", "staging.url", "adapters"}
    assert "CONNECTOR_shop_TOKEN" not in found
    assert (found["UNRELATED"], found["PATH"]) == ("kept", os.environ["PATH"])


def test_of_the_generated_secrets_the_child_of_a_query_has_the_service_token(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    generated = ensure_secrets(tmp_path)
    found = _child_environment(config.load({"data_dir": tmp_path})).values()
    assert [name for name, value in generated.items() if value in found] == ["service_token"]
