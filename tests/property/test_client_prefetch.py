"""A client that prefetches pages ends with every row, despite failures, kills and concurrent writes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

import lakesync
from lakesync.client import Client, LocalTransport
from lakesync.client.core import CoreLimits
from lakesync.client.errors import UnreachableError
from lakesync.client.sync import prefetch
from lakesync.model.types import SyncPull, SyncResponse

TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}, {"name": "n", "type": "number"}]}
ROWS = [f"r{number:02}" for number in range(24)]
PAGE = 2
DEADLINE = 60.0

writes = st.tuples(
    st.just("write"), st.lists(st.tuples(st.sampled_from(["put", "put", "put", "delete"]), st.sampled_from(ROWS)))
)
syncs = st.tuples(
    st.just("sync"),
    st.sampled_from(["nothing", "write", "kill", "cut"]),
    st.integers(1, 6),
    st.integers(0, 12),
    st.sampled_from(ROWS),
)
steps = st.lists(st.one_of(writes, writes, syncs), max_size=8)


class Killed(BaseException):
    """Simulates the end of the process."""


class LossyTransport(LocalTransport):
    """Loses the answer to one pull."""

    def __init__(self, gateway: Any) -> None:
        super().__init__(gateway)
        self.pulls_until_loss = 0

    def pull(self, pull: SyncPull) -> SyncResponse:
        page = super().pull(pull)
        self.pulls_until_loss -= 1
        if self.pulls_until_loss == 0:
            raise UnreachableError("the answer was lost")
        return page


class World:
    """Alice writes rows, and Bob pulls them in small pages."""

    def __init__(self, gateway: Any, folder: Path) -> None:
        self._gateway, self._folder = gateway, folder
        self._count = 0
        self.alice = lakesync.open(folder / "alice.db", client_id="alice", schemas=[TODOS], transport=self._local())
        self.bob = self._bob()

    def close(self) -> None:
        self.alice.close()
        self.bob.close()

    def write(self, client: Client, what: str, row_id: str) -> None:
        self._count += 1
        if what == "put":
            client["todos"].upsert(row_id, title=client.client_id, n=self._count)
        elif row_id in client["todos"]:
            client["todos"].delete(row_id)

    def sync(self, what: str, page: int, lost: int, row_id: str) -> None:
        """Let Bob pull; before his page with that number is written, every possible page is prefetched."""
        transport = self.bob.transport
        assert isinstance(transport, LossyTransport)
        transport.pulls_until_loss = lost
        with self._before_page(what, page, row_id), suppress(UnreachableError, Killed):
            self.bob.sync()
        transport.pulls_until_loss = 0
        if what in ("kill", "cut"):
            self.bob.close()
            if (saved := self._folder / "saved").exists():
                shutil.copytree(saved, self._folder / "bob", dirs_exist_ok=True)
                shutil.rmtree(saved)
            self.bob = self._bob()

    @contextmanager
    def _before_page(self, what: str, number: int, row_id: str) -> Iterator[None]:
        replica = self.bob.coordinator.replica
        receive, seen = replica.receive, 0

        def watched(answer: Any) -> Any:
            nonlocal seen
            if isinstance(answer, SyncResponse):
                seen += 1
                self._wait_for_pages()
                if what == "write" and seen == number:
                    self.write(self.bob, "put", row_id)
                if seen == (1 if what == "cut" else number) and what in ("kill", "cut"):
                    self._save()
                if what in ("kill", "cut") and seen == number:
                    raise Killed
            return receive(answer)

        replica.receive = watched  # type: ignore[method-assign]
        try:
            yield
        finally:
            replica.receive = receive  # type: ignore[method-assign]

    def _save(self) -> None:
        """Copy the present files, as a kill at this time or a later power cut would leave them."""
        shutil.copytree(self._folder / "bob", self._folder / "saved")

    def _wait_for_pages(self) -> None:
        thread = self.bob.coordinator._session.exchange.prefetcher._thread

        def is_waiting() -> bool:
            return bool(thread._error or len(thread._pages) == prefetch.MAX_PAGES or not thread._thread.is_alive())

        if thread is not None:
            with thread._changed:
                assert thread._changed.wait_for(is_waiting, DEADLINE)

    def _bob(self) -> Client:
        place = self._folder / "bob"
        place.mkdir(exist_ok=True)
        limits, transport = CoreLimits(pull_deltas=PAGE), LossyTransport(self._gateway)
        return lakesync.open(place / "app.db", client_id="bob", schemas=[TODOS], transport=transport, limits=limits)

    def _local(self) -> LocalTransport:
        return LocalTransport(self._gateway)


def _rows(client: Client) -> list[Any]:
    return sorted(client.query("SELECT row_id, title, n FROM todos"), key=lambda row: str(row["row_id"]))


MANY = ("write", [("put", row_id) for row_id in ROWS])
FEW = ("write", [("delete", row_id) for row_id in ROWS[:12]])
PLAIN = ("sync", "nothing", 1, 0, "r00")


@settings(deadline=None, max_examples=12)
@given(steps)
@example([MANY, ("sync", "kill", 2, 0, "r00"), ("write", [("delete", "r03"), ("put", "r20")]), PLAIN])
@example([MANY, ("sync", "cut", 3, 0, "r00"), ("write", [("delete", "r23")]), ("sync", "write", 1, 3, "r01")])
@example([MANY, ("sync", "write", 1, 5, "r03"), MANY, ("sync", "write", 2, 0, "r04")])
@example([MANY, PLAIN, FEW, ("sync", "write", 1, 0, "r04")])
def test_a_prefetching_client_converges(steps: list[Any]) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world = World(stack.enter_context(lakesync.open_gateway("g")), folder)
        stack.callback(world.close)
        for what, *arguments in steps:
            if what == "sync":
                world.sync(*arguments)
                continue
            for each in arguments[0]:
                world.write(world.alice, *each)
            world.alice.sync()
        for client in (world.bob, world.alice, world.bob):
            client.sync()
        assert _rows(world.bob) == _rows(world.alice)
