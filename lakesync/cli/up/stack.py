"""Runs gateway, Spark and Dagster on one machine, for `lakesync up`; without the gateway for `lakesync pipeline`.

`run` chooses ports, generates missing secrets, prepares the services' files, and gives the services (processes) to a
`Supervisor`, which starts them and keeps them running. It keeps the file `up.json` in the data folder, by which other
commands find the running services.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from pydantic import SecretStr

from lakesync.analysis.catalogue import LakeReader, UnreadableTableError, may_have_catalogue
from lakesync.cli.connection import local_gateway_url, local_url
from lakesync.cli.data_folder import ensure_secrets, with_secrets
from lakesync.cli.up import dagster_home, jars, spark_server
from lakesync.cli.up.process import LOOPBACK, LOOPBACK_HOSTS, check_port, free_ports, stop_event
from lakesync.cli.up.services import MARKER, Service, services
from lakesync.cli.up.supervisor import Change, Display, Supervisor
from lakesync.config import Config
from lakesync.model.errors import ConfigurationError, LakeUnavailableError, StartupError
from lakesync.model.secrets import UMASK, make_private_folder, replace_private_file, without_password

_NEEDED_BYTES = 500_000_000
"""Free disk space without which nothing is started."""
_GRACE_SECONDS = 5.0
"""Seconds until a leftover process that ignores SIGTERM is killed."""


def run(config: Config, display: Display, *, with_gateway: bool = True) -> None:
    """Start all services, keep them running until SIGINT or SIGTERM, then stop them.

    Args:
        config: the settings; ports of 0 and missing secrets are replaced here.
        display: prints the progress.
        with_gateway: whether to start the gateway too.

    Raises:
        StartupError: a service cannot be started or kept running; all are stopped then. Or the lake was moved.
        ConfigurationError: a setting is invalid.
    """
    if config.flush.to_uri:
        raise ConfigurationError(
            f"flush.to_uri is {without_password(config.flush.to_uri)!r}, but `lakesync up` has a pipeline, which "
            "flushes everything to the lake; leave it out, or run `lakesync gateway` alone"
        )
    if not with_gateway:
        _check_staging(config)
    _check_lake(config)
    os.umask(UMASK)
    stop = stop_event()
    folder = config.data_dir
    _check_path(folder)
    with _sole_owner(folder):
        (folder / "up.json").unlink(missing_ok=True)  # left by a run that was killed
        _check_disk(folder)
        if stopped := stop_leftovers(folder):
            display.note(f"stopped {len(stopped)} processes that an earlier, killed run left behind")
        config = _with_secrets(config, folder, with_gateway=with_gateway)
        config = _with_addresses(config, with_gateway=with_gateway)
        spark = _embedded_spark(config, display)
        if spark is not None:
            config = config.replace(spark={"remote": spark.remote})
        workspace = dagster_home.write_files(config)  # Dagster's file with the address of the code server
        all_services = services(config, spark, workspace, with_gateway=with_gateway)
        if config.dagster.host not in LOOPBACK_HOSTS:
            display.note(
                f"Dagster's web UI asks for no password: everyone who reaches {config.dagster.host} port "
                f"{config.dagster.port} can start and delete runs"
            )
        _supervise(all_services, config, display, stop, with_gateway=with_gateway)


def _supervise(
    all_services: Sequence[Service], config: Config, display: Display, stop: threading.Event, *, with_gateway: bool
) -> None:
    """Keep services running until `stop` is set, then stop them. The file `up.json` and the display follow them.

    Raises:
        StartupError: a service cannot be started or kept running; all are stopped then.
    """
    folder, up_file = config.data_dir, _UpFile(config, with_gateway=with_gateway)

    def report(change: Change) -> None:
        try:
            up_file.change(change)
        except OSError as error:  # a full disk must not stop the services; the next change writes the file
            display.note(f"up.json in {folder} is not up to date: {error.strerror}")
        display.change(change)
        if change.all_ready:
            display.ready(config, folder, with_gateway=with_gateway)

    supervisor = Supervisor(all_services, folder / "logs", report)
    up_file.write()
    try:
        supervisor.run(stop)
    finally:
        display.note("stopping")
        supervisor.stop_all()
        stop_leftovers(folder)
        up_file.remove()
    display.note("stopped; the data is kept")


class _UpFile:
    """`up.json` in the data folder: addresses and states of the services, and secrets, for commands and tests.

    Only the user who runs `lakesync up` can read it.
    """

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

    def change(self, change: Change) -> None:
        """Record a service's new state."""
        entry = self._content.setdefault(change.service.name, {})
        entry |= {"state": change.state.value, "pid": change.pid, "log": str(change.log) if change.log else None}
        self._content["ready"] = change.all_ready
        self.write()

    def write(self) -> None:
        """Replace the file."""
        replace_private_file(self._path, json.dumps(self._content, indent=2).encode())

    def remove(self) -> None:
        """Delete the file, once no service runs."""
        self._path.unlink(missing_ok=True)


def stop_leftovers(folder: Path) -> list[int]:
    """Stop the processes of an earlier `lakesync up` on a data folder that was killed.

    They have the variable `MARKER` with the folder. Children inherit it, so this also finds processes that left their
    process group, and never a process with a reused id. The caller has locked the folder, so no `lakesync up` is
    running on it.

    Args:
        folder: the data folder.

    Returns:
        The process ids. This process and its ancestors are never stopped.
    """
    this_process = psutil.Process()
    excluded = {os.getpid(), *(parent.pid for parent in this_process.parents())}
    leftovers = [
        process for process in psutil.process_iter() if process.pid not in excluded and _has_marker(process, folder)
    ]
    for process in leftovers:
        _ignore_missing(process.terminate)
    _, alive = psutil.wait_procs(leftovers, timeout=_GRACE_SECONDS)
    for process in alive:
        _ignore_missing(process.kill)
    psutil.wait_procs(alive, timeout=_GRACE_SECONDS)
    return [process.pid for process in leftovers]


@contextlib.contextmanager
def _sole_owner(folder: Path) -> Iterator[None]:
    """Create the data folder and lock it, so that only one `lakesync up` uses it.

    Raises:
        StartupError: another `lakesync up` has locked it, or the folder cannot be created.
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
                f"Another `lakesync up`, process {lock.read().strip()}, uses {folder}. Stop it, or choose "
                "another folder with --data."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _check_path(folder: Path) -> None:
    """Raise StartupError if other folders than the data folder would be written to.

    Spark divides a list of folders at commas, and SQLAlchemy decodes `%20` in the path of a database.
    """
    if re.search(",|%[0-9A-Fa-f]{2}", str(folder)):
        raise StartupError(
            f"The path of the data folder, {folder}, has a comma, or % with two hexadecimal digits, which Spark and "
            "Dagster do not support. Choose another folder with --data."
        )


def _check_disk(folder: Path) -> None:
    """Raise StartupError if the disk of the data folder is full."""
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_BYTES:
        raise StartupError(
            f"The disk of {folder} is full: {free // 1_000_000} MB are free, {_NEEDED_BYTES // 1_000_000} MB are "
            "needed. Free disk space, or choose another folder with --data."
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


def _check_lake(config: Config) -> None:
    """Raise StartupError if the lake was moved to another folder: every flush would fail."""
    if not config.lake.warehouse.startswith("file:") or not may_have_catalogue(config):
        return
    with contextlib.suppress(LakeUnavailableError), LakeReader(config) as lake:
        try:
            _ = lake.deltas
        except UnreadableTableError as error:
            raise StartupError(str(error)) from error


def _with_secrets(config: Config, folder: Path, *, with_gateway: bool) -> Config:
    """Return the settings with generated secrets in place of missing ones.

    Without the gateway, only the token of Spark is generated: a gateway elsewhere could not know the other secrets.
    """
    spark_token = config.spark.token
    if with_gateway:
        generated = ensure_secrets(folder)
        spark_token = spark_token or SecretStr(generated["spark_token"])
        config = with_secrets(config, generated)
    return config.replace(
        spark={} if config.spark.remote else {"token": spark_token or SecretStr(secrets.token_hex(32))}
    )


def _with_addresses(config: Config, *, with_gateway: bool) -> Config:
    """Return the settings with every port chosen, and all addresses but that of the embedded Spark.

    Raises:
        StartupError: a server cannot listen on its port.
    """
    free = iter(free_ports(4))  # for Dagster, the gateway, Spark and its web UI
    dagster_port = config.dagster.port or next(free)
    if with_gateway:
        gateway_port = config.gateway.port or next(free)
        check_port(gateway_port, config.gateway.host, "--port")
        gateway = {"port": gateway_port, "url": local_url(config.gateway.host, gateway_port)}
    else:
        gateway = {"url": local_gateway_url(config)}
    check_port(dagster_port, config.dagster.host, "--dagster-port")
    dagster = {"port": dagster_port, "url": local_url(config.dagster.host, dagster_port)}
    spark: dict[str, Any] = {}
    if not config.spark.remote:
        port, ui_port = config.spark.port or next(free), config.spark.ui_port or next(free)
        check_port(port, LOOPBACK, "LAKESYNC_SPARK_PORT")
        check_port(ui_port, LOOPBACK, "LAKESYNC_SPARK_UI_PORT")
        spark = {"port": port, "ui_port": ui_port, "ui_url": local_url(LOOPBACK, ui_port)}
    return config.replace(gateway=gateway, dagster=dagster, spark=spark)


def _embedded_spark(config: Config, display: Display) -> spark_server.SparkServer | None:
    """Prepare the embedded Spark: download its jars and write its files. None if an external Spark is configured.

    Raises:
        StartupError: a jar cannot be downloaded.
    """
    if config.spark.remote:
        return None
    with display.show_spinner("downloading Spark's jars"):
        paths = jars.ensure_all(s3=config.lake.warehouse.startswith("s3://"))
    return spark_server.prepare(config, port=config.spark.port, token=_plain(config.spark.token) or "", jars=paths)


def _plain(secret: SecretStr | None) -> str | None:
    """Return a secret in plain text; None for None."""
    return secret.get_secret_value() if secret else None


def _has_marker(process: psutil.Process, folder: Path) -> bool:
    """Return whether a process was started by `lakesync up` on this folder, whatever path each was given.

    False if its variables are not readable.
    """
    try:
        return folder.samefile(process.environ()[MARKER])
    except (psutil.Error, OSError, KeyError):
        return False


def _ignore_missing(action: Callable[[], None]) -> None:
    """Do something to a process, unless it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        action()
