"""L1 to L8, P1 to P3 on a disk that is full at any write: rejected requests have no effect."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given, settings
from structlog.testing import capture_logs

from lakesync.engine import Engine
from lakesync.model.errors import StagingUnavailableError
from lakesync.rules.model import SyncRules
from tests.property.feed_history import History, play
from tests.property.feed_model import StockClient
from tests.property.feed_steps import RULES, people, skews, troubled

ROOM = (0, 100, 4_120, 9_000, 20_000)
"""Bytes that can be written before the disk is full."""
FILES = ("log.db-wal", "state.db-wal", "log.db", "state.db")


@contextmanager
def whole_disk() -> Iterator[None]:
    """Reset this process's limit of file sizes at the end."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def files_end_at(size: int) -> None:
    """Let writes beyond this size fail, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


full = st.tuples(st.just("full"), people, st.sampled_from(FILES), st.sampled_from(ROOM))
room = st.tuples(st.just("room"), people)


class FullDiskHistory(History):
    """A history on a disk that is full from some write on, until there is space again."""

    histories = troubled(st.one_of(full, full, room))
    full = False

    def play(self, steps: Sequence[tuple[Any, ...]]) -> None:
        """As without a full disk; at the end there is space."""
        with whole_disk(), capture_logs():
            super().play(steps)

    def _rest(self) -> None:
        self._make_room()
        super()._rest()

    def _do(self, kind: str, client: StockClient, *detail: Any) -> None:
        match kind:
            case "full":
                file, room = detail
                files_end_at((self.folder / file).stat().st_size + room)
                self.full = True
            case "room":
                self._make_room()
            case _:
                was_full = self.full
                try:
                    super()._do(kind, client, *detail)
                except StagingUnavailableError:
                    assert was_full
                    client.disconnect()
                    self._look_at_rules()

    def _look_at_rules(self) -> None:
        """Check that rejected requests had no effect, except that new rules may be active."""
        self.world.rules = self.world.gateway.config().rules or SyncRules(1, ())
        self.world.look()

    def _crash(self) -> None:
        """There is space afterwards: the files are copied."""
        self._make_room()
        super()._crash()

    def _make_room(self) -> None:
        files_end_at(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
        self.full = False

    def _open(self) -> Engine:
        try:
            return super()._open()
        except StagingUnavailableError:
            assert self.full
            self._make_room()
            return super()._open()


@settings(deadline=None, max_examples=15)
@given(history=FullDiskHistory.histories, skews=skews, rules=st.integers(0, len(RULES) - 1))
@example(  # rows are rebuilt from the log, under the rules, before the first push
    history=[
        ("restart", 0, 1),
        ("edit", 2, "UPDATE", "r3", {"group": "a"}),
        ("push", 2, "whole"),
        ("edit", 1, "UPDATE", "r2", {}),
        ("full", 2, "state.db-wal", 0),
        ("restart", 0, 1),
    ],
    skews=(0, 0, 0),
    rules=4,
)
def test_p1_a_push_that_a_full_disk_rejected_stores_nothing(
    history: list[tuple[Any, ...]], skews: tuple[int, ...], rules: int
) -> None:
    play(history, skews, rules, FullDiskHistory)
