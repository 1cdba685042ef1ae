"""Adapters whose backend fails: lost answers, killed servers, rejected logins, full disks."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import psycopg
import pymysql
import pytest
import requests

from lakesync.adapters import DeltaQuery, LocalDisk, ObjectDeltas, SqliteAdapter
from lakesync.adapters.arrow import from_arrow
from lakesync.adapters.backends import bigquery
from lakesync.adapters.backends.mysql import MySqlAdapter
from lakesync.adapters.backends.postgres import PostgresAdapter
from lakesync.adapters.deltas import checksum_of
from lakesync.adapters.object_store.s3 import S3Objects
from lakesync.cli.up.process import free_ports
from lakesync.model.errors import AdapterError
from tests.backend_servers import bigquery_server, mariadb_server, strict_s3_server
from tests.conformance import adapter_places
from tests.conformance.book import make_delta
from tests.conformance.test_adapters import batch, everything
from tests.conformance.wire import Wire
from tests.integration.gateway_support import until
from tests.postgres_server import database, postgres_server
from tests.small_disk import mounted

_KEYS = {"region": "us-east-1", "access_key": "k", "secret_key": "secret"}
SOME = batch(1, *(make_delta("c", n, f"r{n}", x="v" * 100) for n in range(1, 500)))


class Wired:
    """A database behind a proxy."""

    def __init__(self, kind, request, folder):
        self.server = request.getfixturevalue({"postgres": "shared_postgres", "mariadb": "shared_mariadb"}[kind])
        fixture = {"postgres": "postgres_uri", "mariadb": "mariadb_uri"}[kind]
        adapter_places.SERVERS[fixture] = self.server.uri
        uri = getattr(adapter_places, {"postgres": "postgres_uri", "mariadb": "mysql_uri"}[kind])(folder)
        port = int(self.server.uri.rpartition(":")[2].partition("/")[0])
        self.wire = Wire(port)
        self.loading = {"postgres": b"FROM STDIN", "mariadb": b"LOAD DATA"}[kind]
        self.make = {"postgres": PostgresAdapter, "mariadb": MySqlAdapter}[kind]
        self.uri = uri.replace(f":{port}", f":{self.wire.port}")
        self.adapter = self.make(self.uri)
        self.up = threading.Event()

    def crash(self):
        """Kill the server and start it again."""
        if isinstance(self.adapter, PostgresAdapter):
            self.server.restart("immediate")
        else:
            self.server.kill()
            self.server.again()
        self.up.set()


@pytest.fixture(params=["postgres", "mariadb"])
def wired(request, tmp_path):
    here = Wired(request.param, request, tmp_path)
    yield here
    here.adapter.close()
    here.wire.close()


def test_a_commit_with_a_lost_answer_can_be_repeated(wired):
    wired.adapter.prepare()
    wired.wire.lose_the_answer_to(b"COMMIT")
    with pytest.raises(AdapterError) as raised:
        wired.adapter.insert_deltas(SOME)
    assert wired.wire.passed == 1
    assert "secret" not in str(raised.value)
    assert len(everything(wired.adapter)) == 499, "the server had committed it"
    assert wired.adapter.insert_deltas(SOME) == checksum_of(SOME.deltas)
    assert len(everything(wired.adapter)) == 499


def test_a_server_that_dies_during_a_load_stores_all_or_nothing(wired):
    wired.adapter.prepare()
    wired.wire.when(wired.loading, wired.crash)
    with pytest.raises(AdapterError):
        wired.adapter.insert_deltas(SOME)
    assert wired.wire.passed == 1
    assert wired.up.wait(60)
    assert everything(wired.adapter) == []
    assert wired.adapter.insert_deltas(SOME) == checksum_of(SOME.deltas)


def test_idle_connections_are_not_reused_after_a_server_restart(wired):
    wired.adapter.insert_deltas(SOME)
    wired.crash()
    assert len(everything(wired.adapter)) == 499


def test_a_connection_whose_settings_are_rejected_is_closed(own_database):
    with psycopg.connect(own_database, autocommit=True) as sql:
        sql.execute("CREATE SCHEMA mine")
        sql.execute("CREATE VIEW mine.pg_settings AS SELECT 1 AS name")
        adapter = PostgresAdapter(f"{own_database}?options=-csearch_path%3Dmine,pg_catalog")
        with pytest.raises(AdapterError) as kept:
            adapter.prepare()
        assert "setting" in str(kept.value)
        open_connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        until(lambda: sql.execute(open_connections).fetchone() == (1,), "the end of the adapter's connection")


@pytest.mark.parametrize("options", ["", "?client_encoding=utf8"])
def test_text_is_stored_and_read_in_a_database_with_another_encoding(postgres_uri, options):
    some = batch(1, *(make_delta("c", n, f"r{n}é", x="ä" * n) for n in range(1, 50)))
    with database(postgres_uri, "ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0") as uri:
        with closing(PostgresAdapter(uri + options)) as adapter:
            adapter.insert_deltas(some)
            read = adapter.query_arrow(DeltaQuery()).deltas
        read.validate(full=True)
        assert sorted(from_arrow(read), key=repr) == sorted(some.deltas, key=repr)
        with psycopg.connect(uri, client_encoding="utf8") as sql:
            stored = sql.execute("SELECT row_id FROM lakesync_deltas").fetchall()
        assert {row for (row,) in stored} == {each.delta.row_id for each in some.deltas}


@pytest.mark.parametrize("kind", [pytest.param("bigquery", marks=pytest.mark.deep), "parquet on s3"])
def test_broken_connections_are_reopened(request, kind, tmp_path):
    request.param = kind
    adapter_places.start_server(request)
    wire = Wire(adapter_places.port_of(kind))
    adapter = adapter_places.through(kind, wire.port, tmp_path)
    adapter.insert_deltas(SOME)
    assert wire.cut() > 0
    more = batch(2, make_delta("c", 1_000, "r", x="v"))
    assert adapter.insert_deltas(more) == checksum_of(more.deltas)
    assert len(everything(adapter)) == 500
    adapter.close()
    wire.close()


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["parquet on strict s3"])
def test_an_object_store_that_dies_during_a_write_stores_all_or_nothing(monkeypatch, kind, tmp_path):
    with strict_s3_server() as server:
        monkeypatch.setitem(adapter_places.SERVERS, adapter_places.NEEDS[kind], server.endpoint)
        wire = Wire(server.port)
        adapter = adapter_places.through(kind, wire.port, tmp_path)

        def crash():
            server.kill()
            server.again()

        wire.when(b"PUT /", crash)
        with suppress(AdapterError):  # or the driver retries
            adapter.insert_deltas(SOME)
        assert wire.passed == 1
        assert len(everything(adapter)) in {0, 499}
        assert adapter.insert_deltas(SOME) == checksum_of(SOME.deltas)
        assert len(everything(adapter)) == 499
        adapter.close()
        wire.close()


@pytest.mark.parametrize("kind", ["parquet on s3"])
def test_a_lost_s3_answer_is_not_mistaken_for_another_writer(kind, s3_endpoint, tmp_path):
    adapter_places.SERVERS["s3_endpoint"] = s3_endpoint
    adapter_places.s3_objects(tmp_path)
    wire = Wire(int(s3_endpoint.rpartition(":")[2]))
    bucket = adapter_places._own(tmp_path).replace("_", "-")
    assert kind == "parquet on s3"
    store = S3Objects(
        bucket, endpoint=f"http://127.0.0.1:{wire.port}", region="us-east-1", access_key="k", secret_key="s"
    )
    wire.lose_the_answer_to(b"PUT /")
    assert store.put_object("k", b"mine", if_absent=True) is True
    assert wire.passed == 1
    assert store.put_object("k", b"other", if_absent=True) is False
    store.close()
    wire.close()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(b"MERGE", id="bigquery, of a merge"),
        pytest.param(b"uploadType", id="bigquery, of a load", marks=pytest.mark.deep),
    ],
)
def test_a_lost_bigquery_answer_duplicates_nothing(bigquery_endpoint, tmp_path, words):
    adapter_places.SERVERS["bigquery_endpoint"] = bigquery_endpoint
    uri, port = adapter_places.bigquery_uri(tmp_path), bigquery_endpoint.rpartition(":")[2]
    wire = Wire(int(port))
    adapter = bigquery.BigQueryAdapter(uri.replace(f":{port}", f":{wire.port}"))
    adapter.prepare()
    wire.lose_the_answer_to(words)
    with suppress(AdapterError):  # or the driver requests the state of its job
        adapter.insert_deltas(SOME)
    assert wire.passed == 1
    assert adapter.insert_deltas(SOME) == checksum_of(SOME.deltas)
    assert len(everything(adapter)) == 499
    adapter.close()
    wire.close()


@pytest.mark.parametrize("words", [pytest.param(b"/queries/", id="a result"), pytest.param(b"POST /", id="a request")])
def test_bigquery_that_never_answers_is_reported(bigquery_endpoint, monkeypatch, tmp_path, words):
    adapter_places.SERVERS["bigquery_endpoint"] = bigquery_endpoint
    uri, port = adapter_places.bigquery_uri(tmp_path), bigquery_endpoint.rpartition(":")[2]
    wire = Wire(int(port))
    for name in ("_REQUEST_SECONDS", "_RETRY_SECONDS", "_JOB_SECONDS"):
        monkeypatch.setattr(bigquery, name, 1.0)
    monkeypatch.setattr("google.cloud.bigquery.client._MIN_GET_QUERY_RESULTS_TIMEOUT", 1)  # two minutes
    adapter = bigquery.BigQueryAdapter(uri.replace(f":{port}", f":{wire.port}"))
    wire.hold(words)
    with pytest.raises(AdapterError, match=r"BigQuery dataset .* failed: .*(Timeout|timed out|within)"):
        adapter.insert_deltas(SOME)
    assert wire.passed > 0
    wire.close()
    adapter.close()


@pytest.mark.parametrize(
    "dies",
    [
        pytest.param("MERGE:1", id="bigquery, in a merge"),
        pytest.param("COPY:1", id="bigquery, in a load", marks=pytest.mark.deep),
    ],
)
def test_bigquery_that_dies_during_a_batch_stores_all_or_nothing(monkeypatch, tmp_path, dies):
    with bigquery_server(dies=dies) as server:
        monkeypatch.setitem(adapter_places.SERVERS, "bigquery_endpoint", server.endpoint)
        monkeypatch.setattr(bigquery, "_RETRY_SECONDS", 1.0)
        adapter = adapter_places.DATABASES["bigquery"](tmp_path)
        with pytest.raises(AdapterError):
            adapter.insert_deltas(SOME)
        assert not server.listens()
        server.again()
        monkeypatch.setattr(bigquery, "_RETRY_SECONDS", 60.0)
        assert everything(adapter) == []
        assert adapter.insert_deltas(SOME) == checksum_of(SOME.deltas)
        assert len(everything(adapter)) == 499
        adapter.close()


def closed_door(kind, request):
    """An adapter whose server is not running, or rejects the login."""
    (unused,) = free_ports(1)
    if kind == "postgres, no server":
        return PostgresAdapter(f"postgresql://u:secret@127.0.0.1:{unused}/db")
    if kind == "mariadb, no server":
        return MySqlAdapter(f"mysql://u:secret@127.0.0.1:{unused}/db")
    if kind == "parquet on s3, no server":
        return ObjectDeltas(S3Objects("b", endpoint=f"http://127.0.0.1:{unused}", **_KEYS))
    if kind == "bigquery, no server":
        request.getfixturevalue("monkeypatch").setattr(bigquery, "_RETRY_SECONDS", 1.0)
        return bigquery.BigQueryAdapter(f"bigquery://p/d?endpoint=http://127.0.0.1:{unused}")
    if kind == "bigquery, no credentials":
        request.getfixturevalue("monkeypatch").setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
        return bigquery.BigQueryAdapter("bigquery://p/d")
    if kind == "parquet on s3, wrong key":
        endpoint = request.getfixturevalue("s3_endpoint")
        requests.put(f"{endpoint}/guarded", timeout=30).raise_for_status()
        checks = f"{endpoint}/moto-api/reset-auth"
        requests.post(checks, data="0", timeout=30).raise_for_status()
        request.addfinalizer(lambda: requests.post(checks, data="inf", timeout=30).raise_for_status())
        return ObjectDeltas(S3Objects("guarded", endpoint=endpoint, **_KEYS))
    if kind == "mariadb, wrong password":
        return MySqlAdapter(f"{request.getfixturevalue('mariadb_uri').replace('secret', 'secret2')}/mysql")
    if kind == "parquet on s3, no such bucket":
        endpoint = request.getfixturevalue("s3_endpoint")
        return ObjectDeltas(S3Objects("absent", endpoint=endpoint, **_KEYS))
    server = request.getfixturevalue("shared_postgres")
    with psycopg.connect(server.uri, autocommit=True) as sql:
        if sql.execute("SELECT 1 FROM pg_roles WHERE rolname = 'guarded'").fetchone() is None:
            sql.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
        ((rules,),) = sql.execute("SELECT setting FROM pg_settings WHERE name = 'hba_file'").fetchall()
        text = Path(rules).read_text()
        Path(rules).write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{text}")
        sql.execute("SELECT pg_reload_conf()")
    return PostgresAdapter(server.uri.replace("postgres:postgres@", "guarded:secret@"))


@pytest.mark.parametrize(
    "kind",
    [
        "postgres, no server",
        "mariadb, no server",
        "parquet on s3, no server",
        "bigquery, no server",
        "postgres, wrong password",
        "mariadb, wrong password",
        "bigquery, no credentials",
        "parquet on s3, wrong key",
        "parquet on s3, no such bucket",
    ],
)
def test_a_rejected_login_is_reported_without_the_password(kind, request):
    adapter = closed_door(kind, request)
    for call in (lambda: adapter.insert_deltas(SOME), lambda: adapter.query_deltas_since(DeltaQuery())):
        with pytest.raises(AdapterError) as raised:
            call()
        assert "secret" not in str(raised.value)
    adapter.close()


@pytest.fixture
def small_disk():
    """A disk of 2 MB."""
    folder = Path(tempfile.mkdtemp(prefix="lakesync-small-", dir="/tmp"))  # the server's own user must reach it too
    with mounted(folder, 2):
        yield folder
    folder.rmdir()


@contextmanager
def on_sqlite(folder, request):
    yield SqliteAdapter(folder / "d.db"), None


@contextmanager
def on_objects(folder, request):
    yield ObjectDeltas(LocalDisk(folder / "o")), None


@contextmanager
def on_postgres(folder, request):
    """A Postgres whose tables alone are on the small disk; its log is on another disk."""
    with postgres_server() as server:
        tables, owner = folder / "tables", server.data.stat().st_uid
        tables.mkdir()
        os.chown(tables, owner, owner)
        with psycopg.connect(server.uri, autocommit=True) as sql:
            sql.execute(f"CREATE TABLESPACE small LOCATION '{tables}'".encode())
        yield PostgresAdapter(f"{server.uri}?options={quote('-cdefault_tablespace=small')}"), None


@contextmanager
def on_mariadb(folder, request):
    """A MariaDB with one database's tables on the small disk, and its log on another one.

    It exits if it cannot write.
    """
    if shutil.which("mariadbd") is None:
        pytest.skip("MariaDB (mariadbd) is not installed; scripts/install --dev installs it where apt-get is permitted")
    with mariadb_server() as server:
        own = server.folder / "data" / "small"
        with pymysql.connect(host="127.0.0.1", port=server.port, user="root") as sql, sql.cursor() as cursor:
            cursor.execute("CREATE DATABASE small")
        shutil.move(own, folder / "small")
        own.symlink_to(folder / "small")

        def start_again():
            server.kill()
            server.again()

        yield MySqlAdapter(f"{server.uri}/small"), start_again


@contextmanager
def on_strict_s3(folder, request):
    with strict_s3_server(folder) as server:
        request.getfixturevalue("monkeypatch").setitem(adapter_places.SERVERS, "strict_s3_endpoint", server.endpoint)
        yield adapter_places.DATABASES["parquet on strict s3"](folder), None


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(on_sqlite, id="sqlite"),
        pytest.param(on_objects, id="parquet on local disk"),
        pytest.param(on_postgres, id="postgres"),
        pytest.param(on_mariadb, id="mariadb"),
        pytest.param(on_strict_s3, id="parquet on strict s3", marks=pytest.mark.deep),
    ],
)
def test_a_full_disk_loses_no_stored_delta(request, small_disk, place):
    with place(small_disk, request) as (adapter, start_again):
        kept = 0
        for number in range(1, 200):
            made = batch(
                number, *(make_delta("c", number * 100 + n, f"r{number}-{n}", x=_noise(number, n)) for n in range(20))
            )
            try:
                adapter.insert_deltas(made)
            except AdapterError:
                break
            kept += 20
        assert 0 < kept < 199 * 20
        if start_again is None:
            assert len(everything(adapter)) == kept
        subprocess.run(["mount", "-o", "remount,size=32m", str(small_disk)], check=True)
        if start_again is not None:
            start_again()
            assert len(everything(adapter)) == kept
        assert adapter.insert_deltas(made) == checksum_of(made.deltas)
        assert len(everything(adapter)) == kept + 20
        adapter.close()


def _noise(*seed: int) -> str:
    """Text that does not compress."""
    import random

    return random.Random(str(seed)).randbytes(1500).hex()
