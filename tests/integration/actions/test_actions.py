"""Actions of one gateway: dispatch, checks, repeats, failures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import msgspec
import pytest
from structlog.testing import capture_logs

from lakesync.actions import ActionLimits
from lakesync.engine import Engine, EngineLimits
from lakesync.model.action_handlers import ActionDescriptor
from lakesync.model.errors import (
    AdapterError,
    ClockDriftError,
    ConfigurationError,
    ForbiddenError,
    StagingUnavailableError,
    ValidationError,
)
from lakesync.model.types import Action, ActionFailure, ActionPush, ActionResult, SyncPush
from lakesync.staging import open_store
from lakesync.testing import ManualClock
from tests.integration.actions.action_support import AsyncDesk, Desk, ask, data_of, make_action
from tests.integration.gateway_support import DEADLINE, until

LIMITS = ActionLimits(timeout=DEADLINE, max_params_bytes=1000, max_data_bytes=1000, retention_ms=10_000)
WALL = 1_700_000_000_000
NOW = WALL << 16


@pytest.fixture
def clock():
    return ManualClock(WALL)


@pytest.fixture
def reopen(tmp_path, clock):
    """Opens the same store again, in place of the earlier engine."""
    engines = []

    def start(limits=LIMITS):
        for engine in engines:
            engine.close()
        engines[:] = [Engine(open_store(f"sqlite://{tmp_path}", clock), clock, EngineLimits(actions=limits))]
        engines[0].open()
        return engines[0].gateway("g")

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture
def gateway(reopen):
    return reopen()


@pytest.fixture(params=[Desk, AsyncDesk])
def desk(request, gateway):
    made = request.param()
    gateway.register_action_handler("desk", made)
    return made


def giving(data):
    return lambda _action, _context: data


def holding(desk, free, entered=None):
    """Return a handler that blocks until it is released."""

    def wait():
        if entered is not None:
            entered.set()
        return {"freed": free.wait(DEADLINE)}

    if isinstance(desk, AsyncDesk):
        return lambda _action, _context: asyncio.to_thread(wait)
    return lambda _action, _context: wait()


def test_an_action_is_executed_and_its_data_returned(gateway, desk):
    action = make_action(NOW, {"title": "x", "tags": ["é"]})
    claims = {"sub": "alice", "team": ["a", "b"]}
    (result,) = ask(gateway, action, claims=claims)
    assert isinstance(result, ActionResult)
    assert (result.action_id, data_of(result)) == (action.action_id, {"n": 1})
    assert result.server_hlc >> 16 == WALL
    ((asked, context),) = desk.asked
    assert asked == action
    assert context == ("g", claims, 1)


def test_results_are_in_order_and_a_failure_does_not_stop_the_others(gateway, desk):
    actions = [
        make_action(NOW + 1),
        make_action(NOW + 2, kind="unknown"),
        make_action(NOW + 3, connector="nobody"),
        make_action(NOW + 4, {"title": ""}),
        make_action(NOW + 5, identity="0" * 64),
        make_action(NOW + 6, {"anything": 1}, kind="plain"),
    ]
    results = ask(gateway, *actions)
    assert [each.action_id for each in results] == [each.action_id for each in actions]
    codes = [each.code if isinstance(each, ActionFailure) else "OK" for each in results]
    assert codes == [
        "OK",
        "ACTION_NOT_SUPPORTED",
        "ACTION_NOT_SUPPORTED",
        "ACTION_VALIDATION_ERROR",
        "ACTION_VALIDATION_ERROR",
        "OK",
    ]
    assert not any(each.retryable for each in results if isinstance(each, ActionFailure))
    assert len(desk.asked) == 2


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({}, "params lacks 'title'"),
        ({"title": 5}, "params.title must be of type string"),
        ({"title": ""}, "params.title must not be empty"),
        ({"title": "x", "tags": ["a", 2]}, "params.tags[1] must be of type string"),
        ({"title": "x", "hush": "s3cret"}, "params has no field 'hush'; its fields are title, tags"),
    ],
)
def test_invalid_params_are_rejected_with_their_path(gateway, desk, params, said):
    (result,) = ask(gateway, make_action(NOW, params))
    assert result.message == said
    assert desk.asked == []


def test_an_invalid_request_executes_nothing(gateway, desk):
    good = make_action(NOW)

    def refused(kind, push, match, claims=None):
        with pytest.raises(kind, match=match):
            gateway.handle_action(push, claims)

    refused(ForbiddenError, ActionPush("bob", (good,)), r"actions\[0\]\.clientId is 'alice'")
    refused(ForbiddenError, ActionPush("alice", (good,)), "'alice'.*'bob'", {"sub": "bob"})
    refused(ValidationError, ActionPush("alice", (good,) * 101), "101 actions, the maximum is 100")
    late = make_action(NOW + (5001 << 16))
    refused(ClockDriftError, ActionPush("alice", (good, late)), r"actions\[1\]\.hlc .* 5001 ms ahead")
    big = make_action(NOW, {"title": "x" * 1000})
    refused(ValidationError, ActionPush("alice", (good, big)), r"actions\[1\]\.params has 1012 bytes")
    for change in ({"connector": ""}, {"action_type": "\0"}, {"idempotency_key": "k" * 513}, {"hlc": 1 << 63}):
        odd = msgspec.structs.replace(good, **change)
        refused(ValidationError, ActionPush("alice", (good, odd)), r"actions\[1\]\.")
    assert desk.asked == []
    assert ask(gateway, make_action(NOW + (5000 << 16)))[0].action_id


def test_params_without_a_canonical_form_are_rejected_alone(gateway, desk):
    bad = Action("alice", NOW + 1, "desk", "plain", msgspec.Raw(b'{"n":1e999}'), "0" * 64)
    first, second = ask(gateway, make_action(NOW), bad)
    assert isinstance(first, ActionResult)
    assert (second.code, second.retryable) == ("ACTION_VALIDATION_ERROR", False)
    assert "1e999" in second.message


def test_a_repeat_returns_the_first_outcome_also_after_a_restart(gateway, desk, reopen, clock):
    action = make_action(NOW)
    first = ask(gateway, action)
    clock.advance(5000)
    assert ask(gateway, action) == first
    again = reopen()
    assert ask(again, action) == first, "even if no handler supports it any longer"
    again.register_action_handler("desk", desk)
    assert ask(again, action, action) == first * 2
    assert len(desk.asked) == 1


def test_actions_with_one_idempotency_key_are_one(gateway, desk, reopen):
    one, other = make_action(NOW, key="k"), make_action(NOW + 1, {"title": "y"}, key="k")
    (first,) = ask(gateway, one)
    gateway = reopen()
    gateway.register_action_handler("desk", desk)
    (second,) = ask(gateway, other)
    assert second == msgspec.structs.replace(first, action_id=other.action_id)
    assert ask(gateway, make_action(NOW + 2, {"title": "y"}, key="k2"))[0].data != first.data
    (another,) = ask(gateway, make_action(NOW, key="k", client="bob"))
    assert data_of(another) == {"n": 3}, "a key belongs to one client"


def test_an_idempotency_key_added_in_a_repeat_applies_and_replaces_nothing(gateway, desk):
    one, other = make_action(NOW, key="k"), make_action(NOW + 1)
    (first,) = ask(gateway, one)

    def react(action, context):
        raise AdapterError("shut")

    desk.reaction = react
    assert ask(gateway, other)[0].retryable
    (result,) = ask(gateway, msgspec.structs.replace(other, idempotency_key="k"))
    assert result == msgspec.structs.replace(first, action_id=other.action_id)
    assert ask(gateway, one) == (first,)
    assert len(desk.asked) == 2


def test_an_action_older_than_the_retention_is_forgotten_and_executed_again(gateway, desk, clock):
    action = make_action(NOW, key="k")
    ask(gateway, action)
    clock.advance(LIMITS.retention_ms)
    ask(gateway, action)
    assert len(desk.asked) == 1
    clock.advance(1)
    ask(gateway, make_action(NOW + 9))
    read = gateway._store.read("g", lambda view: view.action("alice", action.action_id, "k"))
    assert read.result() is None
    ask(gateway, action)
    assert len(desk.asked) == 3


def test_final_failures_are_stored_and_retryable_ones_are_not(gateway, desk):
    answers = iter(
        [
            AdapterError("the desk is shut"),
            OSError("secret host"),
            ForbiddenError("alice may not"),
            AssertionError("must not be called again"),
        ]
    )

    def react(action, context):
        raise next(answers)

    desk.reaction = react
    action = make_action(NOW)
    results = [ask(gateway, action)[0] for _ in range(4)]
    assert [(each.code, each.message, each.retryable) for each in results] == [
        ("ADAPTER_ERROR", "the desk is shut", True),
        ("ACTION_EXECUTION_ERROR", "the connector could not reach what it needs: retry", True),
        ("FORBIDDEN", "alice may not", False),
        ("FORBIDDEN", "alice may not", False),
    ]
    assert [context.attempt for _, context in desk.asked] == [1, 2, 3]


def test_the_failure_of_a_connector_without_its_secret_does_not_name_the_secret(gateway, desk):
    def react(action, context):
        raise ConfigurationError("apiToken of connector 'desk': /run/secrets/desk does not exist")

    desk.reaction = react
    with capture_logs() as lines:
        (result,) = ask(gateway, make_action(NOW))
    assert (result.code, result.retryable) == ("CONFIGURATION_ERROR", False)
    assert "/run" not in result.message
    assert "/run/secrets/desk" in str(lines[0]["exc_info"])


@pytest.mark.parametrize(
    "wrong",
    [
        KeyError("hush"),
        SystemExit(3),
        StopIteration(),
        asyncio.CancelledError(),
        concurrent.futures.CancelledError(),
        ["no", "object"],
        {"x": object()},
        7,
    ],
)
def test_a_failing_handler_is_reported_without_internal_details(gateway, desk, wrong):
    def react(action, context):
        if isinstance(wrong, BaseException):
            raise wrong
        return wrong

    desk.reaction = react
    (result,) = ask(gateway, make_action(NOW))
    assert result.code == "ACTION_EXECUTION_ERROR"
    assert result.message == "the handler failed; see the gateway's log"
    assert not result.retryable
    desk.reaction = giving(None)
    assert data_of(ask(gateway, make_action(NOW + 1))[0]) == {}


def test_data_above_the_limit_is_omitted_from_a_successful_result(gateway, desk):
    desk.reaction = giving({"text": "x" * 2000})
    (result,) = ask(gateway, make_action(NOW))
    assert data_of(result) == {"omitted": "the data has 2011 bytes, the maximum is 1000"}


def test_concurrent_requests_execute_an_action_once(gateway, desk):
    entered, free = threading.Event(), threading.Event()
    desk.reaction = holding(desk, free, entered)
    action, twin = make_action(NOW, key="k"), make_action(NOW + 1, key="k")
    push = ActionPush("alice", (action,))
    futures = [gateway.submit_action(push, {"sub": "alice"}) for _ in range(5)]
    assert entered.wait(DEADLINE)
    futures.append(gateway.submit_action(ActionPush("alice", (twin,)), {"sub": "alice"}))
    free.set()
    outcomes = [future.result(DEADLINE).results[0] for future in futures]
    assert outcomes[:5] == [outcomes[0]] * 5
    assert data_of(outcomes[0]) == {"freed": True}
    assert (outcomes[5].action_id, data_of(outcomes[5])) == (twin.action_id, {"freed": True})
    assert len(desk.asked) == 1


def test_a_slow_action_delays_neither_pushes_nor_its_request(gateway, desk, reopen):
    free = threading.Event()
    gateway = reopen(msgspec.structs.replace(LIMITS, timeout=1.0))
    gateway.register_action_handler("desk", desk)
    desk.reaction = holding(desk, free)
    action, next_one = make_action(NOW), make_action(NOW + 1)
    results = ask(gateway, action, next_one)
    assert [(each.code, each.retryable) for each in results] == [("ACTION_PENDING", True)] * 2
    assert len(desk.asked) == 1, "actions that had not started are not started after the deadline"
    assert gateway.handle_push(SyncPush("alice", ())).accepted == 0
    assert ask(gateway, action)[0].code == "ACTION_PENDING"
    free.set()
    done = until(lambda: isinstance(ask(gateway, action)[0], ActionResult), "the outcome")
    assert done
    assert len(desk.asked) == 1


@pytest.mark.parametrize("has_key", [False, True])
def test_running_and_waiting_actions_are_limited(gateway, desk, reopen, has_key):
    gateway = reopen(msgspec.structs.replace(LIMITS, max_running=2, max_waiting=3))
    gateway.register_action_handler("desk", desk)
    free = threading.Event()
    desk.reaction = holding(desk, free)
    actions = [make_action(NOW + n, key=f"k{n}" if has_key else None) for n in range(3)]
    waiting = [gateway.submit_action(ActionPush("alice", (each,)), {"sub": "alice"}) for each in actions]
    until(lambda: len(desk.asked) == 2, "two to begin")
    (busy,) = ask(gateway, make_action(NOW + 9))
    assert (busy.code, busy.retryable, len(desk.asked)) == ("ACTION_BUSY", True, 2)
    free.set()
    assert all(isinstance(future.result(DEADLINE).results[0], ActionResult) for future in waiting)
    assert len(desk.asked) == 3


def test_attempts_are_listed_without_params_and_rejections_are_not_stored(gateway, desk, clock):
    desk.reaction = lambda _action, _context: clock.advance(3) and None
    ask(gateway, make_action(NOW, {"title": "s3cret"}), make_action(NOW, kind="unknown"))
    ask(gateway, make_action(NOW, {"title": "s3cret"}))
    (entry,) = gateway.action_log()
    assert (entry.seq, entry.client_id, entry.connector, entry.action_type) == (1, "alice", "desk", "create")
    assert (entry.code, entry.attempt, entry.at_ms) == ("OK", 1, WALL + 3)
    assert "s3cret" not in repr(entry)
    assert gateway.action_log(before=1) == []


def test_a_synchronous_handler_may_return_an_awaitable(gateway):
    async def later():
        return {"later": True}

    gateway.register_action_handler("desk", Desk(lambda _action, _context: later()))
    assert data_of(ask(gateway, make_action(NOW))[0]) == {"later": True}


def test_handlers_can_be_registered_and_unregistered(gateway):
    assert gateway.describe_actions().connectors == {}
    desk = Desk()
    gateway.register_action_handler("desk", desk)
    gateway.register_action_handler("annex", desk)
    assert gateway.list_action_handlers() == ["annex", "desk"]
    assert gateway.describe_actions().connectors == dict.fromkeys(("annex", "desk"), desk.supported_actions)
    gateway.unregister_action_handler("annex")
    gateway.unregister_action_handler("annex")
    assert ask(gateway, make_action(NOW, connector="annex"))[0].code == "ACTION_NOT_SUPPORTED"


@pytest.mark.parametrize(
    ("descriptors", "match"),
    [
        ([ActionDescriptor("a", "", {"type": "strnig"})], r"'desk'\.a is wrong at \$\.type"),
        ([ActionDescriptor("a", ""), ActionDescriptor("a", "")], "twice"),
    ],
)
def test_a_handler_with_invalid_descriptions_is_rejected(gateway, descriptors, match):
    desk = Desk()
    desk.supported_actions = descriptors
    with pytest.raises(ConfigurationError, match=match):
        gateway.register_action_handler("desk", desk)
    assert gateway.list_action_handlers() == []


def test_a_stopping_engine_rejects_actions_and_leaves_running_ones_for_later(gateway, desk, reopen, clock, monkeypatch):
    monkeypatch.setattr("lakesync.engine.engine.ACTION_SECONDS", 0.05)
    free = threading.Event()
    desk.reaction = holding(desk, free)
    action = make_action(NOW)
    future = gateway.submit_action(ActionPush("alice", (action,)), {"sub": "alice"})
    until(lambda: desk.asked, "the handler to begin")
    again = reopen(msgspec.structs.replace(LIMITS, timeout=0.05))
    with pytest.raises(StagingUnavailableError, match="stopping"):
        future.result(DEADLINE)
    with pytest.raises(StagingUnavailableError, match="stopping"):
        gateway.submit_action(ActionPush("alice", (action,)), {"sub": "alice"})
    free.set()
    again.register_action_handler("desk", desk)
    desk.reaction = giving({"again": True})
    assert ask(again, action)[0].code == "ACTION_PENDING", "until the lease ends, it may still be running"
    clock.advance(round(LIMITS.lease * 1000))
    until(lambda: hasattr(ask(again, action)[0], "data"), "the repeat to be done")
    assert data_of(ask(again, action)[0]) == {"again": True}
    assert desk.asked[-1][1].attempt == 2
