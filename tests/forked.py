"""Short-lived processes, forked from one that has imported gateway and pipeline.

They save Python's start and the imports, which take as long as most of their work.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from lakesync.model.crash_points import VARIABLE

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "gateway.__main__",
        "tests.lake_drivers",
        # what these import only when it is needed, which otherwise each process does
        "jsonschema",
        "lakesync.staging.postgres",
        "lakesync.staging.sqlite",
        "uvicorn.lifespan.on",
        "uvicorn.loops.uvloop",
        "tests.conformance.killed_follower",
        "tests.frozen",
    ]
)


class Forked:
    """A function that runs in a forked process; has the methods of `subprocess.Popen`."""

    def __init__(
        self,
        work: Callable[..., int | None],
        *arguments: object,
        environment: Mapping[str, str],
        log: Path | None = None,
    ) -> None:
        """Start the function with exactly this environment, in the log's folder; its result is the exit code."""
        if log is not None:
            log.touch()
        self._process = FORKS.Process(target=_live, args=(work, arguments, dict(environment), log), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs, negative if a signal ended it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit code.

        Raises:
            subprocess.TimeoutExpired: the process still runs after `timeout` seconds.
        """
        self._process.join(timeout)
        code = self.returncode
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run_until_killed(work: Callable[..., int | None], *arguments: object, crash_at: str) -> str:
    """Run a function in a forked process until a crash point kills it; return its output."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        killed = Forked(work, *arguments, environment={**os.environ, VARIABLE: crash_at}, log=log)
        assert killed.wait(120) == -signal.SIGKILL, log.read_text()
        return log.read_text()


def run_code(code: str, *arguments: str, **variables: str) -> int:
    """Run Python code as `python -c` does, with further environment variables; return the exit code."""
    return Forked(_execute, code, arguments, environment={**os.environ, **variables}).wait(120)


def gateway() -> int:
    """Run the gateway as `python -m gateway` does."""
    from gateway.__main__ import main

    return main()


def _execute(code: str, arguments: tuple[str, ...]) -> None:
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<code of a test>", "exec"), {"__name__": "__main__"})  # noqa: S102


def _live(
    work: Callable[..., int | None], arguments: tuple[object, ...], environment: Mapping[str, str], log: Path | None
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep) if environment.get("PYTHONPATH") else []
    if log is not None:
        os.chdir(log.parent)
        with log.open("ab") as stream:
            for descriptor in (1, 2):
                os.dup2(stream.fileno(), descriptor)
        faulthandler.enable(2)
    sys.exit(work(*arguments))
