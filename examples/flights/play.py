"""Plays the writes: the server's clock advances step by step, and at each step all online clients push.

The demo sets the gateway's clock by a file, so that a simulated year passes in minutes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from examples.flights.cast import CAST, MINUTE, STEP, STEPS_PER_DAY, Client, push_time
from examples.flights.client import SyncingClient
from examples.flights.journal import Journal
from examples.flights.story import Step

MAX_PUSHING_CLIENTS = 8
"""Clients that push concurrently."""
CLOCK_READ_SECONDS = 0.03
"""Seconds until the gateway has read its clock's file again."""


class ServerClock:
    """The file that sets the gateway's clock. Simulated time only moves forward, and continues between steps."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def set(self, milliseconds: int) -> None:
        """Set the gateway's clock to `milliseconds` since 1970, and wait until it is applied."""
        draft = self.path.with_suffix(".next")
        draft.write_text(str(milliseconds - time.time_ns() // 1_000_000), "ascii")
        draft.replace(self.path)
        time.sleep(CLOCK_READ_SECONDS)


@dataclass
class Played:
    """The result of playing all steps."""

    deltas: int = 0
    """Acknowledged deltas."""
    pulled: int = 0
    """Pulled deltas, of all clients."""
    repeats: int = 0
    """Requests that were sent again because no response came."""
    push_seconds: float = 0.0
    """Seconds spent in pushes, without generating writes and pulling."""
    pull_seconds: float = 0.0
    timeline: list[tuple[int, int]] = field(default_factory=list)
    """`(step, deltas acknowledged by its end)`, in order."""

    @property
    def last_step(self) -> int:
        """The step of the last push."""
        return self.timeline[-1][0]

    @property
    def middle(self) -> tuple[int, int]:
        """`(step, time in milliseconds)` in the middle of the run: exactly the steps up to it had arrived then.

        Hours pass between two steps, so the time before the next step is after this step's last arrival.
        """
        half = next(place for place, (_, deltas) in enumerate(self.timeline) if 2 * deltas >= self.deltas)
        following = self.timeline[half + 1][0] if half + 1 < len(self.timeline) else self.last_step + 1
        return self.timeline[half][0], push_time(following) - MINUTE


class Play:
    """All clients on one gateway."""

    def __init__(self, url: str, secret: str, journal: Journal, clock: ServerClock) -> None:
        self.clients = {client.id: SyncingClient(url, secret, client.id, client.claims) for client in CAST}
        self.journal = journal
        self.clock = clock
        self.done = Played()
        self.busy = threading.Event()
        """Set while clients push."""
        self._threads = ThreadPoolExecutor(MAX_PUSHING_CLIENTS, thread_name_prefix="client")

    def perform(self, steps: Iterable[Step], on_progress: Callable[[Step], None]) -> Played:
        """Play every step. `on_progress` is called for each once all of its pushes are acknowledged.

        Raises:
            RefusedError: the gateway rejected a request, or did not recover.
        """
        for step in steps:
            self.clock.set(push_time(step.number))
            self._push(step if self.done.timeline else self._meet(step))
            if step.number % STEPS_PER_DAY == 0:
                self._pull(client for client in CAST if client.id in step.outboxes)
            self.done.timeline.append((step.number, self.done.deltas))
            on_progress(step)
        self.clock.set(push_time(self.done.last_step) + STEP)
        self._pull(CAST)
        self.done.repeats = sum(client.connection.repeats for client in self.clients.values())
        return self.done

    def close(self) -> None:
        """Stop the clients' threads, even if they wait."""
        for client in self.clients.values():
            client.connection.closed = True
        self._threads.shutdown(cancel_futures=True)

    def _meet(self, first: Step) -> Step:
        """Let one client push, then let the others pull before their first push. Returns the rest of the first step.

        A client that pulls first is known to have no rows. A client that pushed first might have any, so it would get
        every row as DELETE and INSERT.
        """
        opener, *others = sorted(first.outboxes)
        self._push(Step(first.number, {opener: first.outboxes[opener]}))
        self._pull(client for client in CAST if client.id != opener)
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

    def _pull(self, who: Iterable[Client]) -> None:
        """Let some clients pull everything that is new."""
        began = time.perf_counter()
        self.done.pulled += sum(self._threads.map(lambda client: self.clients[client.id].pull(), who))
        self.done.pull_seconds += time.perf_counter() - began
