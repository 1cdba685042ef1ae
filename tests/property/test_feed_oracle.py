"""L1, L3, L4, L5, L7, R1 to R5: whatever is pushed by whom, in which order, every client ends with its rows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from lakesync.engine import Engine
from lakesync.rules.model import parse_rules
from lakesync.staging.sqlite import SqliteStore
from lakesync.types import RowDelta
from tests.property.feed_model import PlainClient, World

RULES = {
    "version": 1,
    "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "group", "op": "eq", "value": "jwt:group"}]}],
}
START = 1_700_000_000_000
ROWS = ["r1", "r2", "r3"]
GROUPS = ["a", "b"]
PEOPLE = [("c1", "a"), ("c2", "b"), ("c3", "a")]

values = st.fixed_dictionaries(
    {}, optional={"group": st.sampled_from(GROUPS), "x": st.integers(0, 3), "y": st.integers(0, 3)}
)
edit = st.tuples(
    st.just("edit"),
    st.integers(0, 2),
    st.sampled_from(["INSERT", "UPDATE", "UPDATE", "DELETE"]),
    st.sampled_from(ROWS),
    values,
)
other = st.tuples(
    st.sampled_from(["push", "push", "pull", "pull", "lost pull", "repeat", "reload", "restart"]),
    st.integers(0, 2),
    st.integers(1, 3),
)
histories = st.lists(st.one_of(edit, edit, other, other), max_size=25)
skews = st.tuples(*[st.sampled_from([-30, -3, 0, 3])] * 3)


class History:
    """One history, played against a fresh gateway and compared with the model in the end."""

    def __init__(self, folder: Path, skews: Sequence[int], filtered: bool) -> None:
        self.folder = folder
        self.now = START
        self.clients = [PlainClient(name, group, skew) for (name, group), skew in zip(PEOPLE, skews, strict=True)]
        self.world = World(self._open(), filtered)
        self.last: dict[str, tuple[RowDelta, ...]] = {}
        if filtered:
            self.world.gateway.set_rules(parse_rules(RULES))

    def play(self, steps: list[tuple[Any, ...]]) -> None:
        """Do every step, then let everybody push and pull until nothing is left."""
        for kind, place, *detail in steps:
            self.now += 1
            self._do(kind, self.clients[place], *detail)
        for client in self.clients:
            self._push(client)
        for client in self.clients:
            client.catch_up(self.world.gateway, 2)
            assert client.rows == self.world.visible_to(client), client.name
            leaked = client.told - client.named - self.world.ever_visible.get(client.name, set())
            assert not leaked, f"{client.name} was told of {leaked}"

    def close(self) -> None:
        """Release the store."""
        self.world.engine.close()

    def _open(self) -> Engine:
        engine = Engine(SqliteStore(self.folder, lambda: self.now), lambda: self.now)
        engine.open()
        return engine

    def _push(self, client: PlainClient) -> None:
        sent = client.push(self.world.gateway)
        if sent:
            self.last[client.name] = sent
            self.world.pushed(sent, self.clients)

    def _do(self, kind: str, client: PlainClient, *detail: Any) -> None:
        match kind:
            case "edit":
                op, row_id, values = detail
                client.edit(op, row_id, values, self.now)
            case "push":
                self._push(client)
            case "pull" | "lost pull":
                self._push(client)
                if kind == "lost pull":
                    client.ask(self.world.gateway, *detail)
                client.take(client.ask(self.world.gateway, *detail))
            case "repeat":
                if client.name in self.last and not client.outbox:
                    client.send(self.world.gateway, self.last[client.name])
            case "reload":
                client.reload()
            case "restart":
                self.close()
                self.world.engine = self._open()


@pytest.mark.parametrize("filtered", [False, True])
@settings(deadline=None)
@given(steps=histories, skews=skews)
@example(
    steps=[("edit", 0, "INSERT", "r1", {}), ("pull", 0, 1), ("edit", 0, "UPDATE", "r2", {"group": "a"})],
    skews=(0, 0, 0),
)
@example(
    steps=[
        ("edit", 1, "INSERT", "r1", {}),
        ("pull", 1, 1),
        ("edit", 1, "UPDATE", "r2", {"group": "a"}),
        ("edit", 1, "INSERT", "r2", {}),
    ],
    skews=(0, 0, 0),
)
def test_every_client_ends_with_its_rows(filtered: bool, steps: list[tuple[Any, ...]], skews: tuple[int, ...]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="feed-"))
    history = History(folder, skews, filtered)
    try:
        history.play(steps)
    finally:
        history.close()
        shutil.rmtree(folder)


def test_a_client_that_found_nothing_is_still_new(tmp_path: Path) -> None:
    history = History(tmp_path, (0, 0, 0), filtered=False)
    try:
        early, writer, _ = history.clients
        early.take(early.ask(history.world.gateway, 10))
        writer.edit("INSERT", "r1", {"x": 1}, START)
        history._push(writer)
        assert [delta.op for delta in early.ask(history.world.gateway, 10).deltas] == ["INSERT"]
    finally:
        history.close()
