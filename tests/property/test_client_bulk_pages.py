"""A page that the client writes in bulk gives the same rows as a merge row by row, also in a full pull."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any, cast

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakesync.client.core import ClientCore, ClientStore, LocalChange, MemoryStore
from lakesync.client.core.rows import visible_row
from lakesync.client.sqlite.client_store import SqliteClientStore
from lakesync.model.types import Op, RowDelta, SyncResponse
from lakesync.wire.json import encode_response
from lakesync.wire.pages import decode_page
from tests.property.test_client_store import SCHEMA
from tests.unit.client.core_support import delta, error_answer

ROWS = [f"r{number}" for number in range(4)]


class BulkStore(SqliteClientStore):
    """Writes pages of any size in bulk."""

    bulk_from = 0


values = st.fixed_dictionaries(
    {},
    optional={
        "x": st.sampled_from([None, 1, 2.5, 2**70, "no number"]),
        "y": st.sampled_from([None, "one", "zwölf 🎉", "\u2028", 7]),
        "z": st.sampled_from([None, 1, "text", {"b": [1, {"a": None}]}]),
    },
)
saids = st.tuples(
    st.sampled_from(ROWS),
    st.sampled_from(["DELETE", "INSERT", "UPDATE", "DELETE INSERT", "INSERT UPDATE", "DELETE INSERT UPDATE"]),
    st.integers(0, 3),
    values,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["page", "page", "walk", "source"]), st.lists(saids, max_size=6)),
        st.tuples(st.just("edit"), st.sampled_from(ROWS)),
    ),
    max_size=7,
)


class ComparedCores:
    """Two cores with the same input: one merges row by row in memory, one writes pages in bulk."""

    def __init__(self, db: sqlite3.Connection, *, as_json: bool) -> None:
        self._db = db
        self._as_json = as_json
        self._stores: list[ClientStore] = [MemoryStore(), BulkStore(db, [SCHEMA])]
        self.cores = [ClientCore(store, "me", monotonic=lambda: 0.0, jitter=lambda: 1.0) for store in self._stores]
        self._cursor = 0
        self._age = 0

    def play(self, step: tuple[str, Any]) -> None:
        what, said = step
        self._age += 10
        if what == "edit":
            self._edit(said)
            return
        deltas = tuple(each for one in said for each in self._deltas(*one))
        self._cursor += 1000
        for core in self.cores:
            self._page(core, what, deltas)

    def check(self) -> None:
        known = [{key: _spelled(row) for key, row in store.known(self._keys()).items()} for store in self._stores]
        assert known[1] == known[0]
        table = {row_id: cells for row_id, *cells in self._db.execute("SELECT row_id, x IS NULL, y, z IS NULL FROM t")}
        assert table == {row_id: cells for row_id in ROWS if (cells := self._expected(row_id)) is not None}

    def _page(self, core: ClientCore, what: str, deltas: tuple[RowDelta, ...]) -> None:
        core.mode = "pullOnly"
        if what == "walk":
            core.resync()
        core.request_pull("named" if what == "source" and core.cursor else None)
        core.next_request()
        if core.cursor == 0:
            core.receive(error_answer("NOT_FOUND"))
            core.next_request()
        page = SyncResponse(deltas, self._cursor)
        core.receive(decode_page(encode_response(page)) if self._as_json else page)

    def _edit(self, row_id: str) -> None:
        for core in self.cores:
            core.record([LocalChange("t", row_id, None, {"y": f"mine {self._age}"}, at=self._age)])

    def _deltas(self, row_id: str, ops: str, late: int, given: dict[str, Any]) -> list[RowDelta]:
        found = []
        for place, op in enumerate(cast("list[Op]", ops.split())):
            held = {} if op == "DELETE" else given if place < 2 else {"x": self._age}
            found.append(delta(op, row_id, self._age - 15 * late + place, f"client-{late}", **held))
        return found

    def _keys(self) -> list[tuple[str, str]]:
        return [("t", row_id) for row_id in ROWS]

    def _expected(self, row_id: str) -> list[Any] | None:
        store = self._stores[0]
        known, edits = store.known([("t", row_id)]), store.edits_of([("t", row_id)])
        row = visible_row(known["t", row_id].state if known else None, edits.get(("t", row_id), ()))
        if row is None:
            return None
        x, y, z = (msgspec.json.decode(row.get(name, b"null")) for name in "xyz")
        return [x is None, None if y is None else str(y), z is None]


def _spelled(row: Any) -> Any:
    live = {name: (part.stamp, msgspec.json.decode(v)) for part in row.state.live for name, v in part.columns.items()}
    return live, row.state.tombstone, row.state.inserted, row.generation


@settings(deadline=None, max_examples=30)
@given(steps, st.booleans())
@example(
    [("page", [("r0", "INSERT", 0, {"x": 1}), ("r1", "INSERT", 0, {})]), ("walk", [("r1", "INSERT", 0, {"x": 2})])],
    True,
)
@example(
    [("page", [("r0", "INSERT", 0, {"x": 1, "y": "one"})]), ("walk", [("r0", "DELETE INSERT", 0, {"x": 2})])], False
)
@example([("page", [("r0", "INSERT", 0, {})]), ("page", [("r0", "DELETE INSERT", 1, {"x": "no number"})])], True)
@example([("page", [("r0", "INSERT", 0, {"x": 1})]), ("source", [("r0", "DELETE INSERT", 0, {"y": "one"})])], False)
@example(
    [
        ("page", [("r0", "INSERT", 0, {"x": 1}), ("r1", "INSERT", 0, {"y": "one"}), ("r2", "INSERT", 0, {"x": 2})]),
        ("page", [("r0", "UPDATE", 0, {"x": 2}), ("r1", "UPDATE", 3, {"x": 2}), ("r2", "UPDATE", 0, {"z": [1]})]),
        ("page", [("r0", "UPDATE", 0, {}), ("r1", "UPDATE", 0, {"y": 7}), ("r2", "UPDATE", 0, {"z": None})]),
    ],
    True,
)
def test_the_bulk_path_equals_the_row_by_row_merge(steps: list[tuple[str, Any]], as_json: bool) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        both = ComparedCores(db, as_json=as_json)
        for step in steps:
            both.play(step)
            both.check()
