"""What the end-to-end tests start."""

import pytest

from tests.e2e.up_support import Up


@pytest.fixture
def up(tmp_path):
    """A `lakesync up` that is not started yet; it ends with the test, whatever becomes of it."""
    running = Up(tmp_path / "data")
    yield running
    running.end()
