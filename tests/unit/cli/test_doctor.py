"""Each check of `lakesync doctor` reports its problem, and what to do about it."""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path

import pytest
import requests

from lakesync.cli.connection import GatewayConnection
from lakesync.cli.exit_codes import ExitCode
from lakesync.cli.local import doctor_checks, doctor_machine
from lakesync.engine import Engine
from lakesync.model.errors import AuthError
from lakesync.staging import open_staging
from lakesync.staging.shards import ShardMap
from lakesync.testing import ManualClock


def test_doctor_reports_problems_with_remedies(run, monkeypatch):
    monkeypatch.setenv("LAKESYNC_JWT_SECRET", "short")
    monkeypatch.setenv("LAKESYNC_SPARK_MEMORY", "9000g")
    monkeypatch.setenv("LAKESYNC_GATEWAY_URL", "http://127.0.0.1:1")
    result = run("doctor", "--json")
    assert result.exit_code == ExitCode.FAILED
    found = {each["name"]: each for each in map(json.loads, result.stdout.splitlines())}
    wrong = {name for name, each in found.items() if each["state"] == "problem"}
    assert wrong == {"secret", "memory"}
    assert "openssl rand" in found["secret"]["remedy"]
    assert "LAKESYNC_SPARK_MEMORY" in found["memory"]["remedy"]
    assert found["gateway"]["state"] == found["dagster"]["state"] == found["staging"]["state"] == "off"
    assert all(each["remedy"] for each in found.values() if each["state"] in {"problem", "warning"})
    assert not Path("lakesync-data").exists()


@pytest.mark.parametrize(
    ("setting", "check", "named"),
    [
        ('[gateways.a]\nschemas = ["folder"]', "files", "folder cannot be read: Is a directory; name JSON files with"),
        ('[gateways.a]\nschemas = "folder"', "files", "gateways.a.schemas is 'folder'.* it must be a list"),
        ('[[gateway.issuers]]\nissuer = "x"\nkeys = "folder"', "issuers", "Is a directory; name a file with"),
        ('data_dir = "file"', "disk", "file, which --data or data_dir names, is not a folder"),
        ('[dagster]\nhome = "file"', "disk", "home names, is not a folder"),
        ('[lake]\ncheckpoints = "file"', "disk", "checkpoints names, is not a folder"),
        ('[lake]\nwarehouse = "file:/{here}/file"', "disk", "warehouse names, is not a folder"),
        ('[lake]\ncatalog_uri = "sqlite:////{here}/file"', "catalogue", "not a database; start its server, or correct"),
        ('[staging]\nurl = "sqlite:/{here}/file"', "disk", "url names, is not a folder"),
        ('[adapters]\ncopy = "file:/{here}/file?format=json"', "disk", r"file, which \[adapters\] copy names, is not"),
        (
            '[adapters]\ncopy = "sqlite:/{here}/file/d.db"',
            "disk",
            r"file, which \[adapters\] copy names, is not a folder",
        ),
    ],
)
def test_doctor_says_what_to_do_with_a_path_of_the_wrong_kind(run, setting, check, named):
    Path("folder").mkdir()
    Path("file").write_text("neither JSON nor a database")
    Path("lakesync.toml").write_text(setting.replace("{here}", f"/{Path.cwd()}"))
    found = json.loads(run("doctor", "--only", check, "--json").stdout)
    assert found["state"] == "problem"
    assert re.search(named, found["found"])


def test_doctor_says_what_to_do_if_postgres_refuses_the_connection(run, monkeypatch):
    monkeypatch.setenv("LAKESYNC_STAGING_URL", "postgresql://ann:sesame@127.0.0.1:1/staging")
    found = json.loads(run("doctor", "--only", "staging", "--json").stdout)
    assert (found["state"], "ann:…@127.0.0.1:1/staging" in found["found"]) == ("problem", True)
    assert found["remedy"] == "start its server, or correct user, password and database in [staging] url"


def test_doctor_rejects_a_heap_that_is_too_small_for_spark(run, monkeypatch):
    monkeypatch.setenv("LAKESYNC_SPARK_MEMORY", "256m")
    result = run("doctor", "--only", "memory", "--json")
    assert (result.exit_code, json.loads(result.stdout)["state"]) == (ExitCode.FAILED, "problem")
    assert "512m or more" in json.loads(result.stdout)["remedy"]


@pytest.mark.parametrize(
    ("files", "is_limited"),
    [
        ({"memory.max": "1610612736"}, True),
        ({"memory.max": "max", "app/memory.max": "1610612736"}, True),
        ({"memory/memory.limit_in_bytes": "1610612736"}, True),
        ({"memory.max": "max", "memory/memory.limit_in_bytes": "9223372036854771712"}, False),
        ({}, False),
    ],
)
def test_doctor_compares_the_heap_with_the_containers_memory(run, monkeypatch, tmp_path, files, is_limited):
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text("3:cpu:/\n0::/app/service\n")
    monkeypatch.setattr(doctor_machine, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(doctor_machine, "_OWN_CGROUP", tmp_path / "own")
    monkeypatch.setenv("LAKESYNC_SPARK_MEMORY", "1g")
    result = json.loads(run("doctor", "--only", "memory", "--json").stdout)
    assert (result["state"] == "problem", result["found"].startswith("1.5 GiB")) == (is_limited, is_limited)


def test_doctor_reports_an_exposed_gateway_without_a_secret(run, monkeypatch):
    assert "on loopback accepts every caller" in json.loads(run("doctor", "--only", "secret", "--json").stdout)["found"]
    monkeypatch.setenv("LAKESYNC_GATEWAY_HOST", "0.0.0.0")
    result = run("doctor", "--only", "secret", "--json")
    assert result.exit_code == ExitCode.FAILED
    assert json.loads(result.stdout)["found"] == "none: without one, the gateway does not start on 0.0.0.0"


def test_doctor_names_the_port_of_a_spark_url_without_one(run, monkeypatch):
    monkeypatch.setattr(doctor_checks, "_SPARK_CONNECT_PORT", 1)
    monkeypatch.setenv("LAKESYNC_SPARK_REMOTE", "sc://127.0.0.1/;token=t")
    found = json.loads(run("doctor", "--only", "spark", "--json").stdout)["found"]
    assert found.startswith("127.0.0.1:1 does not answer")


@pytest.mark.parametrize("check", ["pipeline", "write_scope"])
def test_doctor_names_gateways_that_it_could_not_check(run, monkeypatch, check):
    monkeypatch.setenv("LAKESYNC_GATEWAYS", json.dumps({f"g{number:02}": {} for number in range(60)}))
    is_down = True

    def get(remote, _path, **_):
        if is_down and remote.gateway in {"g01", "g02"}:
            raise AuthError("the token is of another gateway")
        report = {"behind": [], "queued": [], "reportedMs": time.time() * 1000}
        return {"pipeline": report, "rules": None}

    monkeypatch.setattr(GatewayConnection, "get", get)
    result = json.loads(run("doctor", "--only", check, "--json").stdout)
    assert result["state"] == "warning"
    assert result["found"].endswith("2 not checked (g01, g02): the token is of another gateway")
    is_down = False
    result = json.loads(run("doctor", "--only", check, "--json").stdout)
    assert (result["state"], result["found"].partition("; ")[2]) == (
        "ok",
        "50 of 60 gateways checked" if check == "pipeline" else "60 checked",
    )


@pytest.mark.parametrize("check", ["pipeline", "write_scope"])
def test_doctor_warns_if_every_gateway_rejects_the_token(run, monkeypatch, check):
    def get(*_, **__):
        raise AuthError("the token has expired")

    monkeypatch.setattr(GatewayConnection, "get", get)
    monkeypatch.setenv("LAKESYNC_GATEWAYS", '{"shop": {}}')
    result = json.loads(run("doctor", "--only", check, "--json").stdout)
    assert (result["state"], result["found"]) == ("warning", "1 not checked (shop): the token has expired")
    assert "set LAKESYNC_TOKEN" in result["remedy"]


def test_doctor_finds_the_port_of_a_remote_gateway_used_by_another_program(run, monkeypatch):
    ready = requests.Response()
    ready.status_code = 200

    def get(url, **_):
        if url == f"http://far.example:{port}/ready":
            return ready
        raise requests.ConnectionError(url)

    monkeypatch.setattr(requests, "get", get)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("LAKESYNC_GATEWAY_PORT", str(port))
        monkeypatch.setenv("LAKESYNC_DAGSTER_PORT", "0")
        monkeypatch.setenv("LAKESYNC_REMOTE_URL", f"http://far.example:{port}")
        result = json.loads(run("doctor", "--only", "ports", "--json").stdout)
    assert (result["state"], result["found"]) == ("warning", f"used by another program: {port} (--port)")


def test_doctor_distinguishes_forbidden_ports_from_used_ones(run, monkeypatch):
    def bind(_socket, _address):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", bind)
    monkeypatch.setenv("LAKESYNC_GATEWAY_PORT", "80")
    monkeypatch.setenv("LAKESYNC_DAGSTER_PORT", "0")
    result = json.loads(run("doctor", "--only", "ports", "--json").stdout)
    assert (result["state"], result["found"]) == ("warning", "not permitted to this user: 80 (--port)")


def test_doctor_shows_why_a_gateway_is_not_ready(run, monkeypatch):
    response = requests.Response()
    response.status_code, response._content = 503, b'{"error": "disk: 5 bytes are free", "code": "STAGING_UNAVAILABLE"}'
    monkeypatch.setattr(doctor_checks, "_get", lambda _: response)
    (found,) = (json.loads(line) for line in run("doctor", "--only", "gateway", "--json").stdout.splitlines())
    assert (found["state"], found["found"].partition(" is not ready: ")[2]) == ("problem", "disk: 5 bytes are free")


def test_doctor_checks_the_store_of_every_shard(run, monkeypatch):
    shards, place = ShardMap({"orders": "shard-orders"}, "shard-default"), Path.cwd() / "staging"
    monkeypatch.setenv("LAKESYNC_SHARD_CONFIG", json.dumps({"shards": shards.tables, "default": shards.default}))
    monkeypatch.setenv("LAKESYNC_STAGING_URL", f"sqlite://{place}")
    clock = ManualClock()
    engine = Engine(open_staging(f"sqlite://{place}", shards, clock), clock)
    engine.open()
    engine.gateway("shop")
    engine.close()
    result = run("doctor", "--only", "staging", "--json")
    assert json.loads(result.stdout)["found"].startswith("1 gateway, ")
    (place / "shard-orders").rename(place / "elsewhere")
    result = run("doctor", "--only", "staging", "--json")
    assert result.exit_code == ExitCode.FAILED
    assert "shard shard-orders has no store" in json.loads(result.stdout)["found"]


def test_doctor_reports_an_invalid_configuration(run):
    Path("lakesync.toml").write_text("[gateway]\nprot = 1\n")
    result = run("doctor", "--only", "disk")
    assert result.exit_code == ExitCode.FAILED
    assert "gateway.prot is not a setting" in result.stdout


def test_doctor_checks_the_write_scope_of_every_declared_gateway(run, monkeypatch):
    gateways = {f"g{number:02}": {} for number in range(60)}
    monkeypatch.setenv("LAKESYNC_GATEWAYS", json.dumps(gateways))
    answers = {"rules": {"buckets": [{}]}, "writeScope": "any"}
    monkeypatch.setattr(GatewayConnection, "get", lambda _remote, _path: answers)
    result = json.loads(run("doctor", "--only", "write_scope", "--json").stdout)
    assert result["found"].startswith(f"{', '.join(gateways)}: ")
