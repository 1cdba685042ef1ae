"""An action has at most one holder, and a sent outcome never changes, whichever process crashes."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lakesync.actions.action_services import ActionLimits
from lakesync.actions.claims import claim, decode, record_outcome, renew
from lakesync.engine import Engine
from lakesync.model.types import Action, ActionFailure, ActionResult
from lakesync.staging import open_store
from lakesync.staging.records import ActionEntry
from lakesync.testing import ManualClock

LIMITS = ActionLimits(lease=10.0, retention_ms=100_000, kept_entries=5)
CLIENTS, IDS, KEYS = ["a", "a", "a", "b"], ["1", "2"], [None, "k"]


class Leases(RuleBasedStateMachine):
    """The model: for each action its holder and the end of the lease, and the outcome that was sent."""

    @initialize()
    def begin(self):
        self.clock = ManualClock()
        self.engine = Engine(open_store("memory://", self.clock), self.clock)
        self.engine.open()
        self.engine.gateway("g")
        self.holding = []
        """Records of running processes, also of those that others consider dead."""
        self.ended = []
        """Records of processes whose outcome was stored, or whose claim was taken over."""
        self.outcomes = {}
        """(client, id or key) → outcome, and when."""
        self.attempts = 0

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.close()

    def run(self, work):
        return self.engine.store.submit("g", work).result()

    @rule(client=st.sampled_from(CLIENTS), identity=st.sampled_from(IDS), key=st.sampled_from(KEYS))
    def ask(self, client, identity, key):
        action = Action(client, 1, "desk", "do", msgspec.Raw(b"{}"), identity, key)
        self.attempts += 1
        holder, now = f"h{self.attempts}", self.clock.now_ms
        record = self.run(lambda commit: claim(commit, action, holder, now, LIMITS))
        if record.claim == holder:
            assert not [each for each in self.holding if self._is_live(each, client, identity)]
            assert not {(client, "id", identity), (client, "key", key)} & set(self._fresh())
            self.holding.append(record)
        elif record.outcome is not None:
            outcomes = self._fresh()
            outcome = decode(record.outcome, identity)
            known = outcomes.get((client, "id", identity)) or outcomes.get((client, "key", key))
            assert known == msgspec.structs.replace(outcome, action_id="")
        else:
            assert record.lease_ms > now

    def _is_live(self, record, client, identity):
        same = (record.client_id, record.action_id) == (client, identity)
        stored = self.engine.store.read("g", lambda view: view.action(client, identity)).result()
        held = stored is not None and stored.claim == record.claim and stored.outcome is None
        return same and held and stored.lease_ms > self.clock.now_ms

    def _fresh(self):
        bound = self.clock.now_ms - LIMITS.retention_ms
        return {place: outcome for place, (outcome, at) in self.outcomes.items() if at >= bound}

    @precondition(lambda self: self.holding)
    @rule(data=st.data(), kind=st.sampled_from(["done", "failed", "again"]))
    def end(self, data, kind):
        record = self.holding.pop(data.draw(st.integers(0, len(self.holding) - 1)))
        stored = self.engine.store.read("g", lambda view: view.action(record.client_id, record.action_id)).result()
        mine = stored is not None and stored.claim == record.claim
        number = self.attempts
        outcome = (
            ActionResult(record.action_id, msgspec.Raw(f'{{"n":{number}}}'.encode()), number)
            if kind == "done"
            else ActionFailure(record.action_id, f"CODE{number}", "no", retryable=kind == "again")
        )
        entry = ActionEntry(0, 0, record.client_id, record.action_id, "desk", "do", record.attempts, kind, 0)
        now = self.clock.now_ms
        kept = self.run(lambda commit: record_outcome(commit, record, outcome, entry, now, LIMITS))
        assert kept or not mine
        self.ended.append(record)
        if mine and kind != "again":
            final = msgspec.structs.replace(outcome, action_id="")
            self.outcomes[record.client_id, "id", record.action_id] = (final, now)
            if record.idempotency_key is not None:
                self.outcomes[record.client_id, "key", record.idempotency_key] = (final, now)

    @precondition(lambda self: self.holding)
    @rule(data=st.data())
    def stay(self, data):
        record = data.draw(st.sampled_from(self.holding))
        now = self.clock.now_ms
        self.run(lambda commit: renew(commit, record, now, LIMITS))

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def stay_too_long(self, data):
        record = data.draw(st.sampled_from(self.ended))
        now = self.clock.now_ms

        def stored():
            return self.engine.store.read("g", lambda view: view.action(record.client_id, record.action_id)).result()

        before = stored()
        self.run(lambda commit: renew(commit, record, now, LIMITS))
        assert stored() == before

    @precondition(lambda self: self.holding)
    @rule(data=st.data())
    def crash(self, data):
        self.holding.pop(data.draw(st.integers(0, len(self.holding) - 1)))

    @rule(ms=st.sampled_from([1, 4_000, 11_000, 60_000]))
    def wait(self, ms):
        self.clock.advance(ms)

    @rule()
    def reported_attempts_are_bounded(self):
        log = self.engine.store.read("g", lambda view: view.action_log(None, 100)).result()
        assert len(log) <= LIMITS.kept_entries
        assert [entry.seq for entry in log] == sorted((entry.seq for entry in log), reverse=True)


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
