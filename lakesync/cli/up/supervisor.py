"""Starts services in order, restarts those that end, and stops all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from lakesync.cli.up.process import Process
from lakesync.cli.up.services import Service
from lakesync.model.errors import StartupError

_TICK_SECONDS = 0.1
_FIRST_WAIT_SECONDS = 0.5
_MAX_WAIT_SECONDS = 10.0
_MAX_FAILURES = 5
_GRACE_SECONDS = 15.0
_STOP_ORDER = (("daemon", "dagster", "recovery"), ("runs", "code_server"), ("gateway", "spark"))


class State(StrEnum):
    """State of a service."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a service's state."""

    service: Service
    state: State
    pid: int | None = None
    log: Path | None = None
    seconds: float = 0.0
    """Seconds from start to readiness."""
    reason: str = ""
    """Why it is restarted."""


class _Slot:
    """A service and its current process."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.process: Process | None = None
        self.state = State.WAITING
        self.was_ready = False
        self.failures = 0
        self.since = 0.0
        self.not_before = 0.0


class Supervisor:
    """Runs services until it is stopped, or until one of them cannot be kept running."""

    def __init__(self, services: Sequence[Service], logs: Path, report: Callable[[Change], None]) -> None:
        """Create a supervisor; `run` starts the services.

        Args:
            services: the services to run.
            logs: folder of their logs.
            report: called after each change of state.
        """
        self._slots = {service.name: _Slot(service) for service in services}
        self._logs = logs
        self._report = report

    @property
    def all_ready(self) -> bool:
        """Whether every service is ready."""
        return all(slot.state is State.READY for slot in self._slots.values())

    def run(self, stop: threading.Event) -> None:
        """Keep all services running until `stop` is set. The caller then calls `stop_all`.

        Raises:
            StartupError: a service did not become ready at its first start, or failed five times in a row later. The
                message has the last lines of its log.
        """
        while not stop.is_set():
            for slot in self._slots.values():
                self._check(slot)
            stop.wait(_TICK_SECONDS)

    def stop_all(self) -> None:
        """Stop every process, in an order that stops those that others need last."""
        others = self._slots.keys() - {name for names in _STOP_ORDER for name in names}
        for names in (others, *_STOP_ORDER):
            stopping = [
                threading.Thread(target=slot.process.stop, kwargs={"grace": _GRACE_SECONDS})
                for name, slot in self._slots.items()
                if name in names and slot.process is not None
            ]
            for thread in stopping:
                thread.start()
            for thread in stopping:
                thread.join()
        for slot in self._slots.values():
            self._change(slot, State.STOPPED)

    def _check(self, slot: _Slot) -> None:
        match slot.state:
            case State.WAITING:
                if time.monotonic() >= slot.not_before and self._may_start(slot.service):
                    self._start(slot)
            case State.STARTING:
                self._watch_start(slot)
            case State.READY:
                if not slot.service.once and slot.process and slot.process.exit_code is not None:
                    self._failed(slot, _exit_reason(slot.process))

    def _may_start(self, service: Service) -> bool:
        return all(self._slots[name].was_ready for name in service.after)

    def _start(self, slot: _Slot) -> None:
        service = slot.service
        slot.process = Process(service.name, service.command, service.environment, self._logs / f"{service.name}.log")
        slot.since = time.monotonic()
        self._change(slot, State.STARTING)

    def _watch_start(self, slot: _Slot) -> None:
        assert slot.process is not None
        seconds = time.monotonic() - slot.since
        code = slot.process.exit_code
        if code is not None and not (slot.service.once and code == 0):
            self._failed(slot, _exit_reason(slot.process))
        elif (code is not None or not slot.service.once) and slot.service.ready():
            slot.was_ready, slot.failures = True, 0
            self._change(slot, State.READY, seconds=seconds)
        elif seconds > slot.service.timeout:
            self._failed(slot, f"was not ready after {slot.service.timeout:.0f} s")

    def _failed(self, slot: _Slot, reason: str) -> None:
        """Schedule a restart.

        Raises:
            StartupError: the service was never ready, or failed too often.
        """
        process = slot.process
        assert process is not None
        if slot.state is not State.READY:
            slot.failures += 1
        if not slot.was_ready or slot.failures >= _MAX_FAILURES:
            hint = f"\n{slot.service.hint}" if slot.service.hint else ""
            raise StartupError(
                f"{slot.service.name} {reason}. The last lines of its log, {process.log}:\n"
                f"{process.last_lines() or '(nothing)'}{hint}"
            )
        if process.exit_code is None:
            process.stop(grace=2)
        wait = min(_MAX_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2**slot.failures) if slot.failures else 0.0
        slot.not_before = time.monotonic() + wait
        self._change(slot, State.WAITING, reason=reason)

    def _change(self, slot: _Slot, state: State, *, seconds: float = 0.0, reason: str = "") -> None:
        slot.state = state
        process = slot.process if state in {State.STARTING, State.READY} else None
        self._report(
            Change(
                slot.service,
                state,
                pid=process.pid if process else None,
                log=slot.process.log if slot.process else None,
                seconds=seconds,
                reason=reason,
            )
        )


def _exit_reason(process: Process) -> str:
    code = process.exit_code or 0
    return f"was terminated by signal {-code}" if code < 0 else f"exited with code {code}"
