"""A manual clock."""

import pytest

from lakesync.testing import ManualClock


@pytest.fixture
def clock():
    """The gateway's clock."""
    return ManualClock(1_700_000_000_000)
