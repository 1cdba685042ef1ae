"""W3: a push to one gateway process reaches the connections of every process."""

from __future__ import annotations

from itertools import count

import psycopg
import pytest

from tests.integration.gateway_support import delta, until
from tests.integration.live.live_support import Live


@pytest.fixture
def pair(own_database, spawn):
    """Two gateway processes on one Postgres, and the database's address."""
    one, other = (spawn(LAKESYNC_STAGING_URL=own_database, LAKESYNC_DATA_DIR="") for _ in range(2))
    return one, other, own_database


def test_changes_reach_the_connections_of_every_process(pair):
    one, other, _ = pair
    with Live(one.client("alice")) as alice, Live(other.client("bob")) as bob, Live(other.client("carol")) as carol:
        lines = (alice, bob, carol)
        for live in lines:
            live.pull()
        for n in range(9):
            writer = lines[n % 3]
            name = writer.client.client_id
            writer.push(delta(f"t{n}", {"n": n}, client=name))
            for live in lines:
                if live is not writer:
                    assert [each.row_id for each in live.broadcast().deltas] == [f"t{n}"]
        assert not any(live.broadcasts for live in lines)


def test_rows_that_another_process_may_send_too_are_sent_without_plain_inserts(pair):
    one, other, _ = pair
    with Live(one.client("alice")) as here, Live(other.client("alice")) as there, Live(one.client("bob")) as bob:
        for live in (here, there, bob):
            live.pull()

        numbers = count()

        def both_notified():
            row = f"t{next(numbers)}"
            bob.push(delta(row, {"x": 1}, client="bob"))
            broadcasts = [live.broadcast().deltas for live in (here, there)]
            assert {each.row_id for deltas in broadcasts for each in deltas} == {row}
            return all([each.op for each in deltas] == ["DELETE", "INSERT"] for deltas in broadcasts)

        until(both_notified, "both processes to know of both connections")
        there.pull(there.pull().server_hlc)
        assert both_notified(), "as long as the connections last"


def kill_listeners(staging):
    """End each listening connection; return False, without ending any, while there are fewer than two."""
    with psycopg.connect(staging) as connection:
        listening = "pg_stat_activity WHERE datname = current_database() AND application_name = 'lakesync notices'"
        if connection.execute(f"SELECT count(*) FROM {listening}").fetchone() != (2,):
            return None
        killed = connection.execute(f"SELECT pg_terminate_backend(pid, 10000) FROM {listening}").fetchall()
        return [done for (done,) in killed]


def test_a_process_with_lost_notices_misses_no_change(pair):
    one, other, staging = pair
    with Live(one.client("alice")) as alice, Live(other.client("bob")) as bob:
        alice.pull()
        bob.pull()
        for n in range(3):
            assert sorted(until(lambda: kill_listeners(staging), "both to listen")) == [True, True]
            alice.push(delta(f"t{n}", {"n": n}, client="alice"))
            # bob's rows of that time are unknown, so the row is sent as DELETE and INSERT
            assert {each.row_id for each in bob.broadcast().deltas} == {f"t{n}"}
    lost = [line for line in other.lines() if line["event"].startswith("no notices from Postgres")]
    assert lost
