"""The run host: a process that has imported everything that Dagster runs need, and forks itself for each run.

A new Python process would need seconds for its imports. `lakesync up` starts `python -m lakesync_dagster.run_host
SOCKET`, which listens on a Unix socket. Over it, the run launcher (`lakesync_dagster.run_launcher`), the part of
Dagster that starts runs, requests a process for each run. If a process ends before its run, the host reports the run as
failed within a second. A cancelled run's process gets SIGTERM until it ends. When the host ends, its processes end.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import dagster as dg

from lakehouse.schema_snapshot import snapshot_file
from lakesync.config import load
from lakesync_dagster.recover import IN_PROGRESS, end_run
from lakesync_dagster.run_launcher import HOST
from resources.compat_dagster import load_command, run_command

LOCATION = "lakesync_dagster.definitions"
"""The module with the code location, which is loaded again when the registered tables change."""
MODULES = (
    LOCATION,
    "pyspark.sql.connect.session",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "lakehouse.gateway_connections",
    "lakehouse.sessions",
    "lakehouse.altered_deltas",
    "lakehouse.checks",
    "lakehouse.history.flush",
    "lakehouse.table_access",
    "lakehouse.checkpoints.publication",
    "lakehouse.tables.audit",
    "lakehouse.tables.merging",
)
"""Modules to import before the first fork: those that the steps of a flush (the most frequent run) import."""
_CHECK_SECONDS = 0.5
"""Seconds between two checks for ended processes."""
_REQUEST_SECONDS = 5.0
"""Timeout of a message on the socket."""
_GRACE_SECONDS = 10.0
"""Seconds that a run's process may take to end after SIGTERM when the host ends."""
_REPEAT_SECONDS = 4.0
"""Seconds after which a process that has not ended gets SIGTERM again."""


class RunHost:
    """Starts and ends the processes of runs. It serves one request at a time without threads, so it can fork safely."""

    def __init__(self, path: Path) -> None:
        """Import the modules that runs need, and listen.

        Args:
            path: path of the Unix socket.
        """
        self._tables_file = snapshot_file(load())
        """The file with the registered tables, from which the code location creates its assets."""
        self._loaded = self._snapshot_version()
        """The version of that file from which the code location was loaded."""
        for name in MODULES:
            importlib.import_module(name)
        load_command()
        with dg.DagsterInstance.get():
            pass  # its storage imports further modules
        gc.freeze()  # the collector does not touch these objects, so processes continue to share their pages
        # Only the host has the writing end of this pipe open. Runs' processes read from it; the read returns when the
        # host has ended, even if it was killed.
        self._host_ended, self._alive = os.pipe()
        self._runs: dict[int, str] = {}
        """Process id → run id."""
        self._ending: dict[int, float] = {}
        """Processes that have got SIGTERM: id → monotonic time in seconds at which it gets the signal again."""
        self._fork(end_runs_of_earlier_hosts)
        path.unlink(missing_ok=True)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        path.chmod(0o600)
        self._listening.listen()
        self._listening.settimeout(_CHECK_SECONDS)

    def serve(self, stopping: Callable[[], bool]) -> None:
        """Serve requests until the host is stopped, then end the runs' processes.

        Args:
            stopping: returns whether to stop. It is called at least twice a second.
        """
        while not stopping():
            self._check_processes()
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listening.accept()
                with connection, contextlib.suppress(OSError, ValueError):
                    connection.settimeout(_REQUEST_SECONDS)
                    self._answer(connection)
        self._listening.close()
        for pid in self._runs:
            self._terminate(pid)
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._runs and time.monotonic() < deadline:
            self._check_processes()
            time.sleep(0.05)

    def _answer(self, connection: socket.socket) -> None:
        """Handle a request: `{"start": run id, "arguments": …}` starts a run, `{"end": run id}` ends its process.

        A launcher that did not get a response in time requests the run again. So a run is only offered at first, and
        forked once the launcher has confirmed that it got the offer.

        Args:
            connection: a launcher's connection.

        Raises:
            OSError: the launcher has given up, or sends nothing.
            ValueError: the request is malformed.
        """
        messages = connection.makefile("rb")

        def respond(**response: object) -> None:
            connection.sendall(json.dumps(response).encode() + b"\n")

        request = json.loads(messages.readline())
        if "end" in request:
            respond(ended=self._end(request["end"]))
            return
        self._refresh()
        respond(host=os.getpid())
        if messages.readline():
            respond(pid=self._start(request["start"], request["arguments"]))

    def _end(self, run_id: str) -> bool:
        """Request that a run's process ends, and return whether there is one."""
        pid = next((pid for pid, each in self._runs.items() if each == run_id), None)
        if pid is not None:
            self._terminate(pid)
        return pid is not None

    def _terminate(self, pid: int) -> None:
        """Send SIGTERM to a run's process. Unless the process ends, `_check_processes` sends it again.

        One signal may have no effect. Dagster's signal handler raises an exception, and Python drops an exception that
        is raised in `__del__` or in a weak reference's callback, such as those of SQLAlchemy's engines.
        """
        os.kill(pid, signal.SIGTERM)
        self._ending[pid] = time.monotonic() + _REPEAT_SECONDS

    def _start(self, run_id: str, arguments: list[str]) -> int:
        """Fork the process of a run, and return its id."""

        def run() -> None:
            self._listening.close()
            threading.Thread(target=self._end_with_host, daemon=True).start()
            run_command(arguments)

        pid = self._fork(run)
        self._runs[pid] = run_id
        return pid

    def _fork(self, work: Callable[[], object]) -> int:
        """Fork a process that does some work and exits, and return its id."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            os.close(self._alive)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _exit_after(work)
        return pid

    def _end_with_host(self) -> None:
        """Wait until the host has ended, then end this process. A thread of each run's process calls it."""
        os.read(self._host_ended, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    def _check_processes(self) -> None:
        """Collect the processes that have ended, and send SIGTERM again to those that should have ended."""
        self._reap()
        for pid, due in list(self._ending.items()):
            if time.monotonic() >= due:
                self._terminate(pid)

    def _reap(self) -> None:
        """Collect ended processes, and report the runs of those that failed, each in a process of its own."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self._ending.pop(pid, None)
                run_id = self._runs.pop(pid, None)
                if run_id is not None and status:
                    self._fork(partial(report_end, run_id, os.waitstatus_to_exitcode(status)))

    def _refresh(self) -> None:
        """Load the code location again if the registered tables have changed."""
        version = self._snapshot_version()
        if version != self._loaded:
            importlib.reload(sys.modules[LOCATION])
            gc.collect()
            gc.freeze()
            self._loaded = version

    def _snapshot_version(self) -> tuple[int, int] | None:
        """Return time and inode of the file with the registered tables, which change with it; None without a file."""
        try:
            status = self._tables_file.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_ino


def report_end(run_id: str, code: int) -> None:
    """Report a run as failed, unless it has finished, because its process has ended.

    Args:
        run_id: the run's id.
        code: exit code of the process; the negative number of the signal if one ended it.
    """
    cause = f"signal {-code}" if code < 0 else f"code {code}"
    with dg.DagsterInstance.get() as instance:
        run = instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished:
            end_run(instance, run, f"The run's process ended with {cause}.")


def end_runs_of_earlier_hosts() -> None:
    """Record the runs of an earlier, killed host as ended. Their processes end with their host."""
    own = str(os.getppid())  # a child of the host calls this function; the tag `HOST` has the host's process id
    with dg.DagsterInstance.get() as instance:
        for run in instance.get_runs(filters=dg.RunsFilter(statuses=list(IN_PROGRESS))):
            if run.tags.get(HOST, own) != own:
                end_run(instance, run, "The run host was stopped or killed while the run was going on.")


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    RunHost(Path(sys.argv[1])).serve(stopping.is_set)


def _exit_after(work: Callable[[], object]) -> NoReturn:
    """Do a child process's work, then exit without the exit handlers that the parent registered."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
