"""The load of most benchmarks: clients that push or pull over HTTP, and the figures of their requests.

`run_in_process` runs a load in another process than the benchmark, so that their processor times are measured
separately. A delta's *hlc* is its timestamp by the client's clock: milliseconds since 1970, above 16 bits of a counter.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import islice
from math import ceil
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec
import uvloop

from benchmarks.connections import Connection
from benchmarks.server import GATEWAY, token
from benchmarks.usage import Usage

P = ParamSpec("P")
T = TypeVar("T")

SHAPES = ("same", "varying", "insert", "crossing", "mixture")
"""How a delta changes an existing row.

`same`: an UPDATE of the same two columns. `varying`: an UPDATE of one to three of four columns. `insert`: an INSERT of
five columns. `crossing`: like `same`, but the clients' clocks are behind each other, so that newer deltas arrive before
older ones. `mixture`: one of the first three at random, with such clocks.
"""

_LATEST_DELTAS = 25_000
"""How many deltas of all clients the slowest clock is behind, in `crossing` and `mixture`: a second at 25,000 deltas/s.
It is not a time, so that as many deltas cross in a slow gateway as in a fast one. Of 10,000 rows, one delta in five is
older than its row."""
_VARIED = ("title", "done", "points", "note")
"""The columns of an UPDATE of the shape `varying`."""
_PRIME = 1_000_003
"""Step width that visits every row once in a scattered order."""
_STEPS = (_PRIME, 7_368_787, 2_750_159, 5_800_079)
"""Primes, the step widths of successive rounds over existing rows, so that the clients which write to a row change."""


class Sample(NamedTuple):
    """One request with its response."""

    ended: float
    """When the response arrived, in seconds since the start of the load."""
    seconds: float
    """Seconds from the request to the response."""
    deltas: int
    """Number of deltas that were pushed or pulled."""


class PushLoad(msgspec.Struct, frozen=True):
    """Clients that push without pauses, each after the response to its previous push."""

    clients: int = 16
    rows: int = 10_000
    """Number of distinct rows. Each is inserted first and then updated, unless `shape` is set."""
    batch: int = 100
    """Deltas in one push."""
    deltas: int = 1_000_000
    """Number of deltas of all clients together."""
    seconds: float = 3600
    """The load ends after `deltas` or after this time, whichever is first."""
    teams: int = 100
    """Number of distinct values of the column `team`."""
    columns: int = 0
    """Number of additional columns of an INSERT."""
    own_team: bool = False
    """Whether each client has a team of its own, whose rows only it writes, and a token with the claim `team`."""
    name: str = "pusher"
    """Prefix of the client ids."""
    shape: str = ""
    """One of `SHAPES`, if all rows exist already; then every delta has this shape."""


class Clock:
    """A client's hybrid logical clock, which may be behind the clocks of the others by a number of pushes."""

    def __init__(self, started_ms: list[int], late: int) -> None:
        """Create the clock.

        Args:
            started_ms: wall times at which pushes of all clients started, in milliseconds since 1970; the clients share
                this list.
            late: number of pushes of all clients by which the clock is behind.
        """
        self._started_ms = started_ms
        self._late = late

    def next_hlc(self, count: int) -> int:
        """Return the first of `count` timestamps for the push that starts now."""
        push = len(self._started_ms)
        self._started_ms.append(time.time_ns() // 1_000_000)
        shown = push - self._late  # the clock shows the time at which this push started
        time_ms = self._started_ms[shown] if shown >= 0 else self._started_ms[0] + shown  # 1 ms for each missing push
        return (time_ms << 16) + push % (65_536 // count) * count


class PullLoad(msgspec.Struct, frozen=True):
    """New clients that pull all pages at the same time."""

    name: str
    """Prefix of the client ids."""
    clients: int = 1
    claims: dict[str, Any] = {}
    """Further claims of the clients' tokens."""
    since: int = 0
    """The cursor of the first pull."""
    page: int = 1_000
    """Deltas in one page."""


def run_in_process(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a module-level function in a new process and return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, args, kwargs)


def run_on_uvloop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def push(port: int, load: PushLoad, *other_ports: int) -> list[Sample]:
    """Run a `PushLoad`, and return a sample for each push, ordered by `ended`.

    Args:
        port: the gateway's port on this machine.
        load: what to push.
        other_ports: ports of further processes of the gateway; clients are divided among all of them.
    """
    return run_on_uvloop(_push_all((port, *other_ports), load))


def pull(port: int, load: PullLoad) -> list[Sample]:
    """Run a `PullLoad`, and return a sample for each page, ordered by `ended`.

    Args:
        port: the gateway's port on this machine.
        load: who pulls.
    """
    return run_on_uvloop(_pull_all(port, load))


async def _push_all(ports: Sequence[int], load: PushLoad) -> list[Sample]:
    """Run a `PushLoad` on the event loop; see `push`."""
    samples: list[Sample] = []
    numbers, begun = _numbers(load), time.perf_counter()
    started_ms: list[int] = []

    async def client(number: int) -> None:
        name = f"{load.name}-{number}"
        clock = _clock(load, number, started_ms)
        claims, bodies = {}, _bodies(name, load, numbers, begun, clock)
        if load.own_team:  # the client writes every `load.clients`-th row, beginning with the one of its own number
            claims = {"team": f"team-{number}"}
            part = msgspec.structs.replace(load, rows=load.rows // load.clients, teams=load.clients)
            first = part.rows if load.shape else 0
            own = iter(range(first, first + load.deltas // load.clients))
            bodies = _bodies(name, part, own, begun, clock, number, load.clients)
        connection, bearer = await Connection.open(ports[number % len(ports)]), token(name, **claims)
        for body, deltas in bodies:
            start = time.perf_counter()
            await connection.call("POST", f"/sync/{GATEWAY}/push", bearer, body)
            end = time.perf_counter()
            samples.append(Sample(end - begun, end - start, deltas))
        connection.close()

    await asyncio.gather(*(client(number) for number in range(load.clients)))
    return samples


def push_bodies(load: PushLoad) -> list[tuple[str, bytes]]:
    """Return the pushes of a `PushLoad` without own teams, each as `(client id, JSON body)`; the clients take turns."""
    numbers, begun, started_ms = _numbers(load), time.perf_counter(), list[int]()
    names = [f"{load.name}-{number}" for number in range(load.clients)]
    clients = [
        _bodies(name, load, numbers, begun, _clock(load, number, started_ms)) for number, name in enumerate(names)
    ]
    pushes: list[tuple[str, bytes]] = []
    while turn := [(name, body) for name, (body, _) in zip(names, map(_next_or_empty, clients), strict=True) if body]:
        pushes += turn
    return pushes


def _next_or_empty(bodies: Iterator[tuple[bytes, int]]) -> tuple[bytes, int]:
    """Return a client's next push; an empty one at the end."""
    return next(bodies, (b"", 0))


def _numbers(load: PushLoad) -> Iterator[int]:
    """Return the numbers of the deltas of a load."""
    return iter(range(load.rows, load.rows + load.deltas) if load.shape else range(load.deltas))


def _clock(load: PushLoad, number: int, started_ms: list[int]) -> Clock:
    """Return the clock of a client of a load.

    Args:
        load: the load.
        number: the client's number.
        started_ms: the list that all clients of the load share; see `Clock`.
    """
    latest = _LATEST_DELTAS // load.batch if load.shape in ("crossing", "mixture") else 0
    return Clock(started_ms, latest * number // load.clients)


def _bodies(
    client: str,
    load: PushLoad,
    numbers: Iterator[int],
    begun: float,
    clock: Clock,
    first: int = 0,
    step: int = 1,
) -> Iterator[tuple[bytes, int]]:
    """Yield the pushes of one client, each as `(JSON body, number of deltas)`, until `numbers` ends.

    Args:
        client: the client's id.
        load: what to push.
        numbers: numbers of the deltas. Clients that share an iterator share the work.
        begun: start of the load, as `time.perf_counter` returns it.
        clock: the client's clock.
        first: number of the first row that the client writes.
        step: distance to the client's next row.
    """
    chance = random.Random(client)  # noqa: S311 a benchmark's values
    shape = load.shape
    steps = _STEPS if shape else (_PRIME,)
    while time.perf_counter() - begun < load.seconds:
        deltas = []
        hlc = clock.next_hlc(load.batch)
        ids = chance.randbytes(32 * load.batch).hex()
        for index, number in enumerate(islice(numbers, load.batch)):
            round_step = steps[number // load.rows % len(steps)]  # each round visits all rows, in another order
            row = number * round_step % load.rows * step + first
            identity = ids[index * 64 : index * 64 + 64]
            drawn = SHAPES[chance.randrange(3)] if shape == "mixture" else shape  # same, varying or insert
            if drawn == "varying":
                deltas.append(_varying(client, row, hlc + index, identity, chance))
            elif drawn == "insert":
                deltas.append(_insert(client, row, hlc + index, identity, load, ',{"column":"note","value":null}'))
            elif number < load.rows:
                deltas.append(_insert(client, row, hlc + index, identity, load))
            else:
                deltas.append(_update(client, row, hlc + index, identity, number))
        if not deltas:
            return
        yield f'{{"clientId":"{client}","deltas":[{",".join(deltas)}],"lastSeenHlc":"0"}}'.encode(), len(deltas)


def _insert(client: str, row: int, hlc: int, identity: str, load: PushLoad, more: str = "") -> str:
    """Return the JSON of an INSERT of a whole row.

    Args:
        client: the client's id.
        row: the row's number.
        hlc: the delta's timestamp.
        identity: the delta's id.
        load: says which values the row has, and how many further columns.
        more: JSON of further columns, with a leading comma.
    """
    more += "".join(f',{{"column":"c{n}","value":{row + n}}}' for n in range(load.columns))
    return (
        f'{{"op":"INSERT","table":"tasks","rowId":"task-{row:08d}","clientId":"{client}","columns":['
        f'{{"column":"title","value":"Task number {row}"}},{{"column":"team","value":"team-{row % load.teams}"}},'
        f'{{"column":"done","value":false}},{{"column":"points","value":{row % 13}}}{more}],'
        f'"hlc":"{hlc}","deltaId":"{identity}"}}'
    )


def _update(client: str, row: int, hlc: int, identity: str, number: int) -> str:
    """Return the JSON of an UPDATE of the columns `done` and `points`; `number` decides the value of `points`."""
    return (
        f'{{"op":"UPDATE","table":"tasks","rowId":"task-{row:08d}","clientId":"{client}","columns":['
        f'{{"column":"done","value":true}},{{"column":"points","value":{number % 1009}}}],'
        f'"hlc":"{hlc}","deltaId":"{identity}"}}'
    )


def _varying(client: str, row: int, hlc: int, identity: str, chance: random.Random) -> str:
    """Return the JSON of an UPDATE of one to three columns, which are drawn at random."""
    names = chance.sample(_VARIED, chance.randint(1, 3))
    cells = ",".join([f'{{"column":"{name}","value":"{chance.randrange(1000)}"}}' for name in names])
    return (
        f'{{"op":"UPDATE","table":"tasks","rowId":"task-{row:08d}","clientId":"{client}","columns":[{cells}],'
        f'"hlc":"{hlc}","deltaId":"{identity}"}}'
    )


async def _pull_all(port: int, load: PullLoad) -> list[Sample]:
    """Run a `PullLoad` on the event loop; see `pull`."""
    samples: list[Sample] = []
    begun = time.perf_counter()

    async def client(name: str) -> None:
        connection, bearer = await Connection.open(port), token(name, **load.claims)
        cursor, more = load.since, True
        while more:
            path = f"/sync/{GATEWAY}/pull?since={cursor}&clientId={name}&limit={load.page}"
            start = time.perf_counter()
            body = await connection.call("GET", path, bearer)
            end = time.perf_counter()
            cursor = int(body.rpartition(b'"serverHlc":"')[2].partition(b'"')[0])
            more = b'"hasMore":true' in body[-100:]
            samples.append(Sample(end - begun, end - start, body.count(b'"deltaId":')))
        connection.close()

    await asyncio.gather(*(client(f"{load.name}-{number}") for number in range(load.clients)))
    return samples


async def _admin(port: int, path: str, body: bytes) -> None:
    """Post a body to a path as an admin."""
    connection = await Connection.open(port)
    await connection.call("POST", path, token("admin"), body)
    connection.close()


def admin(port: int, route: str, value: Any) -> None:
    """Post a value to an admin route of the gateway.

    Args:
        port: the gateway's port on this machine.
        route: `sync-rules`, `schema` or `flush`.
        value: the body, which is encoded as JSON.

    Raises:
        RuntimeError: the gateway rejects the request.
    """
    run_on_uvloop(_admin(port, f"/admin/{route}/{GATEWAY}", msgspec.json.encode(value)))


RULES: dict[str, Any] = {
    "version": 1,
    "buckets": [{"name": "team", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
}
"""The sync rules of benchmarks: a client sees the rows of its team."""


def figures(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the figures of a load: deltas, deltas per second, and percentiles of the requests' milliseconds.

    The rates of the first and the last tenth show whether the server becomes slower during the load.
    """
    deltas = sum(sample.deltas for sample in samples)
    seconds = max(sample.ended for sample in samples)
    latencies = sorted(sample.seconds * 1000 for sample in samples)
    tenth = max(1, len(samples) // 10)
    return {
        "deltas": deltas,
        "requests": len(samples),
        "seconds": round(seconds, 2),
        "rate": round(deltas / seconds),
        "p50_ms": percentile(latencies, 50),
        "p95_ms": percentile(latencies, 95),
        "p99_ms": percentile(latencies, 99),
        "first_tenth_rate": _rate(samples[:tenth], 0.0),
        "last_tenth_rate": _rate(samples[-tenth:], samples[-tenth - 1].ended if len(samples) > tenth else 0.0),
    }


def usage_figures(used: Usage, deltas: int) -> dict[str, Any]:
    """Return the server's processor time per delta and its memory.

    Args:
        used: the server's usage during the load.
        deltas: number of deltas of the load.
    """
    own = {name: value for name, value in used._asdict().items() if name != "seconds"}
    return {"cpu_us_per_delta": round(used.cpu_seconds / deltas * 1e6, 1), **own}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile.

    Args:
        ordered: the values, ascending.
        percent: 0 to 100.
    """
    return round(ordered[max(0, ceil(len(ordered) * percent / 100) - 1)], 2)


def _rate(samples: Sequence[Sample], begun: float) -> int:
    """Return the deltas per second of consecutive samples, the first of which began at `begun`."""
    return round(sum(sample.deltas for sample in samples) / max(1e-9, samples[-1].ended - begun))
