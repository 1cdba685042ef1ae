"""R8: exactly the rows that the rules, evaluated directly on the row before and after, do not show are rejected."""

from __future__ import annotations

import copy

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lakesync.engine.checks import check_scope
from lakesync.feed.row_buckets import keys_of
from lakesync.model.errors import ForbiddenError
from lakesync.model.merge import RowState
from lakesync.rules.keys import BucketIndex
from lakesync.rules.model import matches
from lakesync.staging.records import StoredRow
from lakesync.testing import strategies

deltas = strategies.deltas(
    tables=st.sampled_from(["t", "u"]),
    rows=st.sampled_from(["1", "2"]),
    clients=st.sampled_from(["a", "b"]),
    stamps=st.integers(1, 6),
    columns=strategies.column_values(st.sampled_from(["x", "y", "z"]), strategies.filter_values, 3),
)


class Rows:
    """The stored rows, as `check_scope` gets them."""

    def __init__(self, history, index):
        self.states: dict = {}
        self.index = index
        for delta in history:
            self.states.setdefault(delta.key, RowState()).merge(delta)

    def rows(self, keys):
        found = {key: StoredRow(key, arrival=1, state=self.states[key]) for key in keys if key in self.states}
        for row in found.values():
            row.keys = keys_of(row, self.index)
        return found

    def keys_of(self, claims):
        """A client's bucket keys, among those that rows have."""
        stored = {key for row in self.rows(self.states).values() for key in row.keys}
        return self.index.client_keys(claims, lambda prefix: [key for key in stored if key.startswith(prefix)])


def outside(states, rules, claims):
    return {
        key
        for key, state in states.items()
        if state.visible
        and not matches(rules, key[0], {name: msgspec.json.decode(raw) for name, raw in state.values().items()}, claims)
    }


def unfounded(states, pushed, now_ms):
    """Missing rows that the push deletes without having written them, or ahead of the server's clock."""
    written = {delta.key for delta in pushed if delta.op != "DELETE"}
    return {
        delta.key
        for delta in pushed
        if delta.op == "DELETE"
        and (
            (delta.key not in states and delta.key not in written)
            or (not (delta.key in states and states[delta.key].visible) and delta.hlc >> 16 > now_ms)
        )
    }


@given(
    strategies.rules(),
    strategies.claims,
    st.lists(deltas, max_size=6),
    st.lists(deltas, min_size=1, max_size=6),
    st.sampled_from(["visible", "rules"]),
    st.sampled_from([-1, 0]),
    st.booleans(),
)
def test_r8_exactly_the_deltas_of_hidden_rows_are_rejected(rules, claims, history, pushed, scope, now_ms, in_line):
    """`in_line`: the stored keys of rows are those of the active rules."""
    rows = Rows(history, BucketIndex(rules))
    named = {delta.key for delta in pushed}
    before = {key: state for key, state in rows.states.items() if key in named}
    after = copy.deepcopy(before)
    for delta in pushed:
        after.setdefault(delta.key, RowState()).merge(delta)
    expected = outside(before, rules, claims)
    if rules.buckets:
        expected |= unfounded(before, pushed, now_ms)
    if scope == "rules":
        expected |= outside(after, rules, claims)
    untouched = copy.deepcopy(rows.states)
    try:
        keys = rows.keys_of(claims) if in_line else frozenset()
        check_scope(pushed, claims, rows.index, scope, now_ms, rows.rows(named), keys)
        refused = []
    except ForbiddenError as error:
        refused = [each.delta_id for each in error.rejected]
    assert refused == [delta.delta_id for delta in pushed if delta.key in expected]
    assert rows.states == untouched
