"""Actions over crashes and between gateway processes, with a connector type of an installed package."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import requests

from lakesync.model.crash_points import VARIABLE
from tests.integration.actions.action_support import make_action
from tests.integration.actions.desk_package import install
from tests.integration.gateway_support import DEADLINE, until, wall_ms

KEY = "a key of at least thirty-two characters"
TOKEN = "t0p-s3cret"


@pytest.fixture
def journal(tmp_path):
    return tmp_path / "journal"


@pytest.fixture
def gateway(spawn, tmp_path, journal):
    """Starts gateway processes with the desk's connector type; the first one registers a connector."""
    path = install(tmp_path / "site")
    registered = []

    def start(**variables):
        process = spawn(
            PYTHONPATH=path,
            LAKESYNC_SECRET_KEY=KEY,
            LAKESYNC_LIMITS_ACTION_LEASE_SECONDS="2",
            **variables,
        )
        if not registered:
            desk = {"name": "front", "type": "desk", "desk": {"journal": str(journal), "token": TOKEN}}
            answer = process.client().admin().call("POST", "/admin/connectors/{gw}", json=desk)
            assert answer.json() == {"registered": True, "name": "front"}, answer.text
            registered.append(process)
        return process

    return start


def body_of(action):
    names = ("action_id", "client_id", "connector", "action_type", "idempotency_key")
    spelled = {"actionId": "action_id", "clientId": "client_id", "actionType": "action_type"}
    assert set(spelled.values()) <= set(names)
    body = {key: getattr(action, name) for key, name in spelled.items()}
    body |= {"hlc": str(action.hlc), "connector": action.connector, "params": msgspec.json.decode(action.params)}
    return body if action.idempotency_key is None else body | {"idempotencyKey": action.idempotency_key}


def ask(process, *actions):
    """The outcomes of a client's actions."""
    client = process.client("alice", team="a")
    body = {"clientId": "alice", "actions": [*map(body_of, actions)]}
    answer = client.call("POST", "/sync/{gw}/action", json=body, headers={"X-LakeSync-Client": "tests"})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def lines(journal):
    return [line.split() for line in journal.read_text().splitlines()] if journal.exists() else []


def an_action(kind="write", n=0, **changes):
    return make_action((wall_ms() << 16) + n, {"n": n}, connector="front", kind=kind, **changes)


def test_a_registered_connector_lists_its_actions_and_exposes_no_secret(gateway, journal, tmp_path):
    process = gateway()
    client = process.client("alice", team="a")
    offered = client.call("GET", "/sync/{gw}/actions").json()["connectors"]
    assert [each["actionType"] for each in offered["front"]] == ["write", "hold"]
    (result,) = ask(process, an_action())
    assert result["data"] == {"attempt": 1, "knows": True}
    admin = client.admin()
    texts = [
        admin.call("GET", path).text
        for path in ("/admin/connectors/{gw}", "/admin/actions/{gw}", "/connectors/types", "/sync/{gw}/actions")
    ]
    texts.append(str(process.internal("connectors", gateway="gw")))
    assert '"desk"' in texts[2]
    assert all(TOKEN not in text for text in texts)
    process.process.send_signal(signal.SIGTERM)
    process.process.wait(DEADLINE)
    kept = [path for path in (tmp_path / "data").rglob("*") if path.is_file()] + [process.log]
    assert any(b"front" in path.read_bytes() for path in kept)
    assert [path for path in kept if TOKEN.encode() in path.read_bytes()] == []


@pytest.mark.slow
def test_an_action_of_a_killed_process_is_pending_until_its_lease_ends_and_then_repeated(gateway, journal):
    first = gateway()
    action = an_action("hold")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, first, action)
        until(lambda: lines(journal), "the handler to begin")
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(DEADLINE)
        assert isinstance(asked.exception(DEADLINE), requests.ConnectionError)
    journal.with_suffix(".open").touch()
    second = gateway(LAKESYNC_LIMITS_ACTION_TIMEOUT_SECONDS="0.05")
    results = []

    def done():
        (result,) = ask(second, action)
        results.append(result)
        return "data" in result

    until(done, "the lease to end")
    assert {each.get("code") for each in results[:-1]} <= {"ACTION_PENDING"}
    assert all(each["retryable"] for each in results[:-1])
    assert results[-1]["data"]["attempt"] == 2
    assert [(line[0], line[1]) for line in lines(journal)] == [(action.action_id, "1"), (action.action_id, "2")]
    # an answer that takes longer than 0.05 s is ACTION_PENDING
    until(lambda: ask(second, action) == [results[-1]], "the stored outcome")
    assert len(lines(journal)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "before", "after"),
    [("actions.claimed", 0, 1), ("actions.done", 1, 2), ("staging.after_commit:2", 1, 1)],
    ids=["claimed", "done", "settled"],
)
def test_an_action_interrupted_at_any_point_is_executed_and_reported(gateway, journal, place, before, after):
    gateway().process.kill()
    action = an_action()
    crashing = gateway(**{VARIABLE: place})
    with pytest.raises(requests.ConnectionError):
        ask(crashing, action)
    assert crashing.process.wait(DEADLINE) == -signal.SIGKILL
    assert len(lines(journal)) == before
    second = gateway()
    result = until(lambda: next((each for each in ask(second, action) if "data" in each), None), "the outcome")
    assert len(lines(journal)) == after
    assert ask(second, action) == [result]
    assert len(lines(journal)) == after


@pytest.mark.slow
def test_a_hanging_handler_blocks_neither_requests_nor_shutdown(gateway, journal):
    process = gateway(LAKESYNC_LIMITS_ACTION_TIMEOUT_SECONDS="0.05")
    action = an_action("hold")
    (pending,) = ask(process, action)
    assert (pending["code"], pending["retryable"]) == ("ACTION_PENDING", True)
    until(lambda: lines(journal), "the handler to begin")
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(DEADLINE) == 0
    assert any(line["event"] == "actions left unfinished" for line in process.lines())
    journal.with_suffix(".open").touch()
    second = gateway()
    result = until(lambda: next((each for each in ask(second, action) if "data" in each), None), "the outcome")
    assert result["data"]["attempt"] == 2


KILLS = int(os.environ.get("LAKESYNC_TEST_KILLS", "3"))


@pytest.mark.slow
def test_each_action_of_a_randomly_killed_gateway_has_one_outcome(gateway, journal):
    """Set `LAKESYNC_TEST_KILLS=20` for a longer run."""
    server = [gateway()]
    results: dict[str, dict] = {}
    numbers, stop = itertools.count(), threading.Event()

    def client():
        while not stop.is_set():
            action = an_action(n=next(numbers))
            for _ in range(2):  # a repeat must return the same result
                result = until(lambda action=action: _asked(server, action), "an outcome")
                assert results.setdefault(action.action_id, result) == result

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client) for _ in range(4)]
        for kill in range(KILLS):
            before = len(results)
            until(lambda before=before: len(results) > before + 5, "work")
            stop.wait(random.Random(kill).uniform(0, 0.3))
            server[0].process.kill()
            server[0].process.wait(DEADLINE)
            server[0] = gateway()
        stop.set()
        for each in clients:
            each.result(DEADLINE)
    done = Counter(line[0] for line in lines(journal))
    assert set(results) == set(done)
    assert len(results) > 5 * KILLS
    assert sum(done.values()) - len(done) <= 4 * KILLS, "only actions that ran when a process died are executed again"


def _asked(server, action):
    try:
        (result,) = ask(server[0], action)
    except requests.RequestException:
        return None
    return result if "data" in result else None


@pytest.fixture
def pair(own_database, gateway):
    """Two processes on one Postgres."""
    return [gateway(LAKESYNC_STAGING_URL=own_database, LAKESYNC_DATA_DIR="") for _ in range(2)]


def test_two_processes_execute_each_action_once_and_return_the_same_result(pair, journal):
    one, other = pair
    assert other.client().admin().call("GET", "/admin/connectors/{gw}").json() == [
        {"name": "front", "type": "desk", "hasIngest": False}
    ]
    for process, twin in ((one, other), (other, one)):
        action = an_action()
        assert ask(process, action) == ask(twin, action)
    assert len({line[2] for line in lines(journal)}) == len(lines(journal)) == 2
    actions = [an_action(n=n, key=f"key-{n % 10}") for n in range(30)]
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, process, action) for action in actions for process in (one, other, one)]
        outcomes = [future.result(DEADLINE)[0] for future in asked]
    for place, action in enumerate(actions):
        results = outcomes[place * 3 : place * 3 + 3]
        assert results == [results[0]] * 3
        assert results[0]["actionId"] == action.action_id
    assert len(lines(journal)) == 12


def test_a_second_process_waits_for_the_first_and_replaces_a_dead_one(pair, journal):
    one, other = pair
    held, lost = an_action("hold", 1), an_action("hold", 2)
    gate = journal.with_suffix(".open")
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask, one, held)
        until(lambda: len(lines(journal)) == 1, "the first to begin")
        second = pool.submit(ask, other, held)
        gate.touch()
        assert first.result(DEADLINE) == second.result(DEADLINE)
        gate.unlink()
        assert len(lines(journal)) == 1
        dying = pool.submit(ask, one, lost)
        until(lambda: len(lines(journal)) == 2, "the second to begin")
        heir = pool.submit(ask, other, lost)
        one.process.kill()
        gate.touch()
        assert isinstance(dying.exception(DEADLINE), requests.ConnectionError)
        assert heir.result(DEADLINE)[0]["data"]["attempt"] == 2
    assert [line[1] for line in lines(journal)] == ["1", "1", "2"]
