"""Passwords of the operator must not be in errors and logs about an address that cannot be used."""

from __future__ import annotations

import traceback

import pytest

from lakesync.adapters import DeltaQuery, open_adapter
from lakesync.model.errors import LakeSyncError
from lakesync.model.secrets import without_password
from lakesync.staging import open_store
from lakesync.testing import ManualClock

PASSWORD = "hunter2"
PASSWORDS = [PASSWORD, "hunter2:hunter2", "hunter2#hunter2", "hunter2/x", "hunter2?", "hunter2\u2100"]
PLACES = ["h", "", "[h", "h:x", "127.0.0.1:1", "h/d b", "h/db?x=1", "h/db?%zz"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "mysql", "bigquery", "sqlite", "file"])
@pytest.mark.parametrize("password", PASSWORDS)
def test_errors_of_an_adapter_contain_no_password(scheme, place, password):
    with pytest.raises((LakeSyncError, ValueError)) as refused:
        open_adapter(f"{scheme}://me:{password}@{place}").query_deltas_since(DeltaQuery(limit=1))
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("place", [place for place in PLACES if place not in ("h", "127.0.0.1:1")])
@pytest.mark.parametrize("password", PASSWORDS)
def test_errors_of_staging_contain_no_password(place, password):
    with pytest.raises(LakeSyncError) as refused:
        open_store(f"postgresql://me:{password}@{place}", ManualClock()).open(None)
    assert PASSWORD not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("mysql://me:a:b@h/d", "mysql://me:…@h/d"),
        ("mysql://me:a@b@h/d", "mysql://me:…@h/d"),
        ("mysql://me@h/d", "mysql://me@h/d"),
        ("postgresql://h:1/d", "postgresql://h:1/d"),
        ("mysql://me:a#b/c@h/d", "mysql://me:…@h/d"),
        ("postgresql://h/d?user=me&password=a&sslmode=require", "postgresql://h/d?user=me&password=…&sslmode=require"),
        ("s3://b/p?secret_key=a&region=r", "s3://b/p?secret_key=…&region=r"),
        ("https://h/p?sslPassword=a", "https://h/p?sslPassword=…"),
        ('said of "mysql://me:a@h"', 'said of "mysql://me:…@h"'),
    ],
)
def test_a_shown_address_has_no_password(uri, shown):
    assert without_password(uri) == shown
