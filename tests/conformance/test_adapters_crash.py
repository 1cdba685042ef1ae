"""A writer that is killed at any point leaves the old or the new object, and nothing else in a listing."""

from __future__ import annotations

import pytest

from lakesync.adapters import LocalDisk
from lakesync.model.crash_points import VARIABLE
from tests.forked import run_code

SCRIPT = (
    "import sys; from lakesync.adapters import LocalDisk;"
    "LocalDisk(sys.argv[1]).put_object('a/k', b'new' * 100_000, if_absent=sys.argv[2] == 'once')"
)


@pytest.mark.parametrize("how", ["once", "over"])
@pytest.mark.parametrize(("crash_at", "placed"), [("local.before_place", False), ("local.after_place", True)])
def test_a_killed_writer_leaves_the_old_or_the_new_object(tmp_path, crash_at, placed, how):
    store = LocalDisk(tmp_path)
    if how == "over":
        store.put_object("a/k", b"old")
    assert run_code(SCRIPT, str(tmp_path), how, **{VARIABLE: crash_at}) == -9
    expected = b"new" * 100_000 if placed else b"old"
    there = placed or how == "over"
    assert [info.key for info in store.list_objects().objects] == ["a/k"] * there
    if there:
        assert store.get_object("a/k") == expected
    assert store.put_object("a/k", b"repeat", if_absent=True) is not there
