"""Opens Spark Connect sessions, on the server that `lakesync up` starts or on the configured one.

If the Iceberg catalogue is on Postgres, `guard_commits` first installs a trigger there, which prevents damage if the
response to a commit is lost. Without it, Iceberg would repeat the commit, mistake its own first one for another
writer's, and delete the files of the newest snapshot. The Dagster resource `pyspark`, notebooks, commands and
benchmarks call this module.
"""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlsplit

import grpc
import stamina
from pyspark.errors import PySparkException
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from lakesync.model.errors import ConfigurationError, LakeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from lakesync.config import Config


PROBE_SECONDS = 3.0
"""Seconds to wait for a TCP connection to the server."""
RETRY_SECONDS = 30.0
"""Seconds within which a listening server must answer, and a running query must reach its server again."""
KEEPALIVE: Mapping[str, int] = MappingProxyType(
    {"grpc.keepalive_time_ms": 360_000, "grpc.keepalive_timeout_ms": 30_000}
)
"""Channel options by which a request notices a dead server: it is pinged after 6 minutes without data, and must answer
within 30 s. A request has no deadline, because a query may take hours. Servers close connections that ping more often
than every 5 minutes."""
_PROBE_METHOD = "/spark.connect.SparkConnectService/Config"
"""The method that a probe of the server calls; any answer, also an error, shows that the server works."""

_CREATED: list[ConnectSession] = []
"""Every session of this process, so that none is garbage-collected: pyspark's finaliser closes the threads that all
sessions share, and hangs if it runs in one of them (SPARK-55362). The creator of a session stops it."""

SETTINGS = {
    # Slices of a merge travel to Python as rows of some hundred kilobytes: a batch of 10,000 would be gigabytes.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    # Spark would keep plans by the client's plan ids, which are equal in all runs that the run host forks. A run would
    # read what an earlier one registered under the name of its source.
    "spark.connect.session.planCache.enabled": "false",
    # Otherwise ${env:NAME} in a statement is replaced by a variable of the server's process.
    "spark.sql.variable.substitute": "false",
}
"""Settings of every session."""

_LOOPBACK = "127.0.0.1"

_COMMIT_GUARD = Path(__file__).with_name("commit_guard.sql")
"""The file with the definition of the trigger, which an administrator may run too."""

_TRIGGER_EXISTS = """
SELECT EXISTS (
    SELECT FROM pg_trigger WHERE tgname = 'lakesync_commit_guard' AND tgrelid = to_regclass('iceberg_tables')
)
"""


@cache
def guard_commits(catalogue_uri: str) -> None:
    """Install the trigger that protects a catalogue on Postgres, if it is missing. It is checked once in a process.

    Other catalogues need none: a response of SQLite cannot be lost, because SQLite runs in the process that asks, and a
    REST service is responsible for its own commits.

    Args:
        catalogue_uri: URI of the catalogue's database, or of the REST service.

    Raises:
        LakeUnavailableError: the database cannot be reached.
        ConfigurationError: the database user may not create the trigger.
    """
    if not catalogue_uri.startswith("postgresql://"):
        return
    host_and_database = catalogue_uri.rpartition("@")[2]
    import psycopg

    from lakesync.wire.postgres import BoundedConnection, parameters

    try:
        with BoundedConnection.connect(**parameters(catalogue_uri)) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('lakesync_commit_guard'))")
            row = connection.execute(_TRIGGER_EXISTS).fetchone()
            if row is None or not row[0]:
                connection.execute(_COMMIT_GUARD.read_text("utf-8"))
    except psycopg.OperationalError as error:
        raise LakeUnavailableError(
            f"the catalogue at {host_and_database} cannot be reached: {str(error).strip()}"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigurationError(
            f"the catalogue at {host_and_database} lacks the trigger lakesync_commit_guard, without "
            f"which a lost response to a commit damages the table, and its user cannot create it ({error}); let the "
            f"owner of iceberg_tables run {_COMMIT_GUARD.name}, once"
        ) from error


def connect(config: Config, *, shared: bool = False) -> SparkSession:
    """Create a session, or join a shared one. The caller must stop it; the context manager `session` does so.

    A new session must start its own Python workers, which takes seconds; a shared one has them already. The address of
    the server that `lakesync up` starts names a shared session (`;session_id=UUID`). The session's actual id is derived
    from the named one and the day, so that a new session begins each day. A caller that joins it must not replace views
    or data sources of others. It continues when the caller stops it.

    Args:
        config: the project's configuration, with the server's address and token, and the catalogue.
        shared: True to join the session that the address names, if it names one.

    Raises:
        LakeUnavailableError: no server listens or answers, no session was created within 30 s, or the catalogue is
            down.
        ConfigurationError: no Spark is configured, or the trigger of the catalogue cannot be installed.
    """
    guard_commits(config.lake.catalog_uri)
    remote = config.spark.address
    if remote is None:
        raise ConfigurationError(
            "no Spark is configured: run `lakesync up`, which starts one, or set LAKESYNC_SPARK_REMOTE=sc://HOST:PORT"
        )
    host, port, shared_id = _parse_address(remote)
    address = f"sc://{host}:{port}/"
    if config.spark.token:
        address += f";token={config.spark.token.get_secret_value()}"
    _probe(host, port, address)
    joined_id = shared_id if shared else None
    if joined_id is not None:
        address += f";session_id={uuid.uuid5(joined_id, f'{datetime.now(UTC):%F}')}"
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # as `SparkSession.builder.remote` does, which takes no options
    builder = ConnectSession.builder.channelBuilder(_ChannelBuilder(address, [*KEEPALIVE.items()]))
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    try:
        for attempt in stamina.retry_context(
            on=(PySparkException, grpc.RpcError), timeout=RETRY_SECONDS, wait_max=3.0, attempts=None
        ):
            with attempt:
                spark = builder.create()
    except (PySparkException, grpc.RpcError) as error:
        raise LakeUnavailableError(
            f"Spark at {host}:{port} listens but creates no session ({error}); see its log, and check the token"
        ) from error
    spark.release_session_on_close = joined_id is None
    _CREATED.append(spark)
    _shorten_retries(spark)
    return cast("SparkSession", spark)


@contextmanager
def session(config: Config, *, shared: bool = False) -> Iterator[SparkSession]:
    """Open a session, and stop it at the end of the block.

    Args:
        config: the project's configuration.
        shared: True to join the session that the server's address names, if it names one.

    Raises:
        LakeUnavailableError, ConfigurationError: as `connect`.
    """
    spark = connect(config, shared=shared)
    try:
        yield spark
    finally:
        spark.stop()


class _ChannelBuilder(DefaultChannelBuilder):
    """Connects to 127.0.0.1 for `localhost`, which a container without /etc/hosts cannot resolve, and without a proxy.

    gRPC would send this request to the proxy of `http_proxy` too, which cannot reach ports of this machine.
    """

    def __init__(self, url: str, channelOptions: list[tuple[str, Any]] | None = None) -> None:  # noqa: N803 PySpark's name
        super().__init__(url, channelOptions)
        if self.host == "localhost":
            self.setChannelOption("grpc.enable_http_proxy", 0)

    @property
    def endpoint(self) -> str:
        """The server's address and port."""
        endpoint = super().endpoint
        return endpoint.replace("localhost", _LOOPBACK, 1) if self.host == "localhost" else endpoint


def _parse_address(remote: str) -> tuple[str, int, uuid.UUID | None]:
    """Return host, port and the id of the shared session, which is None if the address names none.

    The address 127.0.0.1 becomes `localhost`: for any other name the client uses TLS if it has a token.
    """
    parts = urlsplit(remote)
    try:
        host, port = parts.hostname, parts.port or 15002
        named = dict(parse_qsl(parts.path.lstrip("/"), separator=";")).get("session_id")
        session_id = uuid.UUID(named) if named else None
    except ValueError:
        host, port, session_id = None, 0, None
    if parts.scheme != "sc" or not host:
        shown = remote.partition(";")[0]  # the options may contain a token
        raise ConfigurationError(f"spark.remote is {shown!r}; it must be sc://HOST:PORT[/;session_id=UUID]")
    return ("localhost" if host == _LOOPBACK else host), port, session_id


def _probe(host: str, port: int, address: str) -> None:
    """Check that a server listens and answers a request. The client itself would retry for ten minutes or longer.

    The request is empty, which the server rejects before it creates a session.
    """
    try:
        socket.create_connection((_LOOPBACK if host == "localhost" else host, port), PROBE_SECONDS).close()
    except OSError as error:
        raise LakeUnavailableError(
            f"nothing listens at {host}:{port}, where Spark should be ({error}); start it with `lakesync up`"
        ) from error
    with _ChannelBuilder(address).toChannel() as channel:
        try:
            channel.unary_unary(_PROBE_METHOD)(b"", timeout=RETRY_SECONDS, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise LakeUnavailableError(
                    f"Spark at {host}:{port} listens but does not answer within {RETRY_SECONDS:.0f} s; see its log, "
                    "and restart it"
                ) from error


def _shorten_retries(spark: ConnectSession) -> None:
    """Let requests to a lost server fail after about 30 s instead of ten minutes. Callers repeat their work safely."""
    policy = DefaultPolicy(max_retries=12, max_backoff=3000)
    spark.client.set_retry_policies([policy])
