"""What a synchronisation reports about failed and interrupted requests."""

import pytest

from lakesync.client import LocalTransport
from lakesync.client.errors import UnreachableError
from lakesync.client.sync.exchange import Exchange
from lakesync.model.errors import BackpressureError, ClockDriftError, Rejection, SchemaError

SCHEMAS = [{"table": "notes", "columns": [{"name": "text", "type": "string"}]}]


class FailingTransport(LocalTransport):
    """Fails pushes or pulls on demand."""

    error = None
    failing = ""

    def push(self, push):
        if self.failing == "push":
            raise self.error
        return super().push(push)

    def pull(self, pull):
        if self.failing == "pull":
            raise self.error
        return super().pull(pull)


@pytest.mark.parametrize("failing", ["push", "pull"])
@pytest.mark.parametrize("error", [BackpressureError("full"), UnreachableError("gone")])
def test_a_failed_push_is_reported_although_a_later_pull_succeeds(opened, gateway, failing, error):
    transport = FailingTransport(gateway)
    alice, bob = opened(transport=transport), opened("bob")
    alice.sync()
    bob["notes"].insert({"text": "his"}, row_id="his")
    bob.sync()
    alice["notes"].insert({"text": "hers"}, row_id="hers")
    transport.failing, transport.error = failing, error
    with pytest.raises(type(error)):
        alice.sync()
    assert not alice.status.connected
    transport.failing = ""
    alice.sync()
    assert alice.status.connected
    assert len(alice["notes"]) == 2
    assert alice.pending() == []


def test_an_edit_refused_because_the_clock_was_ahead_is_pushed_later_by_itself(opened, gateway):
    class Drifting(LocalTransport):
        def push(self, push):
            rejected = [Rejection(delta.delta_id, "CLOCK_DRIFT", "10000 ms ahead") for delta in push.deltas]
            raise ClockDriftError("10000 ms ahead", rejected)

    alice = opened(transport=Drifting(gateway))
    alice["notes"].insert({"text": "hers"}, row_id="hers")
    alice.sync()
    assert [edit.code for edit in alice.pending()] == ["CLOCK_DRIFT"]
    alice.close()
    alice = opened()
    alice.sync()
    assert alice.pending() == []
    bob = opened("bob")
    bob.sync()
    assert len(bob["notes"]) == 1


def interrupt(client, monkeypatch):
    """Raise Ctrl-C between creating and sending a request."""

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as now:
        now.setattr(Exchange, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.sync()


@pytest.mark.parametrize("method", ["sync_once", "resync", "verify"])
def test_ctrl_c_between_creating_and_sending_a_request_leaves_a_working_client(opened, monkeypatch, method):
    alice = opened()
    alice["notes"].insert({"text": "kept"}, row_id="kept")
    interrupt(alice, monkeypatch)
    getattr(alice.coordinator, method)()
    assert alice.pending() == []
    assert len(alice["notes"]) == 1


def test_an_interrupted_pull_is_repeated_by_the_next_sync_without_delay(opened, monkeypatch):
    alice, bob = opened(), opened("bob")
    bob["notes"].insert({"text": "new"}, row_id="new")
    alice.sync()
    bob.sync()
    interrupt(alice, monkeypatch)
    assert alice.sync().pulled == 1


def test_own_rows_count_as_pulled_only_if_everything_is_pulled(opened):
    alice, bob = opened(), opened("bob")
    assert alice.sync().pulled == 0, "the gateway is empty"
    pulled = []
    for name in ("first", "second"):
        bob["notes"].insert({"text": name}, row_id=f"bob's {name}")
        bob.sync()
        alice["notes"].insert({"text": name}, row_id=f"alice's {name}")
        pulled.append(alice.sync().pulled)
    assert pulled == [2, 1]


def test_a_missing_checkpoint_does_not_hide_that_a_push_failed(opened, gateway):
    transport = FailingTransport(gateway)
    alice = opened(transport=transport)
    alice["notes"].insert({"text": "hers"}, row_id="hers")
    transport.failing, transport.error = "push", UnreachableError("the response was lost")
    with pytest.raises(UnreachableError):
        alice.coordinator.push_to_gateway()
    transport.error = BackpressureError("full")  # of the push in doubt, after which the checkpoint is requested
    with pytest.raises(BackpressureError):
        alice.sync()


def test_a_rejected_push_does_not_hide_that_a_pull_failed(opened, gateway):
    class Rejecting(FailingTransport):
        def push(self, push):
            raise SchemaError("no", [Rejection(delta.delta_id, "SCHEMA_ERROR", "no") for delta in push.deltas])

    transport = Rejecting(gateway)
    transport.failing, transport.error = "pull", BackpressureError("full")
    alice = opened(transport=transport)
    alice["notes"].insert({"text": "hers"}, row_id="hers")
    with pytest.raises(BackpressureError):
        alice.sync()
    assert [edit.code for edit in alice.pending()] == ["SCHEMA_ERROR"]
