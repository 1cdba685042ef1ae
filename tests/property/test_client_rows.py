"""After pages and edits in any order, the app sees the merge of a row's deltas."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import given

from lakesync.client.core import ClientCore, ErrorResponse, LocalChange, MemoryStore
from lakesync.model.types import PushResult, RowDelta, SyncPush, SyncResponse
from lakesync.testing import strategies
from tests.property.merge_oracle import merged

cells = st.dictionaries(st.sampled_from("xyz"), st.sampled_from([None, 1, 2, "1", True]), max_size=3)
steps = st.lists(
    st.one_of(
        strategies.histories(max_size=3).map(lambda deltas: ("page", deltas)),
        st.tuples(st.just("edit"), st.none() | cells),
        st.tuples(st.sampled_from(["accepted", "refused", "dropped", "restart"]), st.none()),
    ),
    min_size=3,
    max_size=14,
)


class ComparedRow:
    """A client, and the deltas whose merge it must show."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.core = self._open()
        self.cursor = 0
        self.base: list[RowDelta] = []
        """The gateway's deltas and the accepted ones, since it last sent the row as DELETE and INSERT."""
        for answer in (ErrorResponse("NOT_FOUND", "no checkpoint"), SyncResponse((), 1)):
            self.core.request_pull()
            self.core.next_request()
            self.core.receive(answer)

    def page(self, deltas: list[RowDelta]) -> None:
        """Apply a page: a DELETE ends the row's earlier data, and after an INSERT the DELETE has no further effect."""
        for delta in deltas:
            if delta.op == "DELETE":
                self.base = [delta]
                continue
            if delta.op == "INSERT":
                deaths = [said.stamp for said in self.base if said.op == "DELETE"]
                alive = [said for said in self.base if said.stamp > max(deaths, default=(0, ""))]
                self.base = [said for said in alive if said.op != "DELETE"]
            self.base.append(delta)
        self.core.mode = "pullOnly"
        self.core.request_pull()
        self.core.next_request()
        self.cursor += 256
        self.core.receive(SyncResponse(tuple(deltas), self.cursor))

    def edit(self, values: dict[str, Any] | None) -> None:
        """Make an edit."""
        before = self.seen()
        after = None if values is None else {**(before or {}), **values}
        self.core.record([LocalChange("t", "r", before, after)])

    def push(self, *, kept: bool) -> None:
        """Push every unsent edit; the gateway accepts or postpones it."""
        if not self.store.edits("waiting"):
            return
        self.core.mode = "pushOnly"
        self.core.reset_backoff()
        request = self.core.next_request()
        assert isinstance(request, SyncPush)
        if kept:
            self.base += request.deltas
            self.core.receive(PushResult(1, len(request.deltas)))
        else:
            self.core.receive(ErrorResponse("BACKPRESSURE_ERROR", "later"))

    def drop(self) -> None:
        """Drop the newest edit."""
        self.core.drop([edit.number for edit in self.core.edits()[-1:]])

    def restart(self) -> None:
        """Restart with the store only."""
        self.core = self._open()

    def seen(self) -> dict[str, Any] | None:
        """The row that the app sees."""
        row = self.store.rows.get(("t", "r"))
        return None if row is None else {column: msgspec.json.decode(text) for column, text in row.items()}

    def expected(self) -> dict[str, Any] | None:
        """The merge, by M1 to M3."""
        state = merged([*self.base, *(edit.delta for edit in self.core.edits())])
        if not state["visible"]:
            return None
        return {column: msgspec.json.decode(cell["value"]) for column, cell in state["cells"].items()}

    def _open(self) -> ClientCore:
        return ClientCore(self.store, "me", wall=lambda: 0, monotonic=lambda: 0.0, jitter=lambda: 0.0)

    def play(self, steps: list[tuple[str, Any]]) -> None:
        """Run every step, and check the row after each."""
        for kind, detail in steps:
            if kind == "page":
                self.page(detail)
            elif kind == "edit":
                self.edit(detail)
            elif kind == "dropped":
                self.drop()
            elif kind == "restart":
                self.restart()
            else:
                self.push(kept=kind == "accepted")
            assert self.seen() == self.expected()
            if self.seen() is None and not self.core.edits():
                self.base = []  # no record of a missing row is kept
                assert self.store.known({("t", "r")}) == {}


@given(steps)
def test_the_app_sees_the_merge_of_pages_and_edits(steps: list[tuple[str, Any]]) -> None:
    ComparedRow().play(steps)
