"""An erased client that still has its cursor, and was sent pages over a WebSocket that it did not receive."""

from __future__ import annotations

from functools import partial

import pytest

from lakesync.engine import EngineLimits
from lakesync.engine.pushing import PushRequest
from lakesync.engine.subscribers import Newcomer, SubscriptionState
from lakesync.model import hlc
from lakesync.model.errors import ForbiddenError
from lakesync.model.types import SyncPull, SyncPush
from lakesync.rules.model import parse_rules
from tests.conformance.book import make_delta
from tests.integration.embedded.embedded_support import KINDS, gateway_over

RULES = {
    "version": 1,
    "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
}
A, B = ({"sub": "ann", "team": team} for team in "ab")


@pytest.mark.parametrize("way", ["resumes", "open line", "pull from 0"])
def test_the_cursor_of_an_erased_client_does_not_confirm_pages_that_it_did_not_receive(clock, way):
    with gateway_over(clock, limits=EngineLimits(write_scope="any")) as gateway:
        gateway.set_rules(parse_rules(RULES))
        for tick, team in enumerate("ab"):
            delta = make_delta("ben", hlc.encode(clock.now_ms + tick, 0), team, team=team)
            gateway.handle_push(SyncPush("ben", (delta,)), {"sub": "ben", "team": "a"})
        cursor = gateway.handle_pull(SyncPull("ann", 0, 100), A).server_hlc
        gateway._store.erase_client("shop", "ann")
        if way == "resumes":  # its claims have changed, and it connects; the connection is lost before the page arrives
            pull = SyncPull("ann", gateway.submit_resume("ann", B).result(60), 100)
            gateway.submit_pull(pull, B, confirmed=False, has_not_pulled=True).result(60).decoded()
        elif way == "open line":
            gateway.submit_pull(SyncPull("ann", cursor, 100), B, confirmed=False).result(60).decoded()
        else:
            gateway.handle_pull(SyncPull("ann", 0, 100), B)
        page = gateway.handle_pull(SyncPull("ann", cursor, 100), B)
        assert [(each.op, each.row_id) for each in page.deltas] == [("DELETE", "b"), ("INSERT", "b")]


@pytest.mark.parametrize("first", ["source", "subscription"])
def test_an_erased_client_is_sent_the_delete_of_a_row_that_it_may_have_after_any_first_request(clock, tmp_path, first):
    adapter = KINDS["sqlite"](tmp_path)
    with gateway_over(clock) as gateway:
        gateway.register_source("reports", adapter)
        gateway.handle_push(SyncPush("ben", tuple(make_delta("ben", clock.now_ms << 16, row, n=1) for row in "ab")))
        cursor = gateway.handle_pull(SyncPull("ann", 0, 100)).server_hlc
        gateway._store.erase_client("shop", "ann")
        gateway.handle_push(SyncPush("ben", (make_delta("ben", clock.now_ms + 1 << 16, "b"),)))
        if first == "source":
            gateway.handle_pull(SyncPull("ann", cursor, 100, source="reports"))
        else:
            newcomer = Newcomer("ann", {"sub": "ann"}, SubscriptionState(cursor, 100))
            gateway.submit_subscribe([newcomer]).result(60)
        page = gateway.handle_pull(SyncPull("ann", cursor, 100))
    adapter.close()
    assert [(each.op, each.row_id) for each in page.deltas] == [("DELETE", "a"), ("INSERT", "a"), ("DELETE", "b")]


def test_an_erased_delta_of_a_visible_row_does_not_admit_a_delta_of_a_hidden_row(clock):
    with gateway_over(clock, limits=EngineLimits(write_scope="visible")) as gateway:
        gateway.set_rules(parse_rules(RULES))
        for tick, team in enumerate("ab"):
            delta = make_delta("ben", hlc.encode(clock.now_ms + tick, 0), team, team=team)
            trusted = PushRequest(SyncPush("ben", (delta,)), {"sub": "ben"}, trusted=True)
            gateway.submit_push(partial(PushRequest, *trusted)).result(60)
        gateway.handle_push(SyncPush("ann", (make_delta("ann", hlc.encode(clock.now_ms, 2), "a", note="seen"),)), A)
        gateway._store.erase_client("shop", "ann")
        offline = make_delta("ann", hlc.encode(clock.now_ms, 1), "a", note="erased")
        clock.advance(1000)
        hidden = make_delta("ann", hlc.encode(clock.now_ms, 0), "b", note="hidden")
        with pytest.raises(ForbiddenError):
            gateway.handle_push(SyncPush("ann", (offline, hidden)), A)


def test_an_erased_client_is_sent_the_row_that_it_changed_before_the_erasure_and_pushed_later(clock):
    with gateway_over(clock) as gateway:
        gateway.handle_push(SyncPush("ben", (make_delta("ben", hlc.encode(clock.now_ms, 0), "a", note="of ben"),)))
        cursor = gateway.handle_pull(SyncPull("ann", 0, 100)).server_hlc
        gateway._store.erase_client("shop", "ann")
        cursor = gateway.handle_pull(SyncPull("ann", cursor, 100)).server_hlc
        offline = make_delta("ann", hlc.encode(clock.now_ms, 0), "a", note="of ann")
        cursor = gateway.handle_push(SyncPush("ann", (offline,), cursor)).server_hlc
        page = gateway.handle_pull(SyncPull("ann", cursor, 100))
    assert [(each.op, [cell.decoded() for cell in each.columns]) for each in page.deltas] == [
        ("DELETE", []),
        ("INSERT", ["of ben"]),
    ]
