"""Answers to actions that no gateway would send."""

import pytest

from lakesync.client import LocalTransport, UnreachableError
from lakesync.model.types import ActionResponse, ActionResult

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
    alice = opened(transport=transport)
    name = alice.execute_action("desk", "open", {})
    with pytest.raises(UnreachableError, match="outcomes for"):
        alice.sync()
    assert transport.asked == 1
    assert alice.action(name).status == "waiting"
    assert alice.coordinator.actions.delay() > 0
