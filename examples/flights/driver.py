"""Drives the demo's clients: the server's clock advances step by step, and at each step all online clients push.

The demo sets the gateway's clock by a file, so that a simulated year passes in minutes. With `--prove`, `Killer` kills
the gateway and Spark with SIGKILL while they work; `lakesync up` starts them again. `Demo` (`demo.py`) calls both.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from examples.flights.client import Journal, SyncingClient
from examples.flights.pipeline import Dagster
from examples.flights.system import ServerClock, System
from examples.flights.workload import CLIENTS, MINUTE, STEP, STEPS_PER_DAY, Client, Step, push_time

MAX_PUSHING_CLIENTS = 8
"""Clients that push concurrently."""
GATEWAY_KILLS = 5
"""How often the gateway is killed during the pushes: `lakesync up` gives up after five restarts in a row."""
FLUSH_JOB = "flush"
"""The Dagster job of a flush."""
CHECK_SECONDS = 0.005
"""Seconds between two checks."""


@dataclass
class DriverResult:
    """What all steps together have done."""

    deltas: int = 0
    """Acknowledged deltas."""
    pulled: int = 0
    """Pulled deltas, of all clients."""
    repeats: int = 0
    """Requests that were sent again because no response came."""
    push_seconds: float = 0.0
    """Seconds spent in pushes, without generating writes and pulling."""
    pull_seconds: float = 0.0
    """Seconds spent in pulls."""
    timeline: list[tuple[int, int]] = field(default_factory=list)
    """`(step, deltas acknowledged by its end)`, in order."""

    @property
    def last_step(self) -> int:
        """The step of the last push."""
        return self.timeline[-1][0]

    @property
    def middle(self) -> tuple[int, int]:
        """The first step by whose end half of the deltas were acknowledged, and a time shortly before the next step.

        The time is the server's, in milliseconds since 1970. Exactly the steps up to this one had arrived then, because
        hours pass between two steps.
        """
        half = next(index for index, (_, deltas) in enumerate(self.timeline) if 2 * deltas >= self.deltas)
        following = self.timeline[half + 1][0] if half + 1 < len(self.timeline) else self.last_step + 1
        return self.timeline[half][0], push_time(following) - MINUTE


class Driver:
    """Lets all clients push to one gateway, and pull from it, step by step."""

    def __init__(self, url: str, secret: str, journal: Journal, clock: ServerClock) -> None:
        """Create the clients.

        Args:
            url: the gateway's address.
            secret: the secret with which the clients' tokens are signed.
            journal: records every acknowledged push.
            clock: sets the gateway's clock.
        """
        self.clients = {client.id: SyncingClient(url, secret, client.id, client.claims) for client in CLIENTS}
        self.journal = journal
        self.clock = clock
        self.done = DriverResult()
        self.busy = threading.Event()
        """Set while clients push."""
        self._threads = ThreadPoolExecutor(MAX_PUSHING_CLIENTS, thread_name_prefix="client")

    def run(self, steps: Iterable[Step], on_progress: Callable[[Step], None]) -> DriverResult:
        """Run every step. Clients that push at a step of a new day pull then too, and all clients pull at the end.

        Args:
            steps: what is pushed, in order.
            on_progress: called with each step once all of its pushes are acknowledged.

        Raises:
            RequestError: the gateway rejected a request, or did not recover.
        """
        for step in steps:
            self.clock.set(push_time(step.number))
            self._push(step if self.done.timeline else self._push_first_step(step))
            if step.number % STEPS_PER_DAY == 0:
                self._pull(client for client in CLIENTS if client.id in step.outboxes)
            self.done.timeline.append((step.number, self.done.deltas))
            on_progress(step)
        self.clock.set(push_time(self.done.last_step) + STEP)
        self._pull(CLIENTS)
        self.done.repeats = sum(client.connection.repeats for client in self.clients.values())
        return self.done

    def close(self) -> None:
        """Stop the clients' threads, even if they wait."""
        for client in self.clients.values():
            client.connection.closed = True
        self._threads.shutdown(cancel_futures=True)

    def _push_first_step(self, first: Step) -> Step:
        """Let one client push, then let the others pull before their first push. Return the rest of the first step.

        The gateway knows of a client that pulls first that it has no rows. A client that pushed first might have any,
        so the gateway would send it every row as DELETE and INSERT.
        """
        opener, *others = sorted(first.outboxes)
        self._push(Step(first.number, {opener: first.outboxes[opener]}))
        self._pull(client for client in CLIENTS if client.id != opener)
        return Step(first.number, {client: first.outboxes[client] for client in others})

    def _push(self, step: Step) -> None:
        """Push the writes of a step, and wait until all are acknowledged."""
        began = time.perf_counter()
        self.busy.set()
        pushes = [
            self._threads.submit(self.clients[client].push, writes, step.number, self.journal)
            for client, writes in step.outboxes.items()
        ]
        self.done.deltas += sum(push.result() for push in pushes)
        self.busy.clear()
        self.done.push_seconds += time.perf_counter() - began

    def _pull(self, clients: Iterable[Client]) -> None:
        """Let some clients pull everything that is new."""
        began = time.perf_counter()
        self.done.pulled += sum(self._threads.map(lambda client: self.clients[client.id].pull(), clients))
        self.done.pull_seconds += time.perf_counter() - began


class Killer:
    """Kills the gateway at random times during the pushes, and Spark once during a flush."""

    def __init__(self, system: System, journal: Journal, pushes: int) -> None:
        """Choose the times.

        Args:
            system: the processes.
            journal: counts the acknowledged pushes.
            pushes: the number of pushes that happen at least. The gateway is killed after randomly chosen ones.
        """
        self.gateway_kills = 0
        self.spark_kills = 0
        self._system = system
        self._journal = journal
        self._kill_after = sorted(random.sample(range(1, max(pushes * 9 // 10, GATEWAY_KILLS + 1)), GATEWAY_KILLS))
        """Numbers of acknowledged pushes after which the gateway is killed, ascending."""
        self._over = threading.Event()
        """Set by `end`."""
        self._threads: list[threading.Thread] = []

    def start(self, driver: Driver) -> None:
        """Start the threads that kill; the gateway is killed only while the driver's clients push."""
        for target in (lambda: self._kill_gateways(driver), self._kill_spark):
            thread = threading.Thread(target=target, name="killer", daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        """Stop the threads; a kill that has not happened yet is cancelled."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _kill_gateways(self, driver: Driver) -> None:
        """Kill the gateway at the chosen times, and each time wait until it is ready again."""
        for pushes in self._kill_after:
            while self._journal.pushes < pushes or not driver.busy.is_set():
                if self._over.wait(CHECK_SECONDS):
                    return
            time.sleep(random.uniform(0, 0.02))  # noqa: S311
            before = self._system.up_info()["gateway"]["pid"]
            self._system.kill("gateway")
            self.gateway_kills += 1
            while not self._is_restarted(before):
                if self._over.wait(CHECK_SECONDS):
                    return

    def _is_restarted(self, before: int) -> bool:
        """Return whether another process than the one with the id `before` serves the gateway."""
        gateway = self._system.up_info()["gateway"]
        return bool(gateway["pid"] != before and gateway["state"] == "ready")

    def _kill_spark(self) -> None:
        """Kill Spark some seconds after a flush has begun, if it still runs then; else wait for the next one."""
        while not self._system.up_info().get("ready"):
            if self._over.wait(0.1):
                return
        dagster = Dagster(self._system.dagster)
        while not self.spark_kills:
            if any(run.job == FLUSH_JOB and run.status == "STARTED" for run in dagster.runs(5)):
                time.sleep(random.uniform(1, 5))  # noqa: S311
                if any(run.job == FLUSH_JOB and run.status == "STARTED" for run in dagster.runs(5)):
                    self._system.kill("spark")
                    self.spark_kills += 1
            if self._over.wait(0.1):
                return
