"""`lakesync up` runs gateway, Spark and Dagster on one machine; `lakesync pipeline` leaves the gateway out."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from pydantic import SecretStr

from lakesync.cli.connection import local_url, own_address
from lakesync.cli.generated_secrets import kept_or_made
from lakesync.cli.up import dagster_home, jars, spark_server
from lakesync.cli.up.display import Display
from lakesync.cli.up.process import check_port, free_ports
from lakesync.cli.up.services import MARKER, services
from lakesync.cli.up.supervisor import Change, Supervisor
from lakesync.config import Config
from lakesync.model.errors import ConfigurationError, StartupError
from lakesync.model.private_files import UMASK, make_private_folder

_NEEDED_BYTES = 500_000_000
_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


def run(config: Config, display: Display, *, with_gateway: bool = True) -> None:
    """Start everything, keep it running until SIGINT or SIGTERM, then stop it.

    Args:
        config: the settings; ports of 0 and missing secrets are chosen here.
        display: shows what happens.
        with_gateway: whether the gateway is started too.

    Raises:
        StartupError: something cannot start or cannot be kept running; nothing is left running then.
        ConfigurationError: a setting cannot be used.
    """
    if config.flush.to_uri:
        raise ConfigurationError(
            f"flush.to_uri is {config.flush.to_uri!r}, but `lakesync up` has a pipeline, which carries everything to "
            "the lake: leave it out, or run `lakesync gateway` alone"
        )
    if not with_gateway:
        _check_staging(config)
    os.umask(UMASK)
    stop = _stop_event()
    folder = config.data_dir
    with _sole_owner(folder):
        (folder / "up.json").unlink(missing_ok=True)  # of a run that was killed
        _check_disk(folder)
        if ended := end_leftovers(folder):
            display.note(f"ended {len(ended)} processes that an earlier, killed run left behind")
        config = _with_secrets(config, folder, with_gateway=with_gateway)
        config, spark, code_port = _with_places(config, display, with_gateway=with_gateway)
        workspace = dagster_home.write(config, code_port)
        wanted = services(config, spark, code_port, workspace, with_gateway=with_gateway)
        if config.dagster.host not in _LOOPBACK_HOSTS:
            display.note(
                f"Dagster's pages ask for no password: everyone who reaches {config.dagster.host} port "
                f"{config.dagster.port} can start and delete runs"
            )
        told = _Told(config, with_gateway=with_gateway)
        supervisor: Supervisor

        def report(change: Change) -> None:
            told.change(change, ready=supervisor.all_ready)
            display.change(change)
            if supervisor.all_ready:
                display.ready(config, folder, with_gateway=with_gateway)

        supervisor = Supervisor(wanted, folder / "logs", report)
        told.write()
        try:
            supervisor.run(stop)
        finally:
            display.note("stopping")
            supervisor.stop_all()
            end_leftovers(folder)
            told.remove()
        display.note("stopped; the data is kept")


class _Told:
    """`DATA/up.json`: for tools, where everything is, whether it is ready, and the secrets. Readable by its owner."""

    def __init__(self, config: Config, *, with_gateway: bool) -> None:
        self._path = config.data_dir / "up.json"
        self._content: dict[str, Any] = {
            "pid": os.getpid(),
            "ready": False,
            "data_dir": str(config.data_dir),
            "jwt_secret": _plain(config.jwt_secret),
            "service_token": _plain(config.service_token),
            **({"gateway": {"url": config.gateway.url}} if with_gateway else {}),
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


def _check_staging(config: Config) -> None:
    """Check that a pipeline alone can reach staging.

    Raises:
        ConfigurationError: staging is on SQLite, which the gateway's process owns, and no service token is set.
    """
    if config.service_token is None and config.gateway_owns_staging:
        raise ConfigurationError(
            "Staging on SQLite is reached through its gateway, and LAKESYNC_SERVICE_TOKEN is not set. Set it to the "
            "same secret for `lakesync gateway` and `lakesync pipeline`, or put staging on Postgres: "
            "LAKESYNC_STAGING_URL=postgresql://…"
        )


def _with_secrets(config: Config, folder: Path, *, with_gateway: bool) -> Config:
    """Fill in missing secrets. Those that a gateway shares are made only where this process starts the gateway."""
    spark_token = config.spark.token
    if with_gateway:
        made = {name: SecretStr(value) for name, value in kept_or_made(folder).items()}
        spark_token = spark_token or made["spark_token"]
        config = config.replace(
            jwt_secret=config.jwt_secret or made["jwt_secret"],
            service_token=config.service_token or made["service_token"],
            secret_key=config.secret_key or made["secret_key"],
        )
    return config.replace(
        spark={} if config.spark.remote else {"token": spark_token or SecretStr(secrets.token_hex(32))}
    )


def _with_places(
    config: Config, display: Display, *, with_gateway: bool
) -> tuple[Config, spark_server.SparkServer | None, int]:
    """Choose every port, and prepare the embedded Spark where it is wanted."""
    chosen = free_ports(5)
    dagster_port = config.dagster.port or chosen[1]
    spark_port, ui_port = config.spark.port or chosen[2], config.spark.ui_port or chosen[4]
    if with_gateway:
        gateway_port = config.gateway.port or chosen[0]
        check_port(gateway_port, config.gateway.host, "--port")
        gateway = {"port": gateway_port, "url": local_url(config.gateway.host, gateway_port)}
    else:
        gateway = {"url": own_address(config)}
    check_port(dagster_port, config.dagster.host, "--dagster-port")
    config = config.replace(
        gateway=gateway,
        dagster={"port": dagster_port, "url": local_url(config.dagster.host, dagster_port)},
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


def end_leftovers(folder: Path, *, grace: float = 5.0) -> list[int]:
    """End every process that carries the folder's mark, but for this one and those above it; their ids.

    The caller holds the folder's lock, so none of them belongs to a living `lakesync up`. The mark is inherited, so it
    also finds processes that left their group, and no other program's that got a reused id.
    """
    me = psutil.Process()
    spared = {os.getpid(), *(parent.pid for parent in me.parents())}
    found = [process for process in psutil.process_iter() if process.pid not in spared and _carries(process, folder)]
    for process in found:
        _try(process.terminate)
    _, alive = psutil.wait_procs(found, timeout=grace)
    for process in alive:
        _try(process.kill)
    psutil.wait_procs(alive, timeout=grace)
    return [process.pid for process in found]


def _carries(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.environ().get(MARKER) == str(folder)
    except (psutil.Error, OSError):
        return False


def _try(action: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        action()
