"""What each client writes and when: identical for the same number of days on every machine.

Carriers publish a flight the evening before (INSERT), then estimate its times (UPDATE). The departure airport writes
the actual times (UPDATE of the same cells). A cancelled flight is deleted; a few cancellations are undone. Offline and
slow clients and wrong clocks make later stamps arrive first.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from examples.flights.cast import CARRIERS, HOUR, MINUTE, START, STEPS_PER_DAY, TOWERS, Attendance, Client, chance
from examples.flights.data import AIRPORTS, Flights, Record, airlines, airports, planes

DAY = 24 * HOUR
LATE = 30
"""Minutes of delay from which a carrier corrects its own estimate."""
KINDS = 8
"""Kinds of writes that one client makes about one flight."""


class Write(NamedTuple):
    """One change of one row by one client, ordered by `hlc` for each client."""

    hlc: int
    client: str
    op: str
    table: str
    row_id: str
    columns: dict[str, Any]
    """Sorted by name."""


class Step(NamedTuple):
    """Everything pushed at one step of the server's clock."""

    number: int
    outboxes: dict[str, list[Write]]
    """Client id → its writes, ordered by `hlc`."""

    @property
    def deltas(self) -> int:
        """Number of writes."""
        return sum(map(len, self.outboxes.values()))


@dataclass
class Story:
    """The writes of the first `days` days of 2013, step by step."""

    days: int
    _pending: dict[int, dict[str, list[Write]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def steps(self) -> Iterator[Step]:
        """Yield every step with pushes, in order; flights are read lazily."""
        flights = Flights(self.days)
        attendance = Attendance(self.days)
        self._reference(flights, attendance)
        for day, records in flights.by_day():
            for place, record in enumerate(records):
                for client, happened, kind, op, columns in _flight(record, day):
                    # The counter numbers a write within eight days of flights: no two stamps of a client are equal.
                    counter = (day % 8) << 13 | place * KINDS + kind
                    write = _write(client, happened, counter, (op, "flights", row_id(record)), columns)
                    self._pending[attendance.push_step(client, happened)][client.id].append(write)
            # The flights of the next day are published from 18:00 on, for the step after the last of this day.
            yield from self._until((day + 1) * STEPS_PER_DAY - 1)
        while self._pending:
            yield from self._until(min(self._pending))

    def _until(self, last: int) -> Iterator[Step]:
        for number in sorted(step for step in self._pending if step <= last):
            outboxes = self._pending.pop(number)
            yield Step(number, {client: sorted(outboxes[client]) for client in sorted(outboxes)})

    def _reference(self, flights: Flights, attendance: Attendance) -> None:
        """Carriers share their names and planes, towers the airports that are served."""
        fleet, served = flights.carrier_of_plane(), flights.served_airports()
        rows: list[tuple[Client, str, str, Record]] = [
            (CARRIERS[row["carrier"]], "airlines", row["carrier"], row) for row in airlines()
        ]
        for place, row in enumerate(row for row in airports() if row["faa"] in served):
            position = {"lat": _number(row.pop("lat")), "lon": _number(row.pop("lon"))}
            tower = TOWERS[AIRPORTS[place % len(AIRPORTS)]]
            rows.append((tower, "airports", row["faa"], {**row, "position": position}))
        rows += [
            (CARRIERS[fleet[row["tailnum"]]], "planes", row["tailnum"], row)
            for row in planes()
            if row["tailnum"] in fleet
        ]
        for place, (client, table, key, columns) in enumerate(rows):
            write = _write(client, START - DAY, place, ("INSERT", table, key), columns)
            self._pending[attendance.push_step(client, START - DAY)][client.id].append(write)


def row_id(flight: Record) -> str:
    """Return carrier, number, origin and date, which are unique in the data set."""
    return f"{flight['carrier']}-{flight['flight']}-{flight['origin']}-{flight['date']}"


def _write(client: Client, happened: int, counter: int, change: tuple[str, str, str], columns: Record) -> Write:
    ordered = {name: columns[name] for name in sorted(columns)}
    return Write((happened + client.skew) << 16 | counter, client.id, *change, ordered)


def _number(value: float) -> float | int:
    return int(value) if value == int(value) else value


Deed = tuple[Client, int, int, str, Record]
"""Client, true time in milliseconds, number of the write, op, columns."""


def _flight(flight: Record, day: int) -> Iterable[Deed]:
    """Yield the writes about one flight."""
    dice = chance("flight", row_id(flight))
    carrier, tower = CARRIERS[flight["carrier"]], TOWERS[flight["origin"]]
    midnight = START + day * DAY
    leaves = midnight + _minutes(flight["sched_dep_time"]) * MINUTE

    def between(low: float, high: float) -> int:
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


def _cancelled(carrier: Client, tower: Client, leaves: int, dice: Random) -> Iterable[Deed]:
    """The tower may still announce a delay; with a fast enough clock it survives the deletion."""
    gone = leaves - int(dice.uniform(-30, 60) * MINUTE)
    if dice.random() < 0.3:
        announced = {"status": "delayed", "estimated": True, "dep_delay": dice.randrange(15, 240)}
        yield tower, gone - int(dice.uniform(0, 40) * MINUTE), 5, "UPDATE", announced
    yield carrier, gone, 1, "DELETE", {}


def _estimate(flight: Record, error: int) -> Record:
    """Return a carrier's estimate, wrong by some minutes."""
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


def crossed(steps: Iterable[Step]) -> tuple[int, int]:
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
