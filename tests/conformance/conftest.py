"""Fixtures: a store of each kind, and an adapter."""

from __future__ import annotations

import pytest

from lakesync.testing import ManualClock
from tests.conformance.adapter_places import DATABASES
from tests.conformance.book import Book
from tests.conformance.places import PLACES, Place


@pytest.fixture
def clock():
    """The server's clock, set by the test."""
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def book():
    """The minimal engine."""
    return Book()


@pytest.fixture(params=list(PLACES))
def place(request, clock):
    """The location of a test's data, for each kind of store."""
    here = Place(PLACES[request.param](request), clock)
    yield here
    here.close()


@pytest.fixture
def store(place, book):
    """An open store with the gateway `g`."""
    opened = place.open(book)
    opened.ensure_gateway("g")
    return opened


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    """The URL of a store that does not exist yet."""
    return f"sqlite://{tmp_path / 'staging'}" if request.param == "sqlite" else request.getfixturevalue("own_database")


@pytest.fixture
def adapter(kind, tmp_path):
    """An empty adapter of a kind, which the module's own fixture `kind` names."""
    opened = DATABASES[kind](tmp_path)
    yield opened
    opened.close()
