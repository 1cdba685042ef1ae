"""Closing a session, a part of which cannot be closed."""

import threading
from contextlib import contextmanager
from unittest.mock import Mock

import pytest

from lakesync.client.sync.sync_session import SyncSession
from lakesync.model.errors import ConfigurationError

SCHEMAS = [{"table": "notes", "columns": [{"name": "text", "type": "string"}]}]


def test_replica_and_locks_are_released_if_the_transport_cannot_be_closed() -> None:
    session = SyncSession.__new__(SyncSession)
    session._lock = threading.RLock()
    session.sync_lock = Mock()
    session.replica = Mock()
    session.transport = Mock(close=Mock(side_effect=OSError("broken")))
    with pytest.raises(OSError, match="broken"):
        session.close()
    session.replica.close.assert_called_once_with()
    session.sync_lock.release.assert_called_once_with()


def test_a_client_that_is_closed_while_a_synchronisation_waits_keeps_no_lock(opened) -> None:
    """The reopened client could not synchronise until the first one was garbage-collected."""
    alice = opened()
    session = alice.coordinator._session

    @contextmanager
    def closed_meanwhile():
        alice.close()
        with lock:
            yield

    lock, session._lock = session._lock, closed_meanwhile()
    session._lock.acquire, session._lock.release = lock.acquire, lock.release
    with pytest.raises(ConfigurationError, match="closed"):
        alice.sync()
    opened().sync()
