"""A child process in a session of its own, with its output in a log file; and functions about signals and ports.

`Supervisor` runs the services of `lakesync up` as `Process`; tests and benchmarks start servers as one. Commands that
run until a signal call `stop_event`. Commands that listen, and `lakesync doctor`, check their ports here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lakesync.model.errors import StartupError

LOOPBACK = "127.0.0.1"
"""The address that only this machine can reach."""
LOOPBACK_HOSTS = frozenset({LOOPBACK, "::1", "localhost"})
"""The hosts on which a server can be reached from this machine only."""
_LOG_BYTES = 16 << 20
"""A larger log file is renamed when the process is started again."""
_SERVER_PORTS = range(20_000, 32_768)
"""The ports among which `free_ports` chooses."""


class Process:
    """A running child process and its descendants."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str | None], log: Path) -> None:
        """Start the process.

        Args:
            name: the process's name, for messages.
            command: program and arguments.
            environment: variables to add to those of this process; None removes a variable.
            log: the file to which the process's output is appended.

        Raises:
            StartupError: the program or its log file cannot be opened.
        """
        self.name = name
        self.log = log
        variables = {**os.environ, **environment}
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            if log.exists() and log.stat().st_size > _LOG_BYTES:
                log.replace(log.with_suffix(".old.log"))
            with log.open("ab") as output:
                self._log_start = output.tell()
                self._child = subprocess.Popen(
                    command,
                    env={name: value for name, value in variables.items() if value is not None},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise StartupError(f"{name} could not be started: {error.strerror}: {error.filename}.") from error

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group and session."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the process runs, negative for the signal that terminated it."""
        return self._child.poll()

    def last_lines(self) -> str:
        """Return the last 15 lines of its output since it was started."""
        with self.log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, file.tell() - 16_384))
            return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-15:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group, if that still exists."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    def stop(self, *, grace: float) -> None:
        """Send SIGTERM to the process, wait at most `grace` seconds for it, then kill its whole process group.

        Only the process itself gets SIGTERM, so that it can end its own children in order.
        """
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(grace)
        self.signal(signal.SIGKILL)
        self._child.wait()

    def wait_ready(self, ready: Callable[[], bool], *, timeout: float) -> None:
        """Wait until `ready` returns True.

        Args:
            ready: the condition, which is checked every 0.1 s.
            timeout: seconds to wait, at most.

        Raises:
            StartupError: the process ended, or the time is over; the message has the last lines of its log.
        """
        deadline = time.monotonic() + timeout
        while not ready():
            if self.exit_code is not None:
                raise StartupError(f"{self.name} ended with code {self.exit_code}:\n{self.last_lines()}")
            if time.monotonic() > deadline:
                raise StartupError(f"{self.name} was not ready after {timeout:.0f} s:\n{self.last_lines()}")
            time.sleep(0.1)


def stop_event() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set.

    The handlers have a second purpose. A shell starts background jobs with SIGINT ignored, and child processes inherit
    that. Dagster's processes would then ignore SIGTERM too, and could not be stopped. A signal with a handler here has
    the default effect in child processes.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def accepts(address: int | Path) -> bool:
    """Return whether a server accepts connections: on a TCP port of this machine, or on the Unix socket of a path."""
    try:
        if isinstance(address, int):
            socket.create_connection((LOOPBACK, address), timeout=1).close()
        else:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1)
                connection.connect(str(address))
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Return different TCP ports that are free now, and that no other call returns while this process lives.

    A server that a port was chosen for listens only seconds later. Until then nothing else must take the port. Outgoing
    connections do not, because systems give them higher ports (32768 and up on Linux, 49152 and up by RFC 6335
    elsewhere). Other processes that call this function do not, because `_reserve` reserves the port.

    Args:
        count: the number of ports.

    Raises:
        StartupError: fewer ports are free.
    """
    reserved: dict[int, int] = {}
    for port in random.SystemRandom().sample(_SERVER_PORTS, len(_SERVER_PORTS)):
        if len(reserved) == count:
            break
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((LOOPBACK, port))
            reserved[port] = _reserve(port)
    if len(reserved) < count:
        for descriptor in reserved.values():
            os.close(descriptor)
        raise StartupError(
            f"{count} free ports are needed, but {len(reserved)} of {_SERVER_PORTS[0]} to {_SERVER_PORTS[-1]} are free."
            " Stop servers that are not needed, or choose the ports by --port, --dagster-port and LAKESYNC_SPARK_PORT."
        )
    return list(reserved)


def check_port(port: int, host: str, option: str) -> None:
    """Check that a server can listen on a port, so that the error is reported before a child process is started.

    Args:
        port: the port.
        host: the address to listen on.
        option: the option or variable that chooses the port, for the message.

    Raises:
        StartupError: the port is in use or not permitted, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise StartupError(f"Cannot listen on {host}: {error.strerror}. Use an address of this machine.") from error
        raise StartupError(
            f"Port {port} on {host} cannot be used: {error.strerror}. Choose another with {option}, or stop the "
            "program that uses it."
        ) from error


def _reserve(port: int) -> int:
    """Reserve a port's number among processes that call `free_ports`, by binding the UDP port of the same number.

    The server can still listen on the TCP port. The system frees the UDP port when this process ends.

    Returns:
        The descriptor of the UDP socket.

    Raises:
        OSError: another process has reserved the number.
    """
    with socket.socket(type=socket.SOCK_DGRAM) as reservation:
        reservation.bind((LOOPBACK, port))
        return reservation.detach()
