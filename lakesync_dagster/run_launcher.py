"""The Dagster run launcher and run coordinator that `lakesync up` configures in `dagster.yaml`.

A run launcher is the part of Dagster that starts a process for a run: here through the run host, a process that has
imported everything already, and forks itself for each run. A run coordinator decides when a queued run is launched:
here each kind of run has a limited number of slots, so that none delays another.
"""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Self

import dagster as dg
import stamina

from assets.names import OTHER_SLOT, SLOT
from resources.compat_dagster import run_arguments

HOST = "lakesync/run_host"
"""Run tag: process id of the run host that has forked the run's process."""
_TIMEOUT_SECONDS = 20.0
"""Timeout of the run host's response to a message."""
_RESTART_SECONDS = 60.0
"""Seconds to wait for the run host, which `lakesync up` restarts if it has ended."""


class RunHostLauncher(dg.DefaultRunLauncher):
    """Starts each run in a process that the run host (`lakesync_dagster.run_host`) forks.

    Dagster's own launcher starts a Python interpreter for each run, whose imports take five seconds. It cannot replace
    a host that does not answer, because only the host has the secrets that runs need.
    """

    def __init__(self, socket_path: str, inst_data: Any = None) -> None:
        """Create the launcher.

        Args:
            socket_path: path of the run host's Unix socket.
            inst_data: Dagster's own data on the launcher.
        """
        super().__init__(inst_data)
        self._socket = socket_path

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """Return the schema of the settings in `dagster.yaml`."""
        return {"socket": str}

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Mapping[str, Any]) -> Self:
        """Create the launcher from `dagster.yaml`.

        Args:
            inst_data: Dagster's own data on the launcher.
            config_value: the settings in `dagster.yaml`.
        """
        return cls(config_value["socket"], inst_data)

    def launch_run(self, context: Any) -> None:
        """Start a run.

        Args:
            context: Dagster's `LaunchRunContext`, which the package `dagster` does not export.

        Raises:
            DagsterInvariantViolationError: the run host did not answer in time; Dagster ends the run.
        """
        run: dg.DagsterRun = context.dagster_run
        try:
            for attempt in stamina.retry_context(on=OSError, attempts=None, timeout=_RESTART_SECONDS, wait_max=1.0):
                with attempt, self._connect() as host:
                    offer = host.send({"start": run.run_id, "arguments": run_arguments(run, self._instance)})
                    # From here on the host may fork, so an error must no longer start the run again.
                    forked = self._confirm(host)
        except OSError as error:
            raise dg.DagsterInvariantViolationError(
                f"The run host does not answer at {self._socket}: {error}. Its log is runs.log in the data folder."
            ) from error
        self._instance.add_run_tags(run.run_id, {HOST: str(offer["host"])})
        self._instance.report_engine_event(forked, run, cls=type(self))

    def terminate(self, run_id: str) -> bool:
        """Request that a run's process ends, and return whether there was one."""
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        self._instance.report_run_canceling(run)
        try:
            with self._connect() as host:
                return bool(host.send({"end": run_id})["ended"])
        except OSError:
            return False

    @staticmethod
    def _confirm(host: "_Connection") -> str:
        """Have the run host fork the process that it offered, and return what happened, for the run's page."""
        try:
            return f"The run host has forked process {host.send({'fork': True})['pid']}."
        except OSError as error:
            return f"The run host may have forked a process: {error}. If none reports, run monitoring ends the run."

    @contextmanager
    def _connect(self) -> Iterator["_Connection"]:
        """Open a connection to the run host.

        Raises:
            OSError: the host cannot be reached.
        """
        with socket.socket(socket.AF_UNIX) as host, host.makefile("rb") as responses:
            host.settimeout(_TIMEOUT_SECONDS)
            host.connect(self._socket)
            yield _Connection(host, responses)


class _Connection:
    """A connection to the run host."""

    def __init__(self, host: socket.socket, responses: BinaryIO) -> None:
        self._host = host
        self._responses = responses

    def send(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return the response.

        Raises:
            OSError: the host does not answer in time, or closed the connection.
        """
        self._host.sendall(json.dumps(message).encode() + b"\n")
        line = self._responses.readline()
        if not line:
            raise ConnectionResetError("it closed the connection")
        response: dict[str, Any] = json.loads(line)
        return response


class SlotCoordinator(dg.QueuedRunCoordinator):
    """Queues runs as Dagster does. A run without the tag for its kind, such as a backfill's, gets the kind `other`.

    `concurrency.runs.tag_concurrency_limits` in `dagster.yaml` has a limit for each kind. It does not apply to runs
    without the tag.
    """

    def submit_run(self, context: dg.SubmitRunContext) -> dg.DagsterRun:
        """Add the tag of its kind to a run if it has none, and queue it."""
        run = context.dagster_run
        if SLOT not in run.tags:
            self._instance.add_run_tags(run.run_id, {SLOT: OTHER_SLOT})
        return super().submit_run(context)
