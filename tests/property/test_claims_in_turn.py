"""Connections of one client with different claims reach a stable state, in any order of the server's sends."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lakesync.engine import Engine
from lakesync.engine.subscribers import Newcomer, SubscriptionState
from lakesync.model.types import SyncPull
from lakesync.rules.model import parse_rules
from lakesync.staging import open_store
from tests.property.test_following import RULES, START, ended, push

GROUPS = "abc"


class Line:
    """A connection to which the server sends one page at a time, as `gateway.live.channel` does."""

    def __init__(self, gateway, group):
        self.gateway = gateway
        self.claims = {"sub": "ann", "group": group}
        since = ended(gateway.submit_resume("ann", self.claims))
        self.state = SubscriptionState(since, 1, has_more=True, has_not_pulled=True)

    @property
    def rests(self):
        return self.state.access is not None

    def serve(self):
        if not self.state.has_more:
            (self.state,) = ended(self.gateway.submit_subscribe([Newcomer("ann", self.claims, self.state)]))
        if not self.rests:
            pull = SyncPull("ann", self.state.cursor, self.state.limit)
            page = ended(self.gateway.submit_pull(pull, self.claims, confirmed=False, has_not_pulled=True))
            self.state = replace(self.state, cursor=page.server_hlc, has_more=page.has_more)


@pytest.mark.parametrize("pulls", [True, False])
@pytest.mark.parametrize("groups", ["ab", "abc"])
@settings(deadline=None, max_examples=40)
@given(rows=st.lists(st.sampled_from(GROUPS), min_size=1, max_size=5), order=st.lists(st.integers(0, 2), max_size=9))
def test_clients_with_alternating_claims_reach_a_stable_state(groups, pulls, rows, order):
    engine = Engine(open_store("memory://", lambda: START), lambda: START)
    engine.open()
    try:
        gateway = engine.gateway("g")
        gateway.set_rules(parse_rules(RULES))
        if pulls:
            gateway.handle_pull(SyncPull("ann", 0, 100), {"sub": "ann", "group": "a"})
        else:
            push(engine, START, ("ann", "INSERT", "r", {"group": "a"}, 0))
        for number, group in enumerate(rows):
            push(engine, START, ("ben", "INSERT", f"r{number}", {"group": group}, 0))
        if pulls:
            gateway.handle_pull(SyncPull("ann", 1, 100), {"sub": "ann", "group": "b"})
        lines = [Line(gateway, group) for group in groups]
        for which in order:
            lines[which % len(lines)].serve()
        for _ in range(len(lines) * (len(rows) + 2)):
            for line in lines:
                line.serve()
        assert all(line.rests for line in lines)
    finally:
        engine.close()
