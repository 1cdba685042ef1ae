"""The play: the server's clock goes from step to step, and at each step everyone who is online pushes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from examples.flights.cast import CAST, MINUTE, STEP, STEPS_A_DAY, Client, push_time
from examples.flights.client import SyncingClient
from examples.flights.journal import Journal
from examples.flights.story import Step

AT_ONCE = 8
"""Clients that push at the same time."""
NOTICED = 0.03
"""Seconds after which the gateway has read its clock's file again."""


class ServerClock:
    """The file by which the gateway's clock is set; simulated time only goes forward, and runs on in between."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def set(self, milliseconds: int) -> None:
        """Make it `milliseconds` since 1970 at the gateway, and wait until it knows."""
        draft = self.path.with_suffix(".next")
        draft.write_text(str(milliseconds - time.time_ns() // 1_000_000), "ascii")
        draft.replace(self.path)
        time.sleep(NOTICED)


@dataclass
class Played:
    """What the play came to."""

    deltas: int = 0
    pulled: int = 0
    repeats: int = 0
    push_seconds: float = 0.0
    """Spent in pushes, without the story's making and the pulls."""
    pull_seconds: float = 0.0
    timeline: list[tuple[int, int]] = field(default_factory=list)
    """`(step, deltas acknowledged up to its end)`, in order."""

    @property
    def last_step(self) -> int:
        """The step at which the last push was made."""
        return self.timeline[-1][0]

    @property
    def middle(self) -> tuple[int, int]:
        """`(step, instant)` of the middle of the run, in milliseconds: all up to the step had arrived, nothing else.

        Between two steps hours go by, so the instant before the next step is after the last arrival of this one.
        """
        half = next(place for place, (_, deltas) in enumerate(self.timeline) if 2 * deltas >= self.deltas)
        following = self.timeline[half + 1][0] if half + 1 < len(self.timeline) else self.last_step + 1
        return self.timeline[half][0], push_time(following) - MINUTE


class Play:
    """The whole cast on one gateway."""

    def __init__(self, url: str, secret: str, journal: Journal, clock: ServerClock) -> None:
        self.clients = {client.id: SyncingClient(url, secret, client.id, client.claims) for client in CAST}
        self.journal = journal
        self.clock = clock
        self.done = Played()
        self.busy = threading.Event()
        """Set while clients push."""
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="client")

    def perform(self, steps: Iterable[Step], told: Callable[[Step], None]) -> Played:
        """Play every step; `told` hears of each once all of its pushes are acknowledged.

        Raises:
            RefusedError: the gateway refused something, or did not come back.
        """
        for step in steps:
            self.clock.set(push_time(step.number))
            self._push(step if self.done.timeline else self._meet(step))
            if step.number % STEPS_A_DAY == 0:
                self._pull(client for client in CAST if client.id in step.outboxes)
            self.done.timeline.append((step.number, self.done.deltas))
            told(step)
        self.clock.set(push_time(self.done.last_step) + STEP)
        self._pull(CAST)
        self.done.repeats = sum(client.connection.repeats for client in self.clients.values())
        return self.done

    def close(self) -> None:
        """End the clients' threads, whatever they wait for."""
        for client in self.clients.values():
            client.connection.closed = True
        self._threads.shutdown(cancel_futures=True)

    def _meet(self, first: Step) -> Step:
        """One client pushes, then the others pull before they push anything; what is left of the first step.

        A client that pulls first is known to hold nothing. One that pushed first might hold anything, and would be sent
        every row as DELETE and INSERT.
        """
        opener, *others = sorted(first.outboxes)
        self._push(Step(first.number, {opener: first.outboxes[opener]}))
        self._pull(client for client in CAST if client.id != opener)
        return Step(first.number, {client: first.outboxes[client] for client in others})

    def _push(self, step: Step) -> None:
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
        began = time.perf_counter()
        self.done.pulled += sum(self._threads.map(lambda client: self.clients[client.id].pull(), who))
        self.done.pull_seconds += time.perf_counter() - began
