"""Adapters are found by the scheme of their URI; installed packages add schemes."""

from __future__ import annotations

import sys

import pytest

from lakesync.adapters import LocalDisk, ObjectDeltas, SqliteAdapter, as_database, open_adapter, schemes
from lakesync.adapters.uri import BackendUri
from lakesync.model.errors import ConfigurationError


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with two adapters, one of which cannot be loaded."""
    (tmp_path / "brought.py").write_text(
        "from lakesync.adapters import LocalDisk\ndef open_it(uri): return LocalDisk('/' + uri.partition(':')[2])\n"
    )
    about = tmp_path / "brought-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[lakesync.adapters]\nmine = brought:open_it\nbroken = brought:absent\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("brought", None)


def test_built_in_schemes_are_listed(tmp_path):
    disk = open_adapter(f"file://{tmp_path}/a%20b")
    assert isinstance(disk, LocalDisk)
    assert disk.folder == tmp_path / "a b"
    database = open_adapter(f"sqlite://{tmp_path}/d.db")
    assert isinstance(database, SqliteAdapter)
    assert as_database(database) is database
    assert isinstance(as_database(disk, "json"), ObjectDeltas)
    database.close()


def test_an_installed_package_adds_a_scheme(installed):
    assert {"broken", "file", "mine", "sqlite"} <= {*schemes()}
    found = open_adapter("mine:somewhere")
    assert isinstance(found, LocalDisk)
    assert str(found.folder) == "/somewhere"


def test_an_option_may_be_a_reference(monkeypatch):
    uri = "bigquery://bikes/warehouse?location=EU&endpoint=env:EMULATOR"
    monkeypatch.delenv("EMULATOR", raising=False)
    with pytest.raises(ConfigurationError, match="endpoint of bigquery://bikes refers to the variable EMULATOR"):
        BackendUri.parse(uri, frozenset({"location", "endpoint"}))
    with pytest.raises(ConfigurationError, match="has the option 'endpoint', which is unknown"):
        BackendUri.parse(uri, frozenset({"location"}))  # the reference of an unknown option is not read
    monkeypatch.setenv("EMULATOR", "http://127.0.0.1:9050")
    options = BackendUri.parse(uri, frozenset({"location", "endpoint"})).options
    assert options == {"location": "EU", "endpoint": "http://127.0.0.1:9050"}


def test_an_invalid_uri_is_reported(installed):
    with pytest.raises(ConfigurationError, match=r"'gopher' \(known: .*broken, .*mine"):
        open_adapter("gopher://hole")
    with pytest.raises(ConfigurationError, match="broken"):
        open_adapter("broken:it")
    for uri in ("file://", "file:///", "file://host/path", "sqlite:relative"):
        with pytest.raises(ConfigurationError, match="absolute path"):
            open_adapter(uri)


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("file:///a#b", "write # as %23"),
        ("s3://bucket/prefix?endpoint=minio:9000", "=minio:9000' has an endpoint that is not a URL: write http://"),
        (
            "bigquery://project/dataset?endpoint=127.0.0.1:9050",
            "=127.0.0.1:9050' has an endpoint that is not a URL: write http://",
        ),
        ("mysql://u:hush@host/db#1", "write # as %23"),
        ("file:///a?b", "write [?] in a path as %3F"),
        ("sqlite:///a.db?mode=ro", "write [?] in a path as %3F"),
    ],
)
def test_a_uri_that_would_name_another_place_is_rejected(uri, why):
    with pytest.raises(ConfigurationError, match=why) as raised:
        open_adapter(uri)
    assert "hush" not in str(raised.value)
