"""A storm: gateways under load are killed repeatedly, then compared with their clients' records.

With a separate Postgres server, that server crashes too, and connections are lost at COMMIT.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.crash_storm.gateways import GatewayProcess
from tests.crash_storm.lake import Lake
from tests.crash_storm.pushers import Pusher
from tests.crash_storm.verdict import Verdict
from tests.postgres_proxy import Proxy
from tests.postgres_server import PostgresServer

CLIENTS = 4
_PATIENCE = 2.0
"""Seconds to wait for a named crash point, before the process is killed anyway."""

POINTS = {
    "sqlite": (
        "staging.before_commit",
        "staging.after_commit",
        "staging.before_write_behind",
        "staging.after_write_behind",
        "staging.before_trim",
    ),
    "postgres": ("staging.before_commit", "staging.after_commit", "staging.before_trim"),
}


class Report(msgspec.Struct, frozen=True):
    """The result of a storm."""

    staging: str
    seed: int
    kills: int
    at_named_points: int
    server_crashes: int
    """Crashes of Postgres."""
    lost_commits: int
    """Connections that were cut before or after the server executed a COMMIT."""
    acknowledged: int
    """Deltas."""
    repeats: int
    """Pushes sent again."""
    flushed: int
    """Deltas that were flushed during the storm."""
    losses: int
    doubles: int
    problems: list[str]
    seconds: float


class Storm:
    """One storm over one store."""

    def __init__(self, staging: str, folder: Path, seed: int, server: PostgresServer | None = None) -> None:
        """Args: server: a server that the storm may crash; `staging` is on it."""
        self._staging = staging
        self._server = server
        self._kind = "sqlite" if staging.startswith("sqlite") else "postgres"
        self._seed = seed
        self._random = random.Random(seed)
        count = 1 if self._kind == "sqlite" else 2
        self._proxies = [Proxy(staging) for _ in range(count)] if server is not None else []
        urls = [proxy.url for proxy in self._proxies] or [staging] * count
        self._gateways = [GatewayProcess(f"gateway-{number}", url, folder) for number, url in enumerate(urls)]
        self._crashes = 0
        self._progress = threading.Condition()
        self._acknowledged = 0
        self._named = 0

    def run(self, kills: int, on_kill: Callable[[], object] = lambda: None) -> Report:
        """Kill `kills` times; return what was found at the end."""
        started = time.monotonic()
        pushers = [Pusher(f"client-{n}", self._where(n), self._seed, self._count) for n in range(CLIENTS)]
        lake = Lake(self._staging, self._where(0))
        threads: list[Pusher | Lake] = [*pushers, lake]
        for gateway in self._gateways:
            gateway.start(self._plan())
        for thread in threads:
            thread.start()
        for _ in range(kills):
            gateway = self._random.choice(self._gateways)
            self._strike(gateway)
            if self._server is None:
                gateway.start(self._plan())
            else:
                self._start_into_trouble(gateway, self._server)
            on_kill()
        for thread in threads:
            thread.end()
        for gateway in self._gateways:
            gateway.kill()
            gateway.start()
        for thread in threads:
            thread.join()
        lake.finish()
        for gateway in self._gateways:
            gateway.stop()
        flushed = lake.deltas()
        verdict = Verdict([pusher.journal for pusher in pushers], flushed)
        verdict.of_store(self._staging)
        return Report(
            staging=self._kind,
            seed=self._seed,
            kills=kills,
            at_named_points=self._named,
            server_crashes=self._crashes,
            lost_commits=sum(proxy.cuts for proxy in self._proxies),
            acknowledged=verdict.acknowledged,
            repeats=sum(pusher.journal.repeats for pusher in pushers),
            flushed=len(flushed),
            losses=verdict.losses,
            doubles=verdict.doubles,
            problems=verdict.problems + ([lake.failure] if lake.failure else []),
            seconds=round(time.monotonic() - started, 1),
        )

    def _plan(self) -> str:
        """Choose how a gateway's process ends: at a named crash point, or, if the name is empty, at any time."""
        if self._random.random() < 0.5:
            return ""
        point = self._random.choice(POINTS[self._kind])
        return f"{point}:{self._random.randint(1, 30) if point.endswith('commit') else 1}"

    def _strike(self, gateway: GatewayProcess) -> None:
        """End a gateway's process as planned."""
        if gateway.crash_at:
            self._named += gateway.dies(_PATIENCE)
        else:
            self._wait_for(self._random.randint(1, 40))
            time.sleep(self._random.random() * 0.05)  # so that the kill can happen at any time
        gateway.kill()

    def _start_into_trouble(self, gateway: GatewayProcess, server: PostgresServer) -> None:
        """After a start, crash the server or lose the gateway's connection at its next COMMIT, or do neither."""
        match self._random.choices(["crash", "before", "after", "none"], weights=[1, 2, 2, 3])[0]:
            case "before" | "after" as when:
                gateway.start()  # only one of the two may be affected, because the other process may be about to end
                proxy = self._proxies[self._gateways.index(gateway)]
                proxy.cut = when
                self._wait_for(20)
                proxy.cut = None
            case "crash":
                gateway.start(self._plan())
                server.restart("immediate")
                self._crashes += 1
            case _:
                gateway.start(self._plan())

    def _where(self, number: int) -> Callable[[], str]:
        gateways = self._gateways
        return lambda: gateways[(number + self._acknowledged // 50) % len(gateways)].url

    def _count(self) -> None:
        with self._progress:
            self._acknowledged += 1
            self._progress.notify_all()

    def _wait_for(self, more: int) -> None:
        with self._progress:
            wanted = self._acknowledged + more
            if not self._progress.wait_for(lambda: self._acknowledged >= wanted, 60):
                raise RuntimeError("no push was acknowledged within a minute")
