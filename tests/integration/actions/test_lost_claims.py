"""Claims of actions that another process takes over, and claims during failures of the store."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

from lakesync.actions import ActionLimits, ActionRunner
from lakesync.connectors import Connectors
from lakesync.engine import Engine, EngineLimits
from lakesync.engine.gateway import SyncGateway
from lakesync.engine.gateway_base import SharedParts
from lakesync.engine.inspection.rejections import RejectionLog
from lakesync.engine.names import Names
from lakesync.model.errors import StagingUnavailableError
from lakesync.model.types import ActionPush, ActionResult
from lakesync.staging.memory import MemoryStore
from lakesync.testing import ManualClock
from tests.integration.actions.action_support import AsyncDesk, Desk, ask, data_of, make_action
from tests.integration.gateway_support import DEADLINE, until

WALL = 1_700_000_000_000
ACTION = make_action(WALL << 16)
CALLER = {"sub": "alice"}
SHORT = 0.3
"""Seconds of a short lease, which is soon renewed."""


class FrailStore(MemoryStore):
    """Rejects the commits of some methods."""

    def __init__(self, wall) -> None:
        super().__init__(wall)
        self.rejected: dict[str, Exception] = {}
        self.rejections = 0

    def submit(self, gateway: str, work: Any) -> Future[Any]:
        for method, error in self.rejected.items():
            if method in getattr(work, "__qualname__", ""):
                self.rejections += 1
                future: Future[Any] = Future()
                future.set_exception(error)
                return future
        return super().submit(gateway, work)


def limits(lease: float) -> EngineLimits:
    return EngineLimits(actions=ActionLimits(timeout=DEADLINE, lease=lease))


@pytest.fixture
def wall():
    return lambda: time.time_ns() // 1_000_000


@pytest.fixture
def store(wall):
    return FrailStore(wall)


@pytest.fixture
def engine_with(store, wall):
    """Opens an engine on the failing store; its claims last a few seconds."""
    engines = []

    def start(lease):
        engines.append(Engine(store, wall, limits(lease)))
        engines[0].open()
        return engines[0].gateway("g")

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture
def later(store):
    """The gateway in another process, whose clock is so far ahead that it takes over every claim."""
    runner = ActionRunner()
    clock = ManualClock(WALL * 2)
    shared = SharedParts(clock, Connectors(), runner, None, Names(), RejectionLog(clock))
    yield SyncGateway("g", store, limits(30), shared)
    runner.close(DEADLINE)


def lease_of(store) -> int:
    return store.read("g", lambda view: view.action("alice", ACTION.action_id)).result().lease_ms


def test_the_outcome_of_a_handler_that_lost_its_claim_is_the_other_processes(engine_with, later):
    first, entered, free = engine_with(30), threading.Event(), threading.Event()
    first.register_action_handler("desk", Desk(lambda *_: (entered.set(), {"by": free.wait(DEADLINE)})[1]))
    later.register_action_handler("desk", Desk(lambda *_: {"by": "the other"}))
    asked = first.submit_action(ActionPush("alice", (ACTION,)), CALLER)
    assert entered.wait(DEADLINE)
    (outcome,) = ask(later, ACTION)
    free.set()
    assert data_of(outcome) == {"by": "the other"}
    assert asked.result(DEADLINE).results == (outcome,)
    assert ask(first, ACTION) == (outcome,)


@pytest.mark.parametrize("kind", [Desk, AsyncDesk])
def test_a_handler_that_lost_its_claim_is_stopped(engine_with, later, kind):
    first, entered, stopped = engine_with(SHORT), threading.Event(), threading.Event()

    def block(*_):
        entered.set()
        stopped.wait(DEADLINE)

    async def sleep():
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    first.register_action_handler("desk", kind(block if kind is Desk else lambda *_: sleep()))
    later.register_action_handler("desk", Desk(lambda *_: {"by": "the other"}))
    asked = first.submit_action(ActionPush("alice", (ACTION,)), CALLER)
    assert entered.wait(DEADLINE)
    (outcome,) = ask(later, ACTION)
    assert asked.result(DEADLINE).results == (outcome,), (
        "a function in a thread cannot be stopped, and is not waited for"
    )
    assert kind is Desk or stopped.wait(DEADLINE)
    stopped.set()


def test_a_claim_is_renewed_until_the_outcome_is_stored(engine_with, store):
    gateway, entered = engine_with(SHORT), threading.Event()
    gateway.register_action_handler("desk", Desk(lambda *_: entered.set()))
    store.rejected["_store_outcome"] = StagingUnavailableError("the line is cut")
    asked = gateway.submit_action(ActionPush("alice", (ACTION,)), CALLER)
    until(lambda: store.rejections, "the outcome to be rejected")
    lease = lease_of(store)
    until(lambda: lease_of(store) > lease, "a renewal")
    store.rejected.clear()
    assert isinstance(asked.result(DEADLINE).results[0], ActionResult)
    assert lease_of(store) == 0


def test_a_claim_is_renewed_after_an_unexpected_error(engine_with, store):
    gateway, free = engine_with(SHORT), threading.Event()
    gateway.register_action_handler("desk", Desk(lambda *_: {"freed": free.wait(DEADLINE)}))
    store.rejected["_renew_lease"] = RuntimeError("a fault")
    asked = gateway.submit_action(ActionPush("alice", (ACTION,)), CALLER)
    until(lambda: store.rejections, "a renewal to fail")
    lease = lease_of(store)
    store.rejected.clear()
    until(lambda: lease_of(store) > lease, "a renewal")
    free.set()
    assert isinstance(asked.result(DEADLINE).results[0], ActionResult)
