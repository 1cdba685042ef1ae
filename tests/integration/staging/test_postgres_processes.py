"""Several gateway processes on one Postgres: one order of arrivals, lost connections, server restarts."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.crash_storm.gateways import GatewayProcess
from tests.crash_storm.lake import Lake
from tests.crash_storm.pushers import Pusher
from tests.crash_storm.verdict import Verdict
from tests.integration.gateway_support import delta, until
from tests.postgres_proxy import Proxy
from tests.postgres_server import postgres_server


@pytest.mark.slow
def test_arrivals_are_in_one_order_and_pages_continue_on_either_process(own_database, spawn):
    servers = [spawn(LAKESYNC_STAGING_URL=own_database, LAKESYNC_DATA_DIR="") for _ in range(2)]
    pushing = threading.Event()
    pushing.set()

    def push(number: int) -> set[str]:
        client = servers[number % 2].client(f"writer-{number}")
        rows = [f"w{number}-{n}" for n in range(60)]
        for start in range(0, len(rows), 3):
            made = [delta(row, {"n": number}, client=client.client_id) for row in rows[start : start + 3]]
            assert client.push(*made).status_code == 200
        return set(rows)

    def follow(seed: int) -> list[str]:
        """A reader that alternates between the processes, and never goes back."""
        chance = random.Random(seed)
        readers = [server.client(f"reader-{seed}") for server in servers]
        row_ids, cursor, last, arrival = [], "0", False, 0
        while not last:
            last = not pushing.is_set()
            more = True
            while more:
                page = chance.choice(readers).pull(cursor, limit=chance.choice((1, 7, 50))).json()
                assert int(page["serverHlc"]) >= arrival
                cursor, arrival, more = page["serverHlc"], int(page["serverHlc"]), page["hasMore"]
                assert [each["op"] for each in page["deltas"]] == ["INSERT"] * len(page["deltas"])
                row_ids += [each["rowId"] for each in page["deltas"]]
        return row_ids

    with ThreadPoolExecutor(6) as threads:
        readers = [threads.submit(follow, seed) for seed in (1, 2)]
        writers = [threads.submit(push, number) for number in range(4)]
        written = set().union(*(writer.result() for writer in writers))
        pushing.clear()
        for reader in readers:
            row_ids = reader.result()
            assert len(row_ids) == len(set(row_ids)) == len(written)
            assert set(row_ids) == written
    with psycopg.connect(own_database) as connection:
        log = connection.execute("SELECT seq, arrival FROM lakesync.log ORDER BY seq").fetchall()
    assert [seq for seq, _ in log] == list(range(1, len(log) + 1))
    arrivals = [arrival for _, arrival in log]
    assert arrivals == sorted(set(arrivals))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_cut_at_commit_is_a_503_whose_repeat_is_safe(own_database, spawn, when):
    proxy = Proxy(own_database)
    server = spawn(LAKESYNC_STAGING_URL=proxy.url, LAKESYNC_DATA_DIR="")
    alice = server.client("alice")
    assert alice.push(delta("t0", {"n": 0}, client="alice")).status_code == 200
    made = delta("t1", {"n": 1}, client="alice")
    proxy.cut = when
    cut = alice.push(made)
    assert proxy.cuts == 1
    assert (cut.status_code, cut.json()["code"]) == (503, "STAGING_UNAVAILABLE")
    assert "repeat" in cut.json()["error"]
    database = own_database.rpartition("/")[2]
    assert database not in cut.text
    (reason,) = [line["error"] for line in server.lines() if line["event"] == "request failed"]
    assert database in reason
    committed = until(lambda: _settled(own_database), "the server to end the connection's transaction")
    assert committed == (1 if when == "before" else 2)
    for _ in range(2):
        again = alice.push(made)
        assert (again.status_code, again.json()["accepted"]) == (200, 1)
    assert [each["rowId"] for each in server.client("bob").pull().json()["deltas"]] == ["t0", "t1"]
    with psycopg.connect(own_database) as connection:
        assert connection.execute("SELECT count(*), max(seq) FROM lakesync.log").fetchone() == (2, 2)
        assert connection.execute("SELECT sum(count)::int FROM lakesync.ledger").fetchone() == (2,)
    proxy.close()


def _settled(database: str) -> int:
    """The number of log rows, once no transaction is open; before that, 0."""
    busy = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
    with psycopg.connect(database) as connection:
        if connection.execute(busy).fetchone() != (0,):
            return 0
        return connection.execute("SELECT count(*) FROM lakesync.log").fetchone()[0]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("fast", marks=pytest.mark.deep), "immediate"])
def test_a_server_that_is_restarted_under_load_loses_nothing(tmp_path, mode):
    with postgres_server() as postgres:
        gateways = [GatewayProcess(f"gateway-{number}", postgres.uri, tmp_path) for number in range(2)]
        for gateway in gateways:
            gateway.start()
        acknowledged = threading.Semaphore(0)
        pushers = [Pusher(f"client-{n}", lambda n=n: gateways[n % 2].url, 3, acknowledged.release) for n in range(4)]
        lake = Lake(postgres.uri, lambda: gateways[0].url)
        threads: list[Pusher | Lake] = [*pushers, lake]
        for thread in threads:
            thread.start()
        for _ in range(3):
            for _ in range(20):
                assert acknowledged.acquire(timeout=60), "no push was acknowledged within a minute"
            postgres.restart(mode)
        for _ in range(20):
            assert acknowledged.acquire(timeout=60), "no push was acknowledged after the last restart"
        for thread in threads:
            thread.end()
        for thread in threads:
            thread.join()
        lake.finish()
        verdict = Verdict([pusher.journal for pusher in pushers], lake.deltas())
        for gateway in gateways:
            gateway.stop()
        verdict.of_store(postgres.uri)
    assert verdict.problems == []
