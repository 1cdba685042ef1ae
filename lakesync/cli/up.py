"""`lakesync up`: everything that a whole LakeSync needs, on one machine, in one data folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from lakesync.cli import dagster_home, jars, leftovers, spark_server
from lakesync.cli.process import check_port, free_ports
from lakesync.cli.secrets import kept_or_made
from lakesync.cli.services import services
from lakesync.cli.show import Display
from lakesync.cli.supervisor import Change, Supervisor
from lakesync.config import Config
from lakesync.model.errors import ConfigurationError, StartupError
from lakesync.model.private_files import UMASK, make_private_folder

_NEEDED_BYTES = 500_000_000


def run(config: Config, display: Display) -> None:
    """Start everything, keep it running until SIGINT or SIGTERM, then stop it.

    Raises:
        StartupError: something cannot start or cannot be kept running; nothing is left running then.
        ConfigurationError: a setting cannot be used.
    """
    if config.flush.to_uri:
        raise ConfigurationError(
            f"flush.to_uri is {config.flush.to_uri!r}, but `lakesync up` has a pipeline, which carries everything to "
            "the lake: leave it out, or run `lakesync gateway` alone"
        )
    os.umask(UMASK)
    stop = _stop_event()
    folder = config.data_dir
    with _sole_owner(folder):
        (folder / "up.json").unlink(missing_ok=True)  # of a run that was killed
        _check_disk(folder)
        if ended := leftovers.end(folder):
            display.note(f"ended {len(ended)} processes that an earlier, killed run left behind")
        config = _with_secrets(config, folder)
        config, spark, code_port = _with_places(config, display)
        wanted = services(config, spark, code_port, dagster_home.write(config, code_port))
        told = _Told(config)
        supervisor: Supervisor

        def report(change: Change) -> None:
            told.change(change, ready=supervisor.all_ready)
            display.change(change)
            if supervisor.all_ready:
                display.ready(config, folder)

        supervisor = Supervisor(wanted, folder / "logs", report)
        told.write()
        try:
            supervisor.run(stop)
        finally:
            display.note("stopping")
            supervisor.stop_all()
            leftovers.end(folder)
            told.remove()
        display.note("stopped; the data is kept")


class _Told:
    """`DATA/up.json`: for tools, where everything is, whether it is ready, and the secrets. Readable by its owner."""

    def __init__(self, config: Config) -> None:
        self._path = config.data_dir / "up.json"
        self._content: dict[str, Any] = {
            "pid": os.getpid(),
            "ready": False,
            "data_dir": str(config.data_dir),
            "jwt_secret": _plain(config.jwt_secret),
            "service_token": _plain(config.service_token),
            "gateway": {"url": config.gateway.url},
            "dagster": {"url": config.dagster.url, "home": str(config.dagster.home)},
            "spark": {
                "remote": config.spark.remote,
                "ui_url": config.spark.ui_url,
                "token": _plain(config.spark.token),
            },
        }

    def change(self, change: Change, *, ready: bool) -> None:
        """Note a service's new state."""
        entry = self._content.setdefault(change.service.name, {})
        entry |= {"state": change.state.value, "pid": change.pid, "log": str(change.log) if change.log else None}
        self._content["ready"] = ready
        self.write()

    def write(self) -> None:
        """Replace the file in one step."""
        scratch = self._path.with_suffix(".new")
        scratch.unlink(missing_ok=True)
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(self._content, file, indent=2)
        scratch.replace(self._path)

    def remove(self) -> None:
        """Nothing runs any more."""
        self._path.unlink(missing_ok=True)


def _stop_event() -> threading.Event:
    """Set by SIGINT and SIGTERM.

    That both are handled here also resets them in the children: one that inherited SIGINT ignored, as programs started
    in the background by a shell do, could never be stopped, for Dagster copies it to SIGTERM.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


@contextlib.contextmanager
def _sole_owner(folder: Path) -> Iterator[None]:
    """Hold the folder's lock.

    Raises:
        StartupError: another `lakesync up` holds it, or the folder cannot be made.
    """
    try:
        make_private_folder(folder)
        lock = (folder / "up.lock").open("a+")
    except OSError as error:
        raise StartupError(f"The data folder {folder} cannot be used: {error.strerror}.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise StartupError(
                f"Another `lakesync up`, process {lock.read().strip()}, already runs on {folder}. Stop it, or choose "
                "another folder with --data."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _check_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_BYTES:
        raise StartupError(
            f"The disk of {folder} is full: {free // 1_000_000} MB are free, {_NEEDED_BYTES // 1_000_000} MB are "
            "needed. Free some space, or choose another folder with --data."
        )


def _with_secrets(config: Config, folder: Path) -> Config:
    """Fill in the secrets that nobody set."""
    made = {name: SecretStr(value) for name, value in kept_or_made(folder).items()}
    return config.replace(
        jwt_secret=config.jwt_secret or made["jwt_secret"],
        service_token=config.service_token or made["service_token"],
        secret_key=config.secret_key or made["secret_key"],
        spark={} if config.spark.remote else {"token": config.spark.token or made["spark_token"]},
    )


def _with_places(config: Config, display: Display) -> tuple[Config, spark_server.SparkServer | None, int]:
    """Choose every port, and make ready the embedded Spark where it is wanted."""
    chosen = free_ports(5)
    gateway_port = config.gateway.port or chosen[0]
    dagster_port = config.dagster.port or chosen[1]
    spark_port, ui_port = config.spark.port or chosen[2], config.spark.ui_port or chosen[4]
    check_port(gateway_port, config.gateway.host, "--port")
    check_port(dagster_port, "127.0.0.1", "--dagster-port")
    host = "127.0.0.1" if config.gateway.host in {"0.0.0.0", "::"} else config.gateway.host  # noqa: S104 a comparison
    config = config.replace(
        gateway={"port": gateway_port, "url": f"http://{host}:{gateway_port}"},
        dagster={"port": dagster_port, "url": f"http://127.0.0.1:{dagster_port}"},
    )
    if config.spark.remote:
        return config, None, chosen[3]
    check_port(spark_port, "127.0.0.1", "LAKESYNC_SPARK_PORT")
    check_port(ui_port, "127.0.0.1", "LAKESYNC_SPARK_UI_PORT")
    with display.working("fetching Spark's jars"):
        paths = jars.ensure_all(s3=config.lake.warehouse.startswith("s3://"))
    config = config.replace(spark={"port": spark_port, "ui_port": ui_port, "ui_url": f"http://127.0.0.1:{ui_port}"})
    spark = spark_server.prepare(config, port=spark_port, token=_plain(config.spark.token) or "", jars=paths)
    return config.replace(spark={"remote": spark.remote}), spark, chosen[3]


def _plain(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None
