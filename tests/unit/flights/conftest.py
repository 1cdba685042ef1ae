"""A client's database of the demo."""

from __future__ import annotations

from contextlib import closing

import pytest

from examples.flights.client import Replica


@pytest.fixture
def replica():
    with closing(Replica()) as opened:
        yield opened
