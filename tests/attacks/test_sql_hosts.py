"""A tenant's admin makes a database driver connect to the server's own network, or use the server's credentials."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.host_policy import HostPolicy
from lakesync.connectors.registry import Connectors
from lakesync.connectors.secrets import Secrets
from lakesync.connectors.sql import bigquery, mysql, postgres
from lakesync.model.errors import AdapterError, AuthError, ConfigurationError, LakeSyncError
from lakesync.model.types import StoredConnector
from lakesync.testing.servers import Response, serve
from tests.attacks.rebinding import rebind

DATABASES: dict[str, Any] = {"postgres": (postgres.reader, "postgresql"), "mysql": (mysql.reader, "mysql")}


class Listener:
    """A server on loopback that counts its connections and runs `talk` for each."""

    def __init__(self, talk=None):
        self._talk, self.connections, self._closing = talk, 0, False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                line, _ = self._server.accept()
            except OSError:
                return
            with line:
                if self._closing:
                    return
                self.connections += 1
                if self._talk is not None:
                    self._talk(line)

    def close(self):
        self._closing = True
        with socket.create_connection(self._server.getsockname()):
            pass
        self._thread.join()
        self._server.close()


@pytest.fixture
def listen():
    made = []

    def one(talk=None):
        made.append(Listener(talk))
        return made[-1]

    yield one
    for each in made:
        each.close()


def read(kind, uri, *allowed):
    """Try to read a database, as a poll does."""
    make = DATABASES[kind][0]
    config = ConnectorConfig("gw", "db", kind, {"connectionString": uri}, hosts=HostPolicy(allowed))
    with closing(make(config)) as reader, reader.snapshot():
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0.0.0.0", "[::ffff:127.0.0.1]"])
@pytest.mark.parametrize("kind", DATABASES)
def test_a_private_host_is_not_connected_to(listen, kind, host):
    server = listen()
    uri = f"{DATABASES[kind][1]}://me:secret@{host}:{server.port}/db"
    with pytest.raises(ConfigurationError, match="allowed_hosts"):
        read(kind, uri, "*")
    assert server.connections == 0


@pytest.mark.parametrize("kind", DATABASES)
def test_dns_rebinding_reaches_no_private_host(listen, monkeypatch, kind):
    """DNS rebinding: the driver connects to the address that was checked."""
    server = listen()
    asked = rebind(monkeypatch, "127.0.0.1", "127.0.0.2")
    with pytest.raises(AdapterError):  # the server there closes the connection
        read(kind, f"{DATABASES[kind][1]}://me:secret@rebound.example:{server.port}/db", "127.0.0.1/32")
    assert (server.connections, len(asked)) == (1, 1)


@pytest.mark.parametrize("which", ["127.0.0.1,10.0.0.8", "8.8.8.8,127.0.0.1"])
def test_each_of_several_hosts_of_postgres_is_checked(which):
    with pytest.raises(ConfigurationError, match="allowed_hosts"):
        read("postgres", f"host={which} user=me password=secret", "*")


@pytest.mark.parametrize(
    "more",
    [
        "host=/var/run/postgresql",
        "host=@abstract",
        "host=db.example,/var/run/postgresql",
        "dbname=x",
        "host=db.example hostaddr=127.0.0.1",
        "host=db.example service=other",
        "host=db.example passfile=/root/.pgpass",
        "host=db.example sslcert=/etc/ssl/own.crt sslkey=/etc/ssl/own.key",
        "host=db.example sslrootcert=/etc/shadow",
        "host=db.example sslcrldir=/",
        "host=db.example sslkeylogfile=/tmp/written",
        "host=db.example krbsrvname=http",
        "host=db.example gssdelegation=1",
        "host=db.example oauth_issuer=https://10.0.0.8 oauth_client_id=x",
        "host=db.example port=1,2",
        "host=db.example port=many",
    ],
)
def test_a_connection_string_that_uses_files_of_the_server_is_rejected(more):
    with pytest.raises(ConfigurationError) as refused:
        read("postgres", f"user=me password=hunter2 {more}", "*", "db.example")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "uri"),
    [
        ("postgres", "host=db.example password=hunter2 hunter2"),
        ("postgres", "postgresql://me:hunter2@db.example:hunter2/db?x=%zz"),
        ("postgres", "postgresql://me@[hunter2/db"),
        ("mysql", "mysql://me:hunter2@db.example:hunter2/db"),
        ("mysql", "mysql://me:hunter2@[db/x"),
        ("mysql", "mysql://me:hunter2@/x"),
    ],
)
def test_a_malformed_connection_string_is_not_shown(kind, uri):
    with pytest.raises(ConfigurationError) as refused:
        read(kind, uri, "*")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("given", ["", "password=''"])
def test_passwords_of_the_server_are_not_sent_to_a_database(listen, monkeypatch, tmp_path, given):
    shown = []

    def talk(line):
        while True:
            length, code = struct.unpack("!II", line.recv(8, socket.MSG_WAITALL))
            if code != 80877103:  # a request for TLS
                break
            line.sendall(b"N")
        line.recv(length - 8, socket.MSG_WAITALL)
        line.sendall(b"R" + struct.pack("!II", 8, 3))  # requests the password in plain text
        shown.append(line.recv(1000))

    server = listen(talk)
    kept = tmp_path / "pgpass"
    kept.write_text("*:*:*:*:of the server\n")
    kept.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(kept))
    monkeypatch.setenv("PGPASSWORD", "of the server")
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.2")
    place = f"host=127.0.0.1 port={server.port} user=me"
    with pytest.raises(AuthError):
        read("postgres", f"{place} {given}", "127.0.0.1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(place, hostaddr="127.0.0.1", sslmode="disable")  # libpq alone would send it
    assert [b"of the server" in each for each in shown] == [False, True]


def test_a_database_cannot_read_files_of_the_server(listen):
    """MySQL's protocol lets a server request a local file in answer to any statement."""
    got = []

    def packet(number, body):
        return struct.pack("<I", len(body))[:3] + bytes([number]) + body

    def talk(line):
        salt = b"12345678", b"123456789012\0"
        low, high = 0x8288, 0x0008  # LOCAL INFILE, a database in the login, protocol 4.1, authentication plugins
        hello = b"\x0a8.0.0\0" + struct.pack("<I", 1) + salt[0] + b"\0" + struct.pack("<HBHH", low, 45, 2, high)
        line.sendall(packet(0, hello + bytes([21]) + bytes(10) + salt[1] + b"mysql_native_password\0"))
        line.recv(4096)
        line.sendall(packet(2, b"\0\0\0\2\0\0\0"))
        line.recv(4096)  # a statement
        line.sendall(packet(1, b"\xfb/etc/passwd"))
        got.append(line.recv(4096))

    server = listen(talk)
    with pytest.raises((LakeSyncError, RuntimeError, pymysql.Error)):
        read("mysql", f"mysql://me:secret@127.0.0.1:{server.port}/db", "127.0.0.1")
    assert b"root" not in b"".join(got)
    assert got, "the server did not request the file"


class Sending:
    """An HTTP server that redirects every request."""

    def __init__(self, elsewhere=None):
        self.elsewhere, self.got = elsewhere, []

    def now(self):
        return 0

    def respond(self, request):
        self.got.append(request)
        return Response(307, "", headers={"Location": self.elsewhere}) if self.elsewhere else Response(200, {})


def query(endpoint, *allowed):
    settings = {"projectId": "p", "dataset": "d", "endpoint": endpoint}
    config = ConnectorConfig("gw", "db", "bigquery", settings, hosts=HostPolicy(allowed))
    with closing(bigquery.reader(config)) as reader, reader.snapshot() as reading:
        list(reading.query_pages("SELECT 1"))


def test_a_bigquery_endpoint_and_its_redirects_must_not_be_private():
    inner = Sending()
    with serve(inner) as private:
        with pytest.raises(ConfigurationError, match="allowed_hosts"):
            query(private.url, "*")
        outer = Sending(private.url.replace("127.0.0.1", "localhost"))
        with serve(outer) as served, pytest.raises(ConfigurationError, match="allowed_hosts"):
            query(served.url, "127.0.0.1")
        assert outer.got
    assert inner.got == []


@pytest.mark.parametrize(
    ("allowed", "lent"),
    [
        ((), False),
        (("google:other",), False),
        (("*",), False),
        (("g*",), False),
        (("google:{gateway}",), True),
        (("google:*",), True),
    ],
)
def test_the_servers_identity_is_used_only_if_the_operator_allows_it(allowed, lent, monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "of-the-server.json"))
    stored = StoredConnector("db", "bigquery", {"projectId": "p", "dataset": "d"}, None)
    config = Connectors(Secrets((), allowed)).open("gw", stored)
    why = "of-the-server" if lent else "keyFilename is missing"
    with pytest.raises(Exception, match=why) as refused:
        bigquery.reader(config)
    assert isinstance(refused.value, ConfigurationError) != lent
