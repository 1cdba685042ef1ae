"""Composed adapters: routes, copies and tiers."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from lakesync.adapters import (
    CompositeAdapter,
    DeltaBatch,
    DeltaQuery,
    FanOutAdapter,
    LifecycleAdapter,
    LocalDisk,
    ObjectDeltas,
    Route,
    SqliteAdapter,
    StoredDelta,
    migrate_adapter,
)
from lakesync.adapters import fan_out as fan_out_module
from lakesync.adapters.arrow_access import copy_page
from lakesync.adapters.deltas import position_of
from lakesync.adapters.digests import DigestScope
from lakesync.model.crash_points import VARIABLE
from lakesync.model.errors import AdapterError, ConfigurationError, IntegrityError
from lakesync.model.hlc import encode
from tests.conformance.book import make_delta
from tests.conformance.test_adapter_tables import NOTES, rows
from tests.conformance.test_adapters import batch, everything, texts
from tests.forked import run_code

DAY = 86_400_000
WAIT = 30.0


@pytest.fixture
def databases(tmp_path):
    """Databases by name."""
    opened: dict[str, SqliteAdapter] = {}

    def open_one(name):
        if name not in opened:
            opened[name] = SqliteAdapter(tmp_path / f"{name}.db")
        return opened[name]

    yield open_one
    for each in opened.values():
        each.close()


def identities(adapter, query=None):
    return [stored.identity for stored in everything(adapter, query)]


def aged(count: int, start: int = 0):
    """A batch with ten deltas for each day, oldest first."""
    made = [make_delta("c", encode((start + n) * DAY // 10, 0), f"r{n % 7}", x=n) for n in range(count)]
    return batch(1, *made)


# -- routes ------------------------------------------------------------------------------------------------------------


def test_each_table_is_stored_in_its_route(databases, tmp_path):
    objects = ObjectDeltas(LocalDisk(tmp_path / "objects"))
    composite = CompositeAdapter([Route(frozenset({"events"}), objects)], databases("default"))
    made = batch(1, make_delta("c", 1, "n", x=1), make_delta("c", 2, "e", table="events", x=2))
    assert composite.insert_deltas(made) == composite.insert_deltas(made)
    assert [stored.delta.row_id for stored in everything(objects)] == ["e"]
    assert [stored.delta.row_id for stored in everything(databases("default"))] == ["n"]
    assert [stored.delta.row_id for stored in everything(composite)] == ["n", "e"]
    assert [stored.delta.row_id for stored in everything(composite, DeltaQuery(tables=("events",)))] == ["e"]
    composite.ensure_schema(NOTES)
    assert composite.materialise("g", NOTES, ["n"]) == 1
    assert rows(databases("default")).keys() == {"n"}
    with pytest.raises(ConfigurationError, match="'events' has two routes"):
        CompositeAdapter([Route(frozenset({"events"}), each) for each in (objects, objects)], objects)


# -- copies ------------------------------------------------------------------------------------------------------------


class Stoppable:
    """A database that can be made to fail."""

    def __init__(self, adapter, error=AdapterError):
        self.adapter = adapter
        self.error = error
        self.refuses = False

    def insert_deltas(self, made):
        if self.refuses:
            raise self.error("it is switched off")
        return self.adapter.insert_deltas(made)

    def __getattr__(self, name):
        if name in ("insert_arrow", "query_arrow"):
            raise AttributeError(name)
        return getattr(self.adapter, name)


@pytest.mark.parametrize("error", [AdapterError, ValueError])
def test_a_failing_secondary_does_not_block_writes_and_catches_up(databases, error):
    slow = Stoppable(databases("secondary"), error)
    fan_out = FanOutAdapter(databases("primary"), {"copy": slow, "other": databases("other")}, first_wait_seconds=0.01)
    slow.refuses = True
    for number in range(1, 6):
        made = batch(number, make_delta("c", number, "r", x=number))
        assert fan_out.insert_deltas(made).deltas == 1
    failing = threading.Event()
    for _ in range(3000):
        copy, _ = fan_out.lags()
        if copy.failures:
            break
        failing.wait(0.01)
    assert "switched off" in copy.error
    assert len(everything(fan_out)) == 5
    assert everything(databases("secondary")) == []
    slow.refuses = False
    assert fan_out.wait_until_replicated(WAIT)
    for name in ("secondary", "other"):
        assert identities(databases(name)) == identities(databases("primary"))
    assert [(lag.deltas, lag.is_catching_up, lag.error) for lag in fan_out.lags()] == [(0, False, None)] * 2
    fan_out.close()


def test_table_writes_beyond_the_queue_are_dropped_and_the_table_is_rewritten(databases, monkeypatch):
    monkeypatch.setattr(fan_out_module, "MAX_QUEUED_CHANGES", 10)
    slow = Stoppable(databases("secondary"))
    with closing(FanOutAdapter(databases("primary"), {"copy": slow}, first_wait_seconds=0.01)) as fan_out:
        assert fan_out.wait_until_replicated(WAIT)
        slow.refuses = True
        fan_out.insert_deltas(batch(1, *(make_delta("c", number, f"r{number}", x=number) for number in range(1, 5))))
        fan_out.ensure_schema(NOTES)
        for _ in range(100):
            fan_out.materialise("g", NOTES, [f"r{number}" for number in range(1, 5)])
        assert [(lag.deltas, lag.rows, lag.is_catching_up) for lag in fan_out.lags()] == [(4, 5, True)]
        slow.refuses = False
        assert fan_out.wait_until_replicated(WAIT)
        assert [(lag.deltas, lag.rows, lag.is_catching_up) for lag in fan_out.lags()] == [(0, 0, False)]
        assert rows(databases("secondary")).keys() == rows(databases("primary")).keys() == {"r1", "r2", "r3", "r4"}


def test_secondaries_keep_deltas_that_move_to_a_cold_tier(databases):
    fan_out = FanOutAdapter(databases("primary"), {"copy": databases("secondary")})
    with closing(LifecycleAdapter(fan_out, databases("cold"), 0)) as tiers:
        tiers.insert_deltas(aged(10))
        assert fan_out.wait_until_replicated(WAIT)
        assert tiers.migrate_to_tier().deltas == 10
        assert everything(databases("primary")) == []
        assert identities(databases("secondary")) == identities(databases("cold")) != []


def test_a_secondary_catches_up_after_more_failures_than_a_float_can_count(databases):
    slow = Stoppable(databases("secondary"))
    slow.refuses = True
    fan_out = FanOutAdapter(databases("primary"), {"copy": slow}, first_wait_seconds=0)
    fan_out.insert_deltas(batch(1, make_delta("c", 1, "r", x=1)))
    failing = threading.Event()
    for _ in range(3000):
        if fan_out.lags()[0].failures > 1100:  # 2.0**1024 is too large for a float
            break
        failing.wait(0.01)
    slow.refuses = False
    assert fan_out.wait_until_replicated(WAIT)
    assert identities(databases("secondary")) == identities(databases("primary")) != []
    fan_out.close()


def test_unreplicated_deltas_are_read_from_the_primary_after_a_restart(databases):
    databases("primary").insert_deltas(batch(1, make_delta("c", 1, "r", x=1)))
    fan_out = FanOutAdapter(databases("primary"), {"copy": databases("secondary")})
    assert fan_out.wait_until_replicated(WAIT)
    assert identities(databases("secondary")) == identities(databases("primary")) != []
    fan_out.close()


def count_stored(objects: ObjectDeltas) -> int:
    """The number of deltas in all objects; a delta in two objects counts twice."""
    return sum(digest.deltas for digest in objects.digests(DigestScope()))


def test_a_secondary_that_is_an_object_store_has_each_delta_once_after_restarts(databases, tmp_path):
    copy = ObjectDeltas(LocalDisk(tmp_path / "copy"))
    for number in range(1, 4):
        databases("primary").insert_deltas(batch(number, make_delta("c", number, "r", x=number)))
        fan_out = FanOutAdapter(databases("primary"), {"copy": copy})
        assert fan_out.wait_until_replicated(WAIT)
        fan_out._secondaries[0].stop()
        assert count_stored(copy) == number


# -- tiers -------------------------------------------------------------------------------------------------------------


def test_a_delta_is_in_a_cold_object_store_once_if_older_ones_arrive_after_a_kill(databases, tmp_path):
    hot, cold = databases("hot"), ObjectDeltas(LocalDisk(tmp_path / "cold"))
    hot.insert_deltas(aged(20))
    copy_page(cold, "tier", hot.query_arrow(DeltaQuery(order="hlc", limit=7)).deltas)  # killed before the deletion
    hot.insert_deltas(batch(2, make_delta("late", 3, "r", x=0)))
    assert LifecycleAdapter(hot, cold, 0).migrate_to_tier().deltas == 21
    assert (everything(hot), count_stored(cold)) == ([], 21)


def test_old_days_move_and_reads_cover_both_tiers(databases):
    hot, cold = databases("hot"), databases("cold")
    tiers = LifecycleAdapter(hot, cold, 30 * DAY, wall=lambda: 40 * DAY)
    tiers.ensure_schema(NOTES)
    made = aged(400)
    tiers.insert_deltas(made)
    before = {order: identities(tiers, DeltaQuery(order=order, limit=37)) for order in ("arrival", "hlc")}
    report = tiers.migrate_to_tier()
    assert (report.deltas, len(everything(cold)), len(everything(hot))) == (101, 101, 299)
    assert max(stored.delta.hlc for stored in everything(cold)) <= encode(10 * DAY, 0)
    assert before == {order: identities(tiers, DeltaQuery(order=order, limit=37)) for order in ("arrival", "hlc")}
    assert tiers.migrate_to_tier().deltas == 0
    tiers.insert_deltas(made)  # a repeat, after the move
    assert before["hlc"] == identities(tiers, DeltaQuery(order="hlc"))
    assert tiers.migrate_to_tier().deltas == 101
    assert len(everything(cold)) == 101
    tiers.insert_deltas(batch(2, make_delta("d", encode(39 * DAY, 9), "r0", y="new")))
    assert set(texts(tiers.get_latest_state("g", "notes", ["r0"])["r0"])) == {"x", "y"}
    assert tiers.materialise("g", NOTES, ["r0"]) == 1
    assert rows(hot).keys() == {"r0"}
    with pytest.raises(AdapterError):
        rows(cold)


def test_reads_are_complete_while_days_move(databases):
    tiers = LifecycleAdapter(databases("hot"), databases("cold"), 0, wall=lambda: 100 * DAY)
    made = aged(300)
    tiers.insert_deltas(made)
    wanted = sorted(stored.identity for stored in made.deltas)
    moving = threading.Event()

    def move():
        for day in range(1, 31):
            tiers.migrate_to_tier(day * DAY)
        moving.set()

    mover = threading.Thread(target=move)
    mover.start()
    readings = 0
    while not moving.is_set() or readings < 2:
        for order in ("arrival", "hlc"):
            assert sorted(identities(tiers, DeltaQuery(order=order, limit=50))) == wanted
        readings += 1
    mover.join()
    assert len(everything(databases("cold"))) == 300


MOVE = (
    "import sys; from lakesync.adapters import LifecycleAdapter, SqliteAdapter;"
    "from lakesync.adapters import composite;"
    "composite.PAGE_DELTAS = 40;"
    "LifecycleAdapter(SqliteAdapter(sys.argv[1]), SqliteAdapter(sys.argv[2]), 0).migrate_to_tier()"
)


def test_nothing_is_copied_from_a_hot_tier_that_cannot_delete(databases, tmp_path):
    hot, cold = ObjectDeltas(LocalDisk(tmp_path / "hot")), databases("cold")
    hot.insert_deltas(aged(10))
    with pytest.raises(ConfigurationError, match="ObjectDeltas does not support deleting deltas"):
        LifecycleAdapter(hot, cold, 0).migrate_to_tier()
    assert everything(cold) == []


@pytest.mark.parametrize("place", ["sql.after_commit:2", "tier.after_copy:2", "tier.after_delete:2"])
def test_a_killed_move_resumes(tmp_path, place):
    files = [str(tmp_path / f"{name}.db") for name in ("hot", "cold")]
    hot, cold = (SqliteAdapter(file) for file in files)
    made = aged(100)
    hot.insert_deltas(made)
    tiers = LifecycleAdapter(hot, cold, 0)
    assert run_code(MOVE, *files, **{VARIABLE: place}) == -9
    wanted = sorted(stored.identity for stored in made.deltas)
    assert sorted(identities(tiers)) == wanted
    assert 0 < tiers.migrate_to_tier().deltas < 100
    assert (sorted(identities(cold)), everything(hot)) == (wanted, [])
    tiers.close()


class Forgetful(SqliteAdapter):
    """A database that confirms each batch and loses its first delta."""

    def insert_arrow(self, batch_id, gateway, deltas):
        return super().insert_arrow(batch_id, gateway, deltas.slice(1))


def test_deltas_missing_in_the_cold_tier_stay_in_the_hot_tier_and_raise(databases, tmp_path):
    hot, forgetful = databases("hot"), Forgetful(tmp_path / "forgetful.db")
    made = aged(100)
    hot.insert_deltas(made)
    for move in (LifecycleAdapter(hot, forgetful, 0).migrate_to_tier, lambda: migrate_adapter(hot, forgetful)):
        with pytest.raises(IntegrityError, match=r"100 deltas of gateway 'g' were written .* but 99 were read back"):
            move()
        assert sorted(identities(hot)) == sorted(stored.identity for stored in made.deltas)
    forgetful.close()


class _ClosingFails(SqliteAdapter):
    """An adapter that counts its closes, the first of which fails after the connections are closed."""

    closes = 0

    def close(self):
        super().close()
        self.closes += 1
        if self.closes == 1:
            raise AdapterError(f"{self.path.name} cannot be closed")


@pytest.mark.parametrize("kind", ["routes", "fan-out", "tiers"])
def test_every_adapter_is_closed_although_one_fails(kind, tmp_path):
    first, second, third = (_ClosingFails(tmp_path / f"{name}.db") for name in "abc")
    composed = {
        "routes": lambda: CompositeAdapter([Route(frozenset({"x"}), second), Route(frozenset({"y"}), third)], first),
        "fan-out": lambda: FanOutAdapter(first, {"b": second, "c": third}),
        "tiers": lambda: LifecycleAdapter(first, CompositeAdapter([Route(frozenset({"x"}), second)], third), DAY),
    }[kind]()
    with pytest.raises(AdapterError, match="cannot be closed"):
        composed.close()
    assert (first.closes, second.closes, third.closes) == (1, 1, 1)


def test_a_page_position_is_valid_across_composed_adapters(databases):
    """Pages of several adapters end at the first end of any of them."""
    tiers = LifecycleAdapter(databases("hot"), databases("cold"), 0)
    for number, adapter in enumerate((databases("hot"), databases("cold"), databases("hot")), 1):
        adapter.insert_deltas(
            DeltaBatch(
                str(number),
                "g",
                tuple(StoredDelta("g", 256 * n, make_delta("c", n, f"r{n}", x=n)) for n in range(number, 60, 3)),
            )
        )
    whole = everything(tiers)
    assert [position_of(stored, "arrival") for stored in whole] == sorted(
        position_of(each, "arrival") for each in whole
    )
    for limit in (1, 2, 7, 58, 59, 60):
        assert everything(tiers, DeltaQuery(limit=limit)) == whole
