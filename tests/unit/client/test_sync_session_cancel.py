"""Cancelling the synchronisations that an app's threads have started."""

import threading
from contextlib import AbstractContextManager
from unittest.mock import Mock

import pytest

from lakesync.client.sync import sync_session
from lakesync.client.sync.sync_session import SyncSession

DEADLINE = 60.0


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> SyncSession:
    monkeypatch.setattr(sync_session, "SyncLock", Mock())
    return SyncSession(Mock(), Mock(), Mock(), Mock())


def start_waiting(session: SyncSession) -> tuple[threading.Thread, list[bool]]:
    """Start a thread that waits for its turn to synchronise.

    Returns:
        The thread, and whether its synchronisation was cancelled, once it has ended.
    """
    waits, is_cancelled, exclusive = threading.Event(), list[bool](), session.exclusive

    def run() -> None:
        with session.foreground():
            is_cancelled.append(session.is_cancelled)

    def enter() -> AbstractContextManager[None]:
        waits.set()
        return exclusive()

    session.exclusive = enter  # type: ignore[method-assign]
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert waits.wait(DEADLINE)
    return thread, is_cancelled


def test_a_cancelled_synchronisation_ends_although_another_one_waits(session: SyncSession) -> None:
    with session.foreground():
        session.cancel()
        thread, is_cancelled = start_waiting(session)
        assert session.is_cancelled
        with session.foreground():
            assert session.is_cancelled
        assert session.is_foreground
        assert session.is_cancelled
    thread.join(DEADLINE)
    assert is_cancelled == [False]


def test_a_waiting_synchronisation_is_cancelled(session: SyncSession) -> None:
    with session.exclusive():
        thread, is_cancelled = start_waiting(session)
        session.cancel()
    thread.join(DEADLINE)
    assert is_cancelled == [True]
    with session.foreground():
        assert not session.is_cancelled
