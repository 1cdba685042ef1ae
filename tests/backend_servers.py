"""Servers for tests; each context manager starts a separate one and stops it at the end.

`scripts/install --dev` installs them.

The embedded Spark is the product's own; MariaDB is used as MySQL, moto as S3, and `bqemulator` as BigQuery.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pymysql
import requests

from lakesync.cli.up import jars
from lakesync.cli.up.process import Process, accepts, free_ports
from lakesync.cli.up.spark_server import prepare
from lakesync.config import Config

SERVERS = Path(__file__).parents[1] / ".venv-servers" / "bin"
_READY_SECONDS = 240
_VERSITYGW = "v1.8.0"


class Server:
    """A server process that listens on a loopback port; a test may kill it and start it again on the same port."""

    def __init__(self, name: str, folder: Path, port: int | None = None) -> None:
        """Args: folder: for its files; port: by default a free one."""
        self.name = name
        self.folder = folder
        self.port = port or free_ports(1)[0]
        self._process: Process | None = None

    def start(
        self, command: Sequence[str], ready: Callable[[], bool], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the server and wait until it is ready; kill it if it is not ready in time or is about to exit."""
        if self._process is not None and self._process.exit_code is None:
            self.kill()
        self._process = Process(self.name, command, environment or {}, self.folder / f"{self.name}.log")
        try:
            self._process.wait_ready(ready, timeout=_READY_SECONDS)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill it, as a crash would."""
        assert self._process is not None
        self._process.signal(signal.SIGKILL)
        self._process.stop(grace=10)

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        return self._process.pid

    def listens(self) -> bool:
        """Whether its port accepts connections."""
        return accepts(self.port)


class SparkServer(Server):
    """The embedded Spark Connect server of a configuration."""

    def __init__(self, config: Config) -> None:
        """Start it."""
        assert config.spark.port is not None
        assert config.spark.token is not None
        super().__init__("spark", config.data_dir, config.spark.port)
        token = config.spark.token.get_secret_value()
        self._prepared = prepare(config, port=self.port, token=token, jars=jars.ensure_all())
        self._pages = config.spark.ui_url
        self.again()

    def again(self) -> None:
        """Start it."""
        self.start(self._prepared.command, self._serves, self._prepared.environment)

    def _serves(self) -> bool:
        """Spark's REST API takes seconds for its first response."""
        with suppress(requests.RequestException):
            return self.listens() and requests.get(f"{self._pages}/api/v1/applications", timeout=30).ok
        return False


class MariaDbServer(Server):
    """A MariaDB server; its user `root` has no password, `tester` has `secret`."""

    def __init__(self, folder: Path, time_zone: str) -> None:
        """Start it, in the time zone of that name."""
        super().__init__("mariadb", folder)
        self._time_zone = time_zone
        install = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={folder}/data", self._temporary()]
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        made = subprocess.run([*install, *options], check=False, capture_output=True, text=True)
        assert made.returncode == 0, f"mariadb-install-db failed: {made.stdout}{made.stderr}"
        self.again()
        with self._connected() as sql, sql.cursor() as cursor:
            cursor.execute("CREATE USER tester@'127.0.0.1' IDENTIFIED BY 'secret'")
            cursor.execute("GRANT ALL ON *.* TO tester@'127.0.0.1'")
        self.uri = f"mysql://tester:secret@127.0.0.1:{self.port}"

    def again(self) -> None:
        """Start it."""
        data = ["--no-defaults", "--user=root", f"--datadir={self.folder}/data", f"--socket={self.folder}/s"]
        network = [f"--port={self.port}", "--bind-address=127.0.0.1", "--skip-name-resolve"]
        options = ["--local-infile=1", "--skip-log-bin", "--skip-ssl", self._temporary()]
        self.start(["mariadbd", *data, *network, *options], self._answers, {"TZ": self._time_zone})

    def _temporary(self) -> str:
        """The folder for temporary tables. MariaDB deletes other servers' files in a shared one when it starts."""
        return f"--tmpdir={self.folder}"

    def _answers(self) -> bool:
        with suppress(pymysql.Error):
            self._connected().close()
            return True
        return False

    def _connected(self) -> pymysql.connections.Connection:
        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", autocommit=True)


@contextmanager
def mariadb_server(time_zone: str = "UTC") -> Iterator[MariaDbServer]:
    """A MariaDB."""
    with _folder() as folder:
        server = MariaDbServer(folder, time_zone)
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def s3_server() -> Iterator[str]:
    """Start moto's S3, which accepts any credentials and keeps objects in memory; yield `http://HOST:PORT`."""
    with _folder() as folder:
        server = Server("moto", folder)
        command = [_launcher("s3_launcher.py"), "-H", "127.0.0.1", "-p", str(server.port)]
        server.start([str(SERVERS / "python"), *command], server.listens)
        try:
            yield f"http://127.0.0.1:{server.port}"
        finally:
            server.kill()


def versitygw() -> Path:
    """Return the path of the versitygw program; Go builds it first, in some minutes, if it is missing.

    Raises:
        FileNotFoundError: Go is not installed.
    """
    go_path = subprocess.run(["go", "env", "GOPATH"], capture_output=True, text=True, check=True)
    program = Path(go_path.stdout.strip()) / "bin" / "versitygw"
    if not program.exists():
        subprocess.run(["go", "install", f"github.com/versity/versitygw/cmd/versitygw@{_VERSITYGW}"], check=True)
    return program


class StrictS3Server(Server):
    """versitygw: an S3 server over a disk that accepts only the key `k` with the secret `s`."""

    def __init__(self, folder: Path, disk: Path | None = None) -> None:
        """Start it; buckets are on `disk`, by default in its folder."""
        super().__init__("versitygw", folder)
        self._buckets = (disk or folder) / "buckets"
        self._buckets.mkdir()
        self.again()
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def again(self) -> None:
        """Start it."""
        command = [str(versitygw()), "--port", f"127.0.0.1:{self.port}", "posix", str(self._buckets)]
        self.start(command, self.listens, {"ROOT_ACCESS_KEY": "k", "ROOT_SECRET_KEY": "s"})


@contextmanager
def strict_s3_server(disk: Path | None = None) -> Iterator[StrictS3Server]:
    """Start versitygw; its buckets are on the given disk, by default in its own folder."""
    with _folder() as folder:
        server = StrictS3Server(folder, disk)
        try:
            yield server
        finally:
            server.kill()


class BigQueryServer(Server):
    """The emulator of BigQuery; one with `dies` stores its data on disk, and may be started again."""

    def __init__(self, folder: Path, dies: str | None = None) -> None:
        """Start it; `dies` in the middle of a statement, as `bigquery_launcher.py` says: `MERGE:2`."""
        super().__init__("bigquery", folder)
        self._where = [] if dies is None else ["--data-dir", str(folder / "data")]
        self.again(dies)
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def again(self, dies: str | None = None) -> None:
        """Start it."""
        command = [_launcher("bigquery_launcher.py"), "start", "--rest-port", str(self.port), "--grpc-port", "0"]
        environment = {} if dies is None else {"BIGQUERY_DIES": dies}
        self.start([str(SERVERS / "python"), *command, *self._where], self.listens, environment)


@contextmanager
def bigquery_server(dies: str | None = None) -> Iterator[BigQueryServer]:
    """The emulator of BigQuery."""
    with _folder() as folder:
        server = BigQueryServer(folder, dies)
        try:
            yield server
        finally:
            server.kill()


def _launcher(name: str) -> str:
    return str(Path(__file__).with_name(name))


@contextmanager
def _folder() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="lakesync-server-", dir="/tmp")  # short: a socket's path has at most 107 bytes
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
