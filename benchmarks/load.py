"""The load generator, in a process of its own: clients that push, a client that pulls, and their samples' figures."""

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

`same`: an UPDATE of the same two columns. `varying`: of one to three of four columns. `insert`: an INSERT of five
columns. `crossing`: like `same`, with clients' clocks up to a second behind each other. `mixture`: one of the first
three at random, with such clocks.
"""

_LATEST_MS = 1000
"""How far the slowest clock is behind."""
_VARIED = ("title", "done", "points", "note")
_PRIME = 1_000_003
"""Step width that visits every row once in a scattered order."""


class Sample(NamedTuple):
    """One answered request."""

    ended: float
    """Seconds since the start of the load."""
    seconds: float
    deltas: int


class PushLoad(msgspec.Struct, frozen=True):
    """Clients that push as fast as they get answers."""

    clients: int = 16
    rows: int = 10_000
    """Distinct rows; each is inserted first and then updated."""
    batch: int = 100
    deltas: int = 1_000_000
    seconds: float = 3600
    """The load ends at `deltas` or after this time, whichever is first."""
    teams: int = 100
    """Distinct values of the column `team`."""
    columns: int = 0
    """Additional columns of an INSERT."""
    own_team: bool = False
    """Each client has a team of its own, whose rows only it writes, and a token for the team."""
    name: str = "pusher"
    shape: str = ""
    """One of `SHAPES`: all rows exist, and every delta has this shape.

    Empty: each row is inserted first and then updated.
    """


class PullLoad(msgspec.Struct, frozen=True):
    """New clients that pull all pages."""

    name: str
    clients: int = 1
    claims: dict[str, Any] = {}
    since: int = 0
    page: int = 1_000


def apart(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a module's function in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, args, kwargs)


def looped(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def push(port: int, load: PushLoad) -> list[Sample]:
    """Push, and return the samples ordered by their end."""
    return looped(_push_all(port, load))


def pull(port: int, load: PullLoad) -> list[Sample]:
    """Pull, and return the samples ordered by their end."""
    return looped(_pull_all(port, load))


async def _push_all(port: int, load: PushLoad) -> list[Sample]:
    samples: list[Sample] = []
    places = iter(range(load.rows, load.rows + load.deltas) if load.shape else range(load.deltas))
    begun = time.perf_counter()

    async def client(number: int) -> None:
        name = f"{load.name}-{number}"
        late = _LATEST_MS * number // load.clients if load.shape in ("crossing", "mixture") else 0
        claims, bodies = {}, _bodies(name, load, places, begun, late_ms=late)
        if load.own_team:
            claims = {"team": f"team-{number}"}
            part = msgspec.structs.replace(load, rows=load.rows // load.clients, teams=load.clients)
            first = part.rows if load.shape else 0
            own = iter(range(first, first + load.deltas // load.clients))
            bodies = _bodies(name, part, own, begun, number, load.clients, late_ms=late)
        connection, proof = await Connection.open(port), token(name, **claims)
        for body, deltas in bodies:
            start = time.perf_counter()
            await connection.asked("POST", f"/sync/{GATEWAY}/push", proof, body)
            end = time.perf_counter()
            samples.append(Sample(end - begun, end - start, deltas))
        connection.close()

    await asyncio.gather(*(client(number) for number in range(load.clients)))
    return samples


def _bodies(
    client: str,
    load: PushLoad,
    places: Iterator[int],
    begun: float,
    first: int = 0,
    step: int = 1,
    *,
    late_ms: int = 0,
) -> Iterator[tuple[bytes, int]]:
    """Push after push of one client with its number of deltas, until `places` are gone.

    Args:
        client: its id.
        load: what to push.
        places: the work, of this client or shared by all.
        begun: when the load did.
        first: number of the first row.
        step: to the next one.
        late_ms: so much the client's clock is behind.
    """
    chance = random.Random(client)  # noqa: S311 a benchmark's values
    shape = load.shape
    while time.perf_counter() - begun < load.seconds:
        deltas = []
        hlc = time.time_ns() // 1_000_000 - late_ms << 16
        ids = chance.randbytes(32 * load.batch).hex()
        for number, place in enumerate(islice(places, load.batch)):
            row = place * _PRIME % load.rows * step + first
            identity = ids[number * 64 : number * 64 + 64]
            drawn = SHAPES[chance.randrange(3)] if shape == "mixture" else shape
            if drawn == "varying":
                deltas.append(_varying(client, row, hlc + number, identity, chance))
            elif drawn == "insert":
                deltas.append(_insert(client, row, hlc + number, identity, load, ',{"column":"note","value":null}'))
            elif place < load.rows:
                deltas.append(_insert(client, row, hlc + number, identity, load))
            else:
                deltas.append(_update(client, row, hlc + number, identity, place))
        if not deltas:
            return
        yield f'{{"clientId":"{client}","deltas":[{",".join(deltas)}],"lastSeenHlc":"0"}}'.encode(), len(deltas)


def _insert(client: str, row: int, hlc: int, identity: str, load: PushLoad, more: str = "") -> str:
    more += "".join(f',{{"column":"c{n}","value":{row + n}}}' for n in range(load.columns))
    return (
        f'{{"op":"INSERT","table":"tasks","rowId":"task-{row:08d}","clientId":"{client}","columns":['
        f'{{"column":"title","value":"Task number {row}"}},{{"column":"team","value":"team-{row % load.teams}"}},'
        f'{{"column":"done","value":false}},{{"column":"points","value":{row % 13}}}{more}],'
        f'"hlc":"{hlc}","deltaId":"{identity}"}}'
    )


def _update(client: str, row: int, hlc: int, identity: str, place: int) -> str:
    return (
        f'{{"op":"UPDATE","table":"tasks","rowId":"task-{row:08d}","clientId":"{client}","columns":['
        f'{{"column":"done","value":true}},{{"column":"points","value":{place % 1009}}}],'
        f'"hlc":"{hlc}","deltaId":"{identity}"}}'
    )


def _varying(client: str, row: int, hlc: int, identity: str, chance: random.Random) -> str:
    names = chance.sample(_VARIED, chance.randint(1, 3))
    cells = ",".join([f'{{"column":"{name}","value":"{chance.randrange(1000)}"}}' for name in names])
    return (
        f'{{"op":"UPDATE","table":"tasks","rowId":"task-{row:08d}","clientId":"{client}","columns":[{cells}],'
        f'"hlc":"{hlc}","deltaId":"{identity}"}}'
    )


async def _pull_all(port: int, load: PullLoad) -> list[Sample]:
    samples: list[Sample] = []
    begun = time.perf_counter()

    async def client(name: str) -> None:
        connection, proof = await Connection.open(port), token(name, **load.claims)
        cursor, more = load.since, True
        while more:
            path = f"/sync/{GATEWAY}/pull?since={cursor}&clientId={name}&limit={load.page}"
            start = time.perf_counter()
            body = await connection.asked("GET", path, proof)
            end = time.perf_counter()
            cursor = int(body.rpartition(b'"serverHlc":"')[2].partition(b'"')[0])
            more = b'"hasMore":true' in body[-100:]
            samples.append(Sample(end - begun, end - start, body.count(b'"deltaId":')))
        connection.close()

    await asyncio.gather(*(client(f"{load.name}-{number}") for number in range(load.clients)))
    return samples


async def _admin(port: int, path: str, body: bytes) -> None:
    connection = await Connection.open(port)
    await connection.asked("POST", path, token("admin"), body)
    connection.close()


def admin(port: int, route: str, value: Any) -> None:
    """Post a value to an admin route of the gateway: `sync-rules`, `schema`, `flush`."""
    looped(_admin(port, f"/admin/{route}/{GATEWAY}", msgspec.json.encode(value)))


RULES: dict[str, Any] = {
    "version": 1,
    "buckets": [{"name": "team", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
}
"""The sync rules of benchmarks: a client sees the rows of its team."""


def figures(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return work done, rate per second, latencies in milliseconds, and the rates of the first and last tenth."""
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
    """Return the server's resource usage."""
    own = {name: value for name, value in used._asdict().items() if name != "seconds"}
    return {"cpu_us_per_delta": round(used.cpu_seconds / deltas * 1e6, 1), **own}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile."""
    return round(ordered[max(0, ceil(len(ordered) * percent / 100) - 1)], 2)


def _rate(samples: Sequence[Sample], begun: float) -> int:
    return round(sum(sample.deltas for sample in samples) / max(1e-9, samples[-1].ended - begun))
