"""Actions that the app queues, and invalid answers to them."""

from queue import Queue
from threading import Event

import pytest

from lakesync.client import LocalTransport, UnreachableError
from lakesync.client.core.messages import RetryPolicy
from lakesync.model.errors import AuthError, ValidationError
from lakesync.model.types import ActionFailure, ActionResponse, ActionResult

SCHEMAS = []


class WrongOutcomesTransport(LocalTransport):
    """Answers with no outcomes, or with those of other actions, as a proxy might."""

    asked = 0
    results = ()

    def execute_actions(self, _push):
        self.asked += 1
        assert self.asked < 10
        return ActionResponse(self.results, 0)


@pytest.mark.parametrize("results", [(), (ActionResult("another's", b"1", 0),)])
def test_an_answer_without_the_sent_actions_is_unreachable_and_the_actions_stay_queued(opened, gateway, results):
    transport = WrongOutcomesTransport(gateway)
    transport.results = results
    alice = opened(transport=transport, retry=RetryPolicy(first_delay=3600, longest_delay=3600))
    name = alice.execute_action("desk", "open", {})
    with pytest.raises(UnreachableError, match="outcomes for"):
        alice.sync()
    assert transport.asked == 1
    assert alice.action(name).status == "waiting"
    assert alice.coordinator.actions.delay() > 0


class RejectingTransport(LocalTransport):
    """Rejects every action for good."""

    def execute_actions(self, push):
        failures = (ActionFailure(each.action_id, "NOT_FOUND", "unknown", retryable=False) for each in push.actions)
        return ActionResponse(tuple(failures), 0)


class ExpiringTransport(LocalTransport):
    """Rejects requests with several actions; the token expires after one action was sent alone."""

    has_expired = False

    def execute_actions(self, push):
        if self.has_expired:
            raise AuthError("the token has expired")
        if len(push.actions) > 1:
            raise ValidationError("one of them is invalid")
        self.has_expired = True
        return ActionResponse((ActionResult(push.actions[0].action_id, b"1", 0),), 0)


def test_actions_stay_queued_if_the_token_expires_while_they_are_sent_alone(opened, gateway):
    alice = opened(transport=ExpiringTransport(gateway), retry=RetryPolicy(first_delay=3600, longest_delay=3600))
    names = [alice.execute_action("desk", "open", {}) for _ in range(2)]
    with pytest.raises(AuthError):
        alice.sync()
    assert [alice.action(name).status for name in names] == ["waiting", "waiting"]


def test_auto_sync_sends_actions_that_the_app_pushes_and_retries_in_the_queue(opened, gateway):
    alice = opened(transport=RejectingTransport(gateway), interval=3600)
    alice.sync()
    ended = Queue()
    alice.on("onActionComplete", lambda action_id, _: ended.put(action_id))
    synchronised = Event()
    alice.on("onSyncComplete", lambda _: synchronised.set())
    alice.coordinator.start_auto_sync()
    assert synchronised.wait(30)
    action = alice.coordinator.actions.push("desk", "open", {})
    assert ended.get(timeout=30) == action.action_id
    alice.coordinator.actions.retry(action.action_id)
    assert ended.get(timeout=30) == action.action_id


def test_an_action_postponed_while_the_clock_was_ahead_is_due_once_the_clock_is_right(opened, gateway, monkeypatch):
    alice = opened(transport=WrongOutcomesTransport(gateway))
    actions = alice.coordinator.actions
    alice.execute_action("desk", "open", {})
    alice.execute_action("desk", "open", {})
    with monkeypatch.context() as now:
        now.setattr("time.time", lambda: 4e9)
        actions.postpone(actions.peek(1))
        assert len(actions.peek()) == 1
    assert len(actions.peek()) == 2
    assert actions.delay() == 0
    actions.postpone(actions.peek(), 86_400.0)
    assert actions.peek() == []
    assert 3500 < actions.delay() <= 3600
