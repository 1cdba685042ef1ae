"""An erasure that a crash interrupted is completed when the store is opened."""

from __future__ import annotations

import pytest

from lakesync.engine import Engine
from lakesync.model.crash_points import VARIABLE
from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.sqlite import SqliteStore, WriteBehindLimits
from tests.conformance.erased_world import SECRET, World, files_with
from tests.conformance.places import postgres
from tests.conformance.power_cut import copy_at_once
from tests.forked import run_code

SCRIPT = """
import sys
from lakesync.engine import Engine
from lakesync.staging import open_store
from lakesync.testing import ManualClock

clock = ManualClock(int(sys.argv[2]))
engine = Engine(open_store(sys.argv[1], clock), clock)
engine.open()
kind, *target = sys.argv[3:]
engine.store.erase_row("g", *target) if kind == "row" else engine.store.erase_client("g", *target)
"""
POINTS = ("erasure.requested", "erasure.redacted", "erasure.applied", "erasure.purged", "staging.after_commit:2")
REWRITE_POINTS = [f"erasure.{step}:{file}" for step in ("copied", "unlogged", "renamed") for file in (1, 2)]
"""A place for each step of a SQLite file's rewrite: 1 is `log.db`, 2 `state.db`."""


@pytest.mark.parametrize("crash_at", [*POINTS, *REWRITE_POINTS])
@pytest.mark.parametrize("target", [("row", "notes", "r1"), ("client", "x")], ids=["row", "client"])
def test_an_interrupted_erasure_is_completed_on_opening(tmp_path, clock, crash_at, target):
    _crash_and_finish(f"sqlite://{tmp_path / 'staging'}", clock, crash_at, target)
    files = sorted((tmp_path / "staging").iterdir())
    assert [file.name for file in files] == ["log.db", "owner.lock", "state.db"]
    assert files_with(tmp_path / "staging", SECRET) == []


@pytest.mark.parametrize("crash_at", POINTS)
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(("row", "notes", "r1"), id="row", marks=pytest.mark.deep),
        pytest.param(("client", "x"), id="client"),
    ],
)
def test_an_interrupted_erasure_on_postgres_is_completed_on_opening(request, clock, crash_at, target):
    _crash_and_finish(postgres(request), clock, crash_at, target)


def test_a_store_opens_although_an_interrupted_erasure_cannot_be_completed_yet(tmp_path, clock, monkeypatch):
    world = World(f"sqlite://{tmp_path / 'staging'}", clock)
    world.write("x", "r1", name=SECRET)

    def no_room(_):
        raise StagingUnavailableError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "_purge", no_room)
        with pytest.raises(StagingUnavailableError, match="full"):
            world.store.erase_row("g", "notes", "r1")
        world.close()
        world.open()
        assert [erasure.done_ms for erasure in world.store.erasures("g")] == [None]
        world.write("a", "r2", name="kept")
    world.close()
    world.open()
    (erasure,) = world.store.erasures("g")
    assert erasure.done_ms is not None
    assert (erasure.deltas, erasure.row_count) == (1, 1)
    assert set(world.pull("c")) == {"r2"}
    world.close()


@pytest.mark.parametrize("target", ["row", "client"])
def test_clients_drop_a_row_that_was_only_in_memory_when_a_crash_interrupted_its_erasure(
    tmp_path, clock, monkeypatch, target
):
    def open_lazily(self):
        store = SqliteStore(tmp_path / "live", clock, WriteBehindLimits(3600, 10**9, 10**12))
        self.engine = Engine(store, clock)
        self.engine.open()
        self.store, self.gateway = store, self.engine.gateway("g")

    with monkeypatch.context() as patched:
        patched.setattr(World, "open", open_lazily)
        world = World("", clock)
    world.write("a", "r2", name="kept")
    world.write("x", "r1", name=SECRET)
    world.write("x", "r2", phone=SECRET)
    assert set(world.pull("b")) == {"r1", "r2"}

    def cut_power(name):
        if name == "erasure.redacted":
            copy_at_once(world.store, tmp_path / "copy")

    with monkeypatch.context() as patched:
        patched.setattr("lakesync.staging.erasing_store.crash_point", cut_power)
        if target == "row":
            world.store.erase_row("g", "notes", "r1")
        else:
            world.store.erase_client("g", "x")
    world.close()
    world.url = f"sqlite://{tmp_path / 'copy'}"
    world.open()
    after_row = {"r2": {"name": "kept", "phone": SECRET}}
    assert world.pull("b") == (after_row if target == "row" else {"r2": {"name": "kept"}})
    world.close()


def _crash_and_finish(url, clock, crash_at, target):
    world = World(url, clock)
    world.write("x", "r1", name=SECRET)
    world.write("a", "r2", name="kept")
    world.write("x", "r2", phone=SECRET if target[0] == "client" else "kept")
    world.close()
    assert run_code(SCRIPT, url, str(clock.now_ms), *target, **{VARIABLE: crash_at}) == -9
    world.open()
    (erasure,) = world.store.erasures("g")
    assert erasure.done_ms is not None
    assert (erasure.deltas, erasure.row_count) == ((1, 1) if target[0] == "row" else (2, 2))
    assert world.pull("c")["r2"]["name"] == "kept"
    assert set(world.rows["c"]) == {"r2"}
    assert SECRET not in str(world.seen)
    assert SECRET not in str(world.logged())
    world.close()
