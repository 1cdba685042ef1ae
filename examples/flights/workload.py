"""The demo's workload: nineteen clients (carriers and airports), and what each writes and when.

Carriers publish a flight the evening before (INSERT), then estimate its times (UPDATE). The departure airport writes
the actual times (UPDATE of the same cells). A cancelled flight is deleted; a few cancellations are undone. The *stamp*
of a write is `(hlc, client)`: its time by the client's clock (its hlc), and the client's id. Offline clients, clients
that sync rarely and wrong clocks make later stamps arrive first.

Time passes in steps of six hours of the server's clock. A client's clock skew is how far its clock is ahead of the
server's. Everything is chosen by random generators with fixed seeds, so that the same number of days gives the same
writes on every machine. `Demo` (`demo.py`) creates the workload, and `Driver` (`driver.py`) lets the clients push it.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple

from examples.flights.data import AIRPORTS, FIRST_DAY, Flights, Record, airlines, airports, planes

SEED = "lakesync flights"
"""The beginning of every random generator's seed."""
MINUTE = 60_000
"""Milliseconds of a minute."""
HOUR = 60 * MINUTE
STEP = 6 * HOUR
"""Simulated milliseconds between two steps."""
STEPS_PER_DAY = 4
"""Steps in a simulated day."""
START = int(datetime(FIRST_DAY.year, FIRST_DAY.month, FIRST_DAY.day, tzinfo=UTC).timestamp() * 1000)
"""Simulated start of day 0, in milliseconds since 1970. New York's local time is treated as UTC."""

MAX_SKEW = 4 * MINUTE
"""The greatest clock skew in milliseconds, ahead or behind."""
LEAD = 5 * MINUTE
"""A client pushes an event at least this many milliseconds after it, so that even the fastest clock is not ahead of the
server's."""


def push_time(step: int) -> int:
    """Return the server's time at a step, in milliseconds: 00:05 of day 0, then every six hours."""
    return START + (step * STEP if step else LEAD)


def day_of(step: int) -> str:
    """Return the server's UTC day at a step, as `YYYY-MM-DD`."""
    return (FIRST_DAY + timedelta(days=step // STEPS_PER_DAY)).isoformat()


def seeded_random(*subject: object) -> Random:
    """Return a random generator whose seed is a subject, so that it draws the same on every machine."""
    return Random(f"{SEED}/{'/'.join(map(str, subject))}")  # noqa: S311 not a secret


@dataclass(frozen=True)
class Client:
    """One client: a carrier's operations office or an airport's tower."""

    id: str
    """The client id: `carrier-CODE` or `airport-CODE`."""
    code: str
    """The carrier's or airport's code."""
    claims: dict[str, str]
    """The claims of its token, which the sync rules read."""
    skew: int
    """Milliseconds by which its clock is ahead of the server's."""
    every: int
    """1 if it syncs at every step, 2 if at every second one."""


def _client(kind: str, code: str, every: int) -> Client:
    """Create a client whose token has the claim `kind` with the code, and whose clock has a skew of its own."""
    skew = seeded_random("skew", code).randrange(-MAX_SKEW, MAX_SKEW)
    return Client(f"{kind}-{code}", code, {kind: code}, skew, every)


CARRIERS = {
    row["carrier"]: _client("carrier", row["carrier"], 2 if index % 2 else 1)
    for index, row in enumerate(sorted(airlines(), key=lambda row: str(row["carrier"])))
}
"""Code → the client of a carrier's operations office. Every other one syncs at every second step only."""
TOWERS = {code: _client("airport", code, 1) for code in AIRPORTS}
"""Code → the client of an airport's tower."""
CLIENTS = (*CARRIERS.values(), *TOWERS.values())
"""All clients."""

OFFLINE_CARRIERS = 4
"""Number of carriers that are offline for a day, on each day."""
LONGEST_OFFLINE = "B6"
"""A carrier that is offline for the first two days."""


class OfflineSchedule:
    """Which clients are offline at which steps."""

    def __init__(self, days: int) -> None:
        """Choose the times for this number of days."""
        self._offline: set[tuple[str, int]] = set()
        """Client id and step."""
        for day in range(days):
            choice = seeded_random("offline", day)
            ids = [CARRIERS[code].id for code in choice.sample(sorted(CARRIERS), OFFLINE_CARRIERS)]
            if day % 3 == 1:
                ids.append(TOWERS[choice.choice(AIRPORTS)].id)
            if day < 2:
                ids.append(CARRIERS[LONGEST_OFFLINE].id)
            for client in ids:
                self._offline |= {(client, day * STEPS_PER_DAY + 1 + step) for step in range(STEPS_PER_DAY)}
        if days == 1:
            self._offline |= {(CARRIERS[LONGEST_OFFLINE].id, STEPS_PER_DAY + 1 + step) for step in range(STEPS_PER_DAY)}

    def push_step(self, client: Client, happened: int) -> int:
        """Return the first step at which a client can push an event.

        Args:
            client: the client.
            happened: when the event happened, in true milliseconds since 1970, without the client's skew.
        """
        step = max(0, math.ceil((happened + LEAD - START) / STEP))
        while (client.id, step) in self._offline or step % client.every:
            step += 1
        return step


DAY = 24 * HOUR
LATE = 30
"""Minutes of delay from which a carrier corrects its own estimate."""
KINDS = 8
"""Above the highest number of a write about one flight; see `FlightWrite`."""


class Write(NamedTuple):
    """One change of one row by one client. The writes of one client are ordered by `hlc`."""

    hlc: int
    """The client's timestamp, by its own clock: wall milliseconds above 16 bits of a counter."""
    client: str
    op: str
    table: str
    row_id: str
    columns: dict[str, Any]
    """The written values by column, sorted by name; empty for a DELETE."""


class Step(NamedTuple):
    """Everything pushed at one step of the server's clock."""

    number: int
    """The step's number, from 0; see `push_time`."""
    outboxes: dict[str, list[Write]]
    """Client id → its writes, ordered by `hlc`."""

    @property
    def deltas(self) -> int:
        """Number of writes."""
        return sum(map(len, self.outboxes.values()))


@dataclass
class Workload:
    """The writes of the first `days` days of 2013, step by step."""

    days: int
    _pending: dict[int, dict[str, list[Write]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    """Step → client id → writes that no `Step` has yet."""

    def steps(self) -> Iterator[Step]:
        """Yield every step with pushes, in order; flights are read lazily."""
        flights = Flights(self.days)
        offline = OfflineSchedule(self.days)
        self._reference(flights, offline)
        for day, records in flights.by_day():
            for index, record in enumerate(records):
                for client, happened, number, op, columns in _flight(record, day):
                    # The counter numbers a write within eight days of flights: no two stamps of a client are equal.
                    counter = (day % 8) << 13 | index * KINDS + number
                    write = _write(client, happened, counter, (op, "flights", row_id(record)), columns)
                    self._pending[offline.push_step(client, happened)][client.id].append(write)
            # The flights of the next day are published from 18:00 on, for the step after the last of this day.
            yield from self._until((day + 1) * STEPS_PER_DAY - 1)
        while self._pending:
            yield from self._until(min(self._pending))

    def _until(self, last: int) -> Iterator[Step]:
        """Yield the pending steps up to the number `last`, and remove them."""
        for number in sorted(step for step in self._pending if step <= last):
            outboxes = self._pending.pop(number)
            yield Step(number, {client: sorted(outboxes[client]) for client in sorted(outboxes)})

    def _reference(self, flights: Flights, offline: OfflineSchedule) -> None:
        """Add the writes of reference rows: carriers write their names and planes, towers the served airports."""
        fleet, served = flights.carrier_of_plane(), flights.served_airports()
        rows: list[tuple[Client, str, str, Record]] = [
            (CARRIERS[row["carrier"]], "airlines", row["carrier"], row) for row in airlines()
        ]
        for index, row in enumerate(row for row in airports() if row["faa"] in served):
            position = {"lat": _number(row.pop("lat")), "lon": _number(row.pop("lon"))}
            tower = TOWERS[AIRPORTS[index % len(AIRPORTS)]]
            rows.append((tower, "airports", row["faa"], {**row, "position": position}))
        rows += [
            (CARRIERS[fleet[row["tailnum"]]], "planes", row["tailnum"], row)
            for row in planes()
            if row["tailnum"] in fleet
        ]
        for index, (client, table, key, columns) in enumerate(rows):
            write = _write(client, START - DAY, index, ("INSERT", table, key), columns)
            self._pending[offline.push_step(client, START - DAY)][client.id].append(write)


def row_id(flight: Record) -> str:
    """Return carrier, number, origin and date, which are unique in the data set."""
    return f"{flight['carrier']}-{flight['flight']}-{flight['origin']}-{flight['date']}"


def _write(client: Client, happened: int, counter: int, change: tuple[str, str, str], columns: Record) -> Write:
    """Return a write, stamped by the client's clock.

    Args:
        client: the client that writes.
        happened: when it writes, in true milliseconds since 1970.
        counter: the counter of its hlc, which makes the stamp unique.
        change: op, table and row id.
        columns: the written values.
    """
    ordered = {name: columns[name] for name in sorted(columns)}
    return Write((happened + client.skew) << 16 | counter, client.id, *change, ordered)


def _number(value: float) -> float | int:
    """Return a whole number as an int, because JSON's canonical form writes it without a fraction."""
    return int(value) if value == int(value) else value


FlightWrite = tuple[Client, int, int, str, Record]
"""A write about a flight: client, true time in milliseconds, the write's number, op, columns.

The number distinguishes the writes of a client about a flight: 0 the schedule, 1 a cancellation, 2 its revocation, 3
and 4 estimates, 5 what the tower writes."""


def _flight(flight: Record, day: int) -> Iterable[FlightWrite]:
    """Yield the writes about one flight of the day with this number, from 0."""
    dice = seeded_random("flight", row_id(flight))
    carrier, tower = CARRIERS[flight["carrier"]], TOWERS[flight["origin"]]
    midnight = START + day * DAY
    leaves = midnight + _minutes(flight["sched_dep_time"]) * MINUTE

    def between(low: float, high: float) -> int:
        """Draw a number of milliseconds between two numbers of minutes."""
        return int(dice.uniform(low * MINUTE, high * MINUTE))

    schedule = {
        **{name: flight[name] for name in ("carrier", "flight", "origin", "dest", "distance")},
        **{name: flight[name] for name in ("sched_dep_time", "sched_arr_time")},
        "day": flight["date"],
        "status": "scheduled",
    }
    yield carrier, midnight - between(4 * 60, 6 * 60), 0, "INSERT", schedule
    if flight["dep_time"] is None:
        yield from _cancelled(carrier, tower, leaves, dice)
        return
    if dice.random() < 0.01:
        gone = leaves - between(90, 180)
        yield carrier, gone, 1, "DELETE", {}
        again = {**schedule, "status": "reinstated", "tailnum": flight["tailnum"]}
        yield carrier, gone + between(10, 80), 2, dice.choice(("INSERT", "UPDATE")), again
    yield carrier, leaves - between(10, 120), 3, "UPDATE", _estimate(flight, dice.randrange(-20, 21))
    if flight["dep_delay"] > LATE:
        yield carrier, leaves + between(0, 20), 4, "UPDATE", _estimate(flight, dice.randrange(-5, 6))
    actual = {name: flight[name] for name in ("dep_time", "dep_delay", "arr_time", "arr_delay")}
    status = "diverted" if flight["arr_delay"] is None else "arrived"
    lands = leaves + (flight["dep_delay"] + (flight["air_time"] or 120) + 15) * MINUTE
    yield tower, lands + between(0, 10), 5, "UPDATE", {**actual, "status": status, "estimated": False}


def _cancelled(carrier: Client, tower: Client, leaves: int, dice: Random) -> Iterable[FlightWrite]:
    """Yield the DELETE of a cancelled flight, which `leaves` would be its departure, by true time in milliseconds.

    The tower may still announce a delay; with a fast enough clock it survives the deletion.
    """
    gone = leaves - int(dice.uniform(-30, 60) * MINUTE)
    if dice.random() < 0.3:
        announced = {"status": "delayed", "estimated": True, "dep_delay": dice.randrange(15, 240)}
        yield tower, gone - int(dice.uniform(0, 40) * MINUTE), 5, "UPDATE", announced
    yield carrier, gone, 1, "DELETE", {}


def _estimate(flight: Record, error: int) -> Record:
    """Return the columns of a carrier's estimate, which is wrong by `error` minutes."""
    delay = flight["dep_delay"] + error
    arrives = flight["sched_arr_time"]
    return {
        "tailnum": flight["tailnum"],
        "status": "boarding",
        "estimated": True,
        "dep_delay": delay,
        "dep_time": _clock(_minutes(flight["sched_dep_time"]) + delay),
        "arr_delay": delay,
        "arr_time": _clock(_minutes(arrives) + delay),
    }


def _minutes(clock: int) -> int:
    """Convert a time such as 1435 to minutes after midnight."""
    return clock // 100 * 60 + clock % 100


def _clock(minutes: int) -> int:
    """Convert minutes after midnight to a time such as 1435, wrapping around midnight."""
    return minutes // 60 % 24 * 100 + minutes % 60


def count_crossed_cells(steps: Iterable[Step]) -> tuple[int, int]:
    """Return `(cells, cells of which a client's greater stamp arrives before another client's smaller one)`."""
    seen: dict[tuple[str, str, str], tuple[int, str, int]] = {}
    crossing: set[tuple[str, str, str]] = set()
    for step in steps:
        for write in heapq.merge(*step.outboxes.values()):
            for column in write.columns:
                cell = (write.table, write.row_id, column)
                hlc, client, number = seen.get(cell, (-1, "", 0))
                if (hlc, client) > (write.hlc, write.client) and client != write.client and number < step.number:
                    crossing.add(cell)
                else:
                    seen[cell] = max((hlc, client, number), (write.hlc, write.client, step.number))
    return len(seen), len(crossing)
