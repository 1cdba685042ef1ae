"""Closing a session of which a part cannot be closed."""

import threading
from unittest.mock import Mock

import pytest

from lakesync.client.sync.sync_session import SyncSession


def test_replica_and_locks_are_released_if_the_transport_cannot_be_closed() -> None:
    session = SyncSession.__new__(SyncSession)
    session._lock = threading.RLock()
    session._sync_lock = Mock()
    session.replica = Mock()
    session.transport = Mock(close=Mock(side_effect=OSError("broken")))
    with pytest.raises(OSError, match="broken"):
        session.close()
    session.replica.close.assert_called_once_with()
    session._sync_lock.release.assert_called_once_with()
