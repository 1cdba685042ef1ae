"""Blocking calls whose caller stops waiting."""

from concurrent.futures import Future

import pytest

from lakesync.client.transports import cancellable_calls


class InterruptedFuture(Future):
    """A future whose reader is interrupted when it has its result."""

    is_interrupted = False

    def result(self, timeout=None):  # noqa: ARG002 the tests' calls return at once
        found = super().result(60)
        if not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt
        return found


def test_the_result_of_a_call_that_ends_before_an_interrupt_is_discarded(monkeypatch):
    monkeypatch.setattr(cancellable_calls, "Future", InterruptedFuture)
    result, discarded = object(), []
    with pytest.raises(KeyboardInterrupt):
        cancellable_calls.CancellableCalls().run(lambda: result, discarded.append)
    assert discarded == [result]
