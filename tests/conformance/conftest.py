"""A store of each kind, and an adapter."""

from __future__ import annotations

import pytest

from lakesync.testing import ManualClock
from tests.conformance.adapter_places import DATABASES
from tests.conformance.book import Book
from tests.conformance.places import PLACES, Place


@pytest.fixture
def clock():
    """The server's clock, by hand."""
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def book():
    """The tiny engine."""
    return Book()


@pytest.fixture(params=list(PLACES))
def place(request, clock):
    """Where a test's data lives, on each kind of store in turn."""
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
    """Where a store has never been."""
    return f"sqlite://{tmp_path / 'staging'}" if request.param == "sqlite" else request.getfixturevalue("own_database")


@pytest.fixture
def adapter(kind, tmp_path):
    """An empty place of a kind, which the module's own fixture `kind` names."""
    opened = DATABASES[kind](tmp_path)
    yield opened
    opened.close()
