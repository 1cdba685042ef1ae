"""Fixtures of the end-to-end tests."""

import pytest

from tests.e2e.up_support import Up


@pytest.fixture
def up(tmp_path):
    """A `lakesync up` that is not started yet; it is stopped at the end of the test."""
    running = Up(tmp_path / "data")
    yield running
    running.end()
