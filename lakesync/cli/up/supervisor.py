"""Runs services (processes): starts them in order, restarts those that end, and stops all.

`lakesync.cli.up.stack` creates the services of `lakesync up` or `lakesync pipeline`, and calls `Supervisor.run`, then
`stop_all`. The two commands create a `Display`, which prints progress on stderr, and with `--json` a JSON line for each
change on stdout.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil
from rich.console import Console
from rich.markup import escape

from lakesync.cli.up.process import Process
from lakesync.cli.up.services import Service
from lakesync.config import Config
from lakesync.model.backoff import doubled_wait
from lakesync.model.errors import StartupError

_TICK_SECONDS = 0.1
"""Interval between checks of all services."""
_FIRST_WAIT_SECONDS = 0.5
"""The delay before restart n + 1 in a row is this time multiplied by 2 to the power n; the first has no delay."""
_MAX_WAIT_SECONDS = 10.0
"""The longest delay before a restart."""
_MAX_RESTARTS = 5
"""Restarts in a row; the supervisor gives up when the service fails again after the last one."""
_STABLE_SECONDS = 30.0
"""Restarts are in a row unless the service was ready for this time in between."""
_CLOCK_STEP_SECONDS = 5.0
"""The wall clock counts as set back if it went back by more than this time."""
_GRACE_SECONDS = 15.0
"""Seconds that a process may take to stop after SIGTERM."""
_STOP_ORDER = (("daemon", "dagster", "recovery"), ("runs", "code_server"), ("gateway", "spark"))
"""Groups of services, as `services.services` names them, in the order in which they are stopped: those that request
work before those that do it. Services that are not named here are stopped first."""


class State(StrEnum):
    """State of a service."""

    WAITING = "waiting"
    """The service is not running: other services are not ready yet, or it waits to be restarted."""
    STARTING = "starting"
    READY = "ready"
    """The service is running and ready. A service with `once` has run and succeeded."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a service's state."""

    service: Service
    state: State
    """The new state."""
    pid: int | None = None
    """The process's id while it is starting or ready."""
    log: Path | None = None
    """The log file of the newest process."""
    seconds: float = 0.0
    """Seconds from start to readiness, if the new state is `ready`."""
    reason: str = ""
    """Why the service is restarted, if the new state is `waiting`."""
    all_ready: bool = False
    """Whether every service is ready after the change."""


class _SupervisedService:
    """A service and its current process. Times are those of `time.monotonic`."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.process: Process | None = None
        """The newest process; None before the first start."""
        self.child: psutil.Process | None = None
        """A running child of the newest process, if the service `needs_child`: it does the work in a child, and does
        not end when that dies. None if none was found yet."""
        self.state = State.WAITING
        self.was_ready = False
        """Whether the service was ever ready."""
        self.restarts = 0
        """Restarts since it was last ready for `_STABLE_SECONDS`."""
        self.started_at = 0.0
        """When the newest process was started."""
        self.ready_at = 0.0
        """When it last became ready."""
        self.not_before = 0.0
        """When the service may be started again."""


class Supervisor:
    """Runs services until it is stopped, or until a service fails too often."""

    def __init__(self, services: Sequence[Service], logs: Path, report: Callable[[Change], None]) -> None:
        """Create a supervisor; `run` starts the services.

        Args:
            services: the services to run.
            logs: the folder for their log files.
            report: called after each change of a service's state.
        """
        self._services = {service.name: _SupervisedService(service) for service in services}
        self._logs = logs
        self._report = report

    @property
    def all_ready(self) -> bool:
        """Whether every service is ready."""
        return all(supervised.state is State.READY for supervised in self._services.values())

    def run(self, stop: threading.Event) -> None:
        """Keep all services running until `stop` is set. The caller then calls `stop_all`.

        Raises:
            StartupError: a service did not become ready at its first start, or failed again after five restarts in a
                row. The message has the last lines of its log.
        """
        offset = _clock_offset()
        while not stop.is_set():
            before, offset = offset, _clock_offset()
            if offset < before - _CLOCK_STEP_SECONDS:
                self._restart_after_clock_change()
            for supervised in self._services.values():
                self._check(supervised)
            stop.wait(_TICK_SECONDS)

    def stop_all(self) -> None:
        """Stop every process; those that others need are stopped last."""
        others = self._services.keys() - {name for names in _STOP_ORDER for name in names}
        for names in (others, *_STOP_ORDER):
            stopping = [
                threading.Thread(target=supervised.process.stop, kwargs={"grace": _GRACE_SECONDS})
                for name, supervised in self._services.items()
                if name in names and supervised.process is not None
            ]
            for thread in stopping:
                thread.start()
            for thread in stopping:
                thread.join()
        for supervised in self._services.values():
            self._set_state(supervised, State.STOPPED)

    def _check(self, supervised: _SupervisedService) -> None:
        """Start a service if it may start, or record that it has become ready or has ended."""
        match supervised.state:
            case State.WAITING:
                if time.monotonic() >= supervised.not_before and self._may_start(supervised.service):
                    self._start(supervised)
            case State.STARTING:
                self._watch_start(supervised)
            case State.READY if not supervised.service.once and (process := supervised.process) is not None:
                if process.exit_code is not None:
                    self._restart_or_fail(supervised, _exit_reason(process))
                elif supervised.service.needs_child and _has_lost_child(supervised, process):
                    self._restart_or_fail(supervised, "lost its child process")

    def _may_start(self, service: Service) -> bool:
        """Return whether all services that it needs have been ready."""
        return all(self._services[name].was_ready for name in service.after)

    def _start(self, supervised: _SupervisedService) -> None:
        """Start a service's process."""
        service = supervised.service
        supervised.process = Process(
            service.name, service.command, service.environment, self._logs / f"{service.name}.log"
        )
        supervised.child = None
        supervised.started_at = time.monotonic()
        self._set_state(supervised, State.STARTING)

    def _watch_start(self, supervised: _SupervisedService) -> None:
        """Record that a starting service has become ready, has ended or takes too long."""
        assert supervised.process is not None
        seconds = time.monotonic() - supervised.started_at
        code = supervised.process.exit_code
        if code is not None and not (supervised.service.once and code == 0):
            self._restart_or_fail(supervised, _exit_reason(supervised.process))
        elif (code is not None or not supervised.service.once) and supervised.service.ready():
            supervised.was_ready, supervised.ready_at = True, time.monotonic()
            self._set_state(supervised, State.READY, seconds=seconds)
        elif seconds > supervised.service.timeout:
            self._restart_or_fail(supervised, f"was not ready after {supervised.service.timeout:.0f} s")

    def _restart_or_fail(self, supervised: _SupervisedService, reason: str) -> None:
        """Schedule the restart of a service that ended or does not become ready; `reason` says which.

        Raises:
            StartupError: the service was never ready, or was restarted too often.
        """
        process = supervised.process
        assert process is not None
        if supervised.state is State.READY and time.monotonic() - supervised.ready_at >= _STABLE_SECONDS:
            supervised.restarts = 0
        if not supervised.was_ready or supervised.restarts >= _MAX_RESTARTS:
            hint = f"\n{supervised.service.hint}" if supervised.service.hint else ""
            raise StartupError(
                f"{supervised.service.name} {reason}. The last lines of its log, {process.log}:\n"
                f"{process.last_lines() or '(nothing)'}{hint}"
            )
        if process.exit_code is None:
            process.stop(grace=2)
        restarts = supervised.restarts
        wait = doubled_wait(_FIRST_WAIT_SECONDS, _MAX_WAIT_SECONDS, restarts) if restarts else 0.0
        supervised.not_before = time.monotonic() + wait
        supervised.restarts += 1
        self._set_state(supervised, State.WAITING, reason=reason)

    def _restart_after_clock_change(self) -> None:
        """Stop the services that wait by the wall clock, so that they are started again."""
        for supervised in self._services.values():
            process = supervised.process
            if supervised.service.waits_by_clock and process is not None and supervised.state is not State.WAITING:
                process.stop(grace=_GRACE_SECONDS)
                self._set_state(supervised, State.WAITING, reason="was stopped because the clock was set back")

    def _set_state(
        self, supervised: _SupervisedService, state: State, *, seconds: float = 0.0, reason: str = ""
    ) -> None:
        """Set a service's state and report it; the other arguments are fields of `Change`."""
        supervised.state = state
        process = supervised.process if state in {State.STARTING, State.READY} else None
        self._report(
            Change(
                supervised.service,
                state,
                pid=process.pid if process else None,
                log=supervised.process.log if supervised.process else None,
                seconds=seconds,
                reason=reason,
                all_ready=self.all_ready,
            )
        )


class Display:
    """Prints the progress of services."""

    def __init__(self, *, json_events: bool) -> None:
        """Choose the form of the output.

        Args:
            json_events: also print JSON lines on stdout.
        """
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._json = json_events

    def note(self, text: str) -> None:
        """Print a message that does not concern a single service."""
        self._console.print(f"[dim]{escape(text)}[/]")
        self._event(event="note", text=text)

    def show_spinner(self, text: str) -> AbstractContextManager[object]:
        """Return a context manager that shows a spinner with a text."""
        return self._console.status(text)

    def change(self, change: Change) -> None:
        """Print a service's new state."""
        name = f"{change.service.name:<12}"
        match change.state:
            case State.READY if change.service.once:
                self._console.print(f"{name} [green]done[/]  after {change.seconds:.1f} s")
            case State.READY:
                self._console.print(
                    f"{name} [green]ready[/] after {change.seconds:.1f} s  {escape(change.service.where)}"
                )
            case State.STARTING:
                self._console.print(f"{name} [dim]starting; log: {escape(str(change.log))}[/]")
            case State.WAITING if change.reason:
                self._console.print(
                    f"{name} [yellow]{escape(change.reason)}; restarting[/]; log: {escape(str(change.log))}"
                )
            case _:
                self._console.print(f"{name} [dim]{change.state.value}[/]")
        self._event(
            event=change.state.value,
            service=change.service.name,
            pid=change.pid,
            where=change.service.where,
            seconds=round(change.seconds, 3),
            reason=change.reason,
        )

    def ready(self, config: Config, folder: Path, *, with_gateway: bool) -> None:
        """Print the addresses of all services; called when all are ready.

        Args:
            config: the settings, with every address chosen.
            folder: the data folder.
            with_gateway: whether the gateway is one of the services.
        """
        title = "LakeSync is up." if with_gateway else "The pipeline is up."
        self._console.print(
            f"\n[bold green]{title}[/]  gateway [bold]{escape(config.gateway.url or '')}[/]  "
            f"pipeline [bold]{escape(config.dagster.url or '')}[/]"
            + (f"  Spark [bold]{escape(config.spark.ui_url)}[/]" if config.spark.ui_url else "")
            + (
                "\n[dim]run `lakesync console --open` to see clients, and why one lacks a row[/]"
                if with_gateway
                else ""
            )
            + f"\n[dim]data and logs: {escape(str(folder))}; Ctrl-C stops everything[/]\n"
        )
        self._event(
            event="up",
            gateway=config.gateway.url,
            dagster=config.dagster.url,
            spark_ui=config.spark.ui_url,
            data_dir=str(folder),
        )

    def _event(self, **fields: object) -> None:
        """Print an event as a JSON line, if the supervisor was asked to."""
        if self._json:
            print(json.dumps(fields), file=sys.stdout, flush=True)


def _clock_offset() -> float:
    """Return the seconds from the monotonic clock to the wall clock, which change if the wall clock is set."""
    return time.time() - time.monotonic()


def _has_lost_child(supervised: _SupervisedService, process: Process) -> bool:
    """Return whether a service's process had a running child since its start and has none now; updates `child`."""
    child = supervised.child
    if child is None or not _runs(child):
        supervised.child = next((each for each in psutil.Process(process.pid).children() if _runs(each)), None)
    return child is not None and supervised.child is None


def _runs(process: psutil.Process) -> bool:
    """Return whether a process has not ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _exit_reason(process: Process) -> str:
    """Return how a process ended, as the end of a sentence."""
    code = process.exit_code or 0
    return f"was terminated by signal {-code}" if code < 0 else f"exited with code {code}"
