"""Nested compositions of any depth behave like one adapter: for deltas, states and rows."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.adapters import CompositeAdapter, FanOutAdapter, LifecycleAdapter, LocalDisk, ObjectDeltas, Route
from lakesync.adapters.backends.sqlite import SqliteAdapter
from lakesync.adapters.deltas import DeltaQuery, states_of
from lakesync.model.schema import parse_schema
from tests.conformance.book import make_delta
from tests.conformance.test_adapter_tables import rows
from tests.conformance.test_adapters import batch, everything, texts

TABLES = ("notes", "events")
SCHEMAS = [parse_schema({"table": name, "columns": [{"name": "x", "type": "number"}]}) for name in TABLES]
WAIT = 30.0

kinds = st.sampled_from(["routed", "copied", "tiered"])
places = st.recursive(
    st.sampled_from(["sqlite", "objects"]), lambda inner: st.tuples(kinds, inner, inner), max_leaves=3
)
edits = st.lists(
    st.tuples(st.sampled_from(TABLES), st.integers(1, 3), st.none() | st.integers(0, 9)), min_size=1, max_size=8
)


class Made:
    """A nested adapter, and the databases in which it stores its rows."""

    def __init__(self, folder, place):
        self.folder, self.opened, self.tiers, self.copies = folder, 0, [], []
        self.adapter, self.rows_of = self._made(place, lasting=True)

    def _made(self, place, *, lasting):
        """The adapter, and the databases with each table's rows; unless `lasting`, it can delete deltas."""
        self.opened += 1
        if place == "objects" and lasting:
            return ObjectDeltas(LocalDisk(self.folder / f"{self.opened}")), dict.fromkeys(TABLES, ())
        if place in {"sqlite", "objects"}:
            leaf = SqliteAdapter(self.folder / f"{self.opened}.db")
            return leaf, dict.fromkeys(TABLES, (leaf,))
        kind = place[0]
        first, shown = self._made(place[1], lasting=lasting and kind != "tiered")
        second, other = self._made(place[2], lasting=lasting)
        if kind == "routed":
            return CompositeAdapter([Route(frozenset({"events"}), second)], first), {**shown, "events": other["events"]}
        if kind == "copied":
            self.copies.append(FanOutAdapter(first, {"copy": second}))
            return self.copies[-1], {table: (*shown[table], *other[table]) for table in TABLES}
        self.tiers.append(LifecycleAdapter(first, second, 0))
        return self.tiers[-1], shown

    def settle(self):
        for each in reversed(self.copies):  # the outer adapters must catch up before the inner ones
            assert each.wait_until_replicated(WAIT), each.lags()

    def is_all_of(self, stored):
        """Check each delta once in either order, the rows' states, and the tables of rows."""
        for order in ("arrival", "hlc"):
            found = [each.delta.delta_id for each in everything(self.adapter, DeltaQuery(order=order, limit=2))]
            assert sorted(found) == sorted(each.delta.delta_id for each in stored)
        for schema in SCHEMAS:
            wanted = states_of(each.delta for each in stored if each.delta.table == schema.table)
            ids = [f"r{n}" for n in range(1, 4)]
            states = self.adapter.get_latest_state("g", schema.table, ids)
            assert {row: texts(state) for row, state in states.items()} == {
                row: texts(state) for row, state in wanted.items()
            }
            self.adapter.ensure_schema(schema)
            self.adapter.materialise("g", schema, ids)
            self.settle()
            for leaf in self.rows_of[schema.table]:
                shown = {
                    row: int(cells["x"]) for row, cells in rows(leaf, schema.table).items() if not cells["deleted_at"]
                }
                assert shown == {row: int(texts(state)["x"]) for row, state in wanted.items() if state.visible}


@settings(max_examples=10, deadline=None)
@given(place=st.tuples(kinds, places, places), pushes=st.lists(edits, min_size=1, max_size=2))
def test_nested_compositions_behave_like_one_adapter(tmp_path_factory, place, pushes):
    made, stored, hlc = Made(tmp_path_factory.mktemp("nested"), place), [], 0
    for number, push in enumerate(pushes, 1):
        deltas = []
        for table, row, value in push:
            hlc += 1
            deltas.append(make_delta("c", hlc, f"r{row}", table=table, **({} if value is None else {"x": value})))
        made.adapter.insert_deltas(batch(number, *deltas))
        stored += batch(number, *deltas).deltas
        made.settle()
        made.is_all_of(stored)
        for tier in made.tiers:
            tier.migrate_to_tier()
        made.is_all_of(stored)
    made.adapter.close()
