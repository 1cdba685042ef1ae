"""The participants: nineteen clients, their clock skew, and when they are offline.

Time passes in steps of six hours. A client's clock skew is how far its clock is ahead of the server's. Everything is
chosen by random generators with fixed seeds, so that each run of the demo makes the same writes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

from examples.flights.data import AIRPORTS, FIRST_DAY, airlines

SEED = "lakesync flights"
MINUTE = 60_000
"""Milliseconds."""
HOUR = 60 * MINUTE
STEP = 6 * HOUR
"""Simulated milliseconds between two steps."""
STEPS_PER_DAY = 4
START = int(datetime(FIRST_DAY.year, FIRST_DAY.month, FIRST_DAY.day, tzinfo=UTC).timestamp() * 1000)
"""Simulated start of day 0, in milliseconds since 1970. New York's local time is treated as UTC."""

MAX_SKEW = 4 * MINUTE
"""Maximum clock skew, ahead or behind."""
LEAD = 5 * MINUTE
"""A client pushes events at least this old, so that even the fastest clock is not ahead of the server's."""


def push_time(step: int) -> int:
    """Return the server's time at a step, in milliseconds: 00:05 of day 0, then every six hours."""
    return START + (step * STEP if step else LEAD)


def day_of(step: int) -> str:
    """Return the server's UTC day at a step, as `YYYY-MM-DD`."""
    return (FIRST_DAY + timedelta(days=step // STEPS_PER_DAY)).isoformat()


def chance(*subject: object) -> Random:
    """Return a random generator seeded by a subject, equal on every machine."""
    return Random(f"{SEED}/{'/'.join(map(str, subject))}")  # noqa: S311 - a story, not a secret


@dataclass(frozen=True)
class Client:
    """One client: a carrier's operations office or an airport's tower."""

    id: str
    code: str
    """The carrier's or airport's code."""
    claims: dict[str, str]
    skew: int
    """Milliseconds by which its clock is ahead."""
    every: int
    """It syncs at every step, or at every second one."""


def _client(kind: str, code: str, every: int) -> Client:
    """Create a client whose token has the claim `kind` with the code, and whose clock has a skew of its own."""
    skew = chance("skew", code).randrange(-MAX_SKEW, MAX_SKEW)
    return Client(f"{kind}-{code}", code, {kind: code}, skew, every)


CARRIERS = {
    row["carrier"]: _client("carrier", row["carrier"], 2 if place % 2 else 1)
    for place, row in enumerate(sorted(airlines(), key=lambda row: str(row["carrier"])))
}
"""Code → the client of a carrier's operations office. Every other one syncs at every second step only."""
TOWERS = {code: _client("airport", code, 1) for code in AIRPORTS}
"""Code → the client of an airport's tower."""
CAST = (*CARRIERS.values(), *TOWERS.values())
"""All clients."""

OFFLINE_CARRIERS = 4
"""Number of carriers that are offline for a day, on each day."""
LONGEST_OFFLINE = "B6"
"""A carrier that is offline for the first two days."""


class Attendance:
    """Which clients are offline at which steps."""

    def __init__(self, days: int) -> None:
        self._away: set[tuple[str, int]] = set()
        for day in range(days):
            choice = chance("offline", day)
            away = [CARRIERS[code].id for code in choice.sample(sorted(CARRIERS), OFFLINE_CARRIERS)]
            if day % 3 == 1:
                away.append(TOWERS[choice.choice(AIRPORTS)].id)
            if day < 2:
                away.append(CARRIERS[LONGEST_OFFLINE].id)
            for client in away:
                self._away |= {(client, day * STEPS_PER_DAY + 1 + step) for step in range(STEPS_PER_DAY)}
        if days == 1:
            self._away |= {(CARRIERS[LONGEST_OFFLINE].id, STEPS_PER_DAY + 1 + step) for step in range(STEPS_PER_DAY)}

    def push_step(self, client: Client, happened: int) -> int:
        """Return the first step at which a client can push an event of a true time in milliseconds."""
        step = max(0, math.ceil((happened + LEAD - START) / STEP))
        while (client.id, step) in self._away or step % client.every:
            step += 1
        return step
