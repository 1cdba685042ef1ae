"""What a client makes of answers to its actions that a gateway would not give."""

import pytest

from lakesync.client import LocalTransport, UnreachableError
from lakesync.model.types import ActionResponse, ActionResult

SCHEMAS = []


class Empty(LocalTransport):
    """Something stands between that answers with nothing, or of another's actions."""

    asked = 0
    results = ()

    def execute_actions(self, _push):
        self.asked += 1
        assert self.asked < 10
        return ActionResponse(self.results, 0)


@pytest.mark.parametrize("results", [(), (ActionResult("another's", b"1", 0),)])
def test_an_answer_that_does_not_name_the_actions_is_none_and_they_wait(opened, gateway, results):
    transport = Empty(gateway)
    transport.results = results
    alice = opened(transport=transport)
    name = alice.execute_action("desk", "open", {})
    with pytest.raises(UnreachableError, match="does not say what became of the actions"):
        alice.sync()
    assert transport.asked == 1
    assert alice.action(name).status == "waiting"
    assert alice.coordinator.actions.delay() > 0
