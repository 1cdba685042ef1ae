"""A large transfer is divided into ranges, which stay the same until all are done."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lakesync.adapters import DeltaBatch, LifecycleAdapter, SqliteAdapter, StoredDelta, migrate_adapter
from lakesync.adapters.arrow_access import split_points
from lakesync.adapters.base import MarkStore
from lakesync.adapters.deltas import DeltaQuery
from lakesync.adapters.transfer.migration import (
    Division,
    MigrationInFile,
    MigrationInMark,
    MigrationScope,
    begin_division,
    end_division,
    scope_checksum,
)
from lakesync.adapters.transfer.progress import ProgressInFile, ProgressInMark
from lakesync.model.errors import IntegrityError
from tests.conformance.adapter_places import COARSE_ARRIVALS, DATABASES, DEEP, start_server
from tests.conformance.book import make_delta
from tests.conformance.test_adapters import everything

SCOPE = MigrationScope(tables=("t",))


def fill(adapter, count=60, each=4, first=0):
    """Write batches of a few deltas of two tables and two gateways; an hlc occurs twice."""
    for number in range(first, first + count // each):
        gateway = "gh"[number % 2]
        stamps = [10 + (each * number + place) // 2 for place in range(each)]
        made = [
            make_delta("c", stamp, f"r{place}", table="tu"[place % 2], x=10 * number + place)
            for place, stamp in enumerate(stamps)
        ]
        stored = tuple(StoredDelta(gateway, 256 * (number + 1), delta) for delta in made)
        adapter.insert_deltas(DeltaBatch(f"{gateway}.main.1.{number}", gateway, stored))


KINDS = [pytest.param(kind, marks=pytest.mark.deep) if kind in DEEP else kind for kind in DATABASES]


@pytest.mark.parametrize("kind", KINDS)
def test_split_points_divide_a_query_into_ranges_of_about_the_size(request, kind, tmp_path):
    request.param = kind
    start_server(request)
    count = 16 if kind == "bigquery" else 60
    adapter = DATABASES[kind](tmp_path)
    assert split_points(adapter, DeltaQuery("hlc"), 10) == []
    fill(adapter, count)
    for query in (DeltaQuery("hlc"), DeltaQuery("arrival"), DeltaQuery("hlc", since=11, until=30, tables=("t",))):
        if query.order == "arrival" and kind in COARSE_ARRIVALS:
            continue
        points = split_points(adapter, query, 6)
        assert points == sorted(set(points))
        assert all(query.since < point and (query.until is None or point <= query.until) for point in points)
        whole = everything(adapter, query)
        ranges = zip([query.since, *points], [*points, query.until], strict=True)
        parts = [everything(adapter, replace(query, since=since, until=until)) for since, until in ranges]
        assert [one for part in parts for one in part] == whole
        if query.until is None and "local disk" not in kind and "s3" not in kind:  # which know only sizes in bytes
            assert len(points) > 1
            assert all(len(part) <= 18 for part in parts)
    assert split_points(adapter, DeltaQuery("hlc"), 1_000) == []
    adapter.close()


def test_objects_are_split_by_their_sizes(tmp_path):
    adapter = DATABASES["parquet on local disk"](tmp_path)
    fill(adapter)
    points = split_points(adapter, DeltaQuery("hlc"), 100)  # an object with so few deltas is as large as one with 20
    assert 1 < len(points) < 14
    adapter.close()


class Plain:
    """An adapter with only the protocol's methods."""

    def __init__(self, adapter):
        self.query_deltas_since = adapter.query_deltas_since


def test_an_adapter_without_split_points_is_one_range(tmp_path):
    source = SqliteAdapter(tmp_path / "a.db")
    fill(source)
    kept = ProgressInFile(tmp_path / "ranges.json", Division)
    assert begin_division(Plain(source), SCOPE, kept, 4, 5) == Division(scope=SCOPE)
    assert begin_division(source, SCOPE, kept, 1, 5) == Division(scope=SCOPE)
    assert begin_division(source, SCOPE, None, 4, 5) == Division(scope=SCOPE)
    assert Division(scope=SCOPE).ranges() == [(-1, None)]
    assert split_points(LifecycleAdapter(source, Plain(source), 0), DeltaQuery("hlc"), 5) == []
    assert kept.read() is None
    source.close()


@pytest.mark.parametrize("target", ["sqlite", "parquet on local disk", "nested"])
def test_a_division_is_kept_until_its_ranges_are_done(target, tmp_path):
    source, there = SqliteAdapter(tmp_path / "source.db"), DATABASES[target](tmp_path)
    fill(source)

    def stored_division():
        if isinstance(there, MarkStore):
            return ProgressInMark(there, "m ranges", Division)
        return ProgressInFile(tmp_path / "ranges.json", Division)

    def copy(number, division):
        since, until = division.ranges()[number]
        name, scope = f"m#{number}", replace(SCOPE, since=since, until=until)
        marked = isinstance(there, MarkStore)
        progress = (
            MigrationInMark(there, name, division.id)
            if marked
            else MigrationInFile(tmp_path / f"{name}.json", division.id)
        )
        return migrate_adapter(source, there, scope, progress=progress, page=3)

    division = begin_division(source, SCOPE, stored_division(), 4, 5)
    assert len(division.ranges()) == 4
    first = copy(1, division)
    assert first.copied == first.deltas > 0
    fill(source, 8, first=90)  # meanwhile
    again = stored_division()
    assert begin_division(source, SCOPE, again, 4, 5) == division
    reports = [copy(number, division) for number in range(4)]
    assert reports[1].copied == 0
    assert sum(each.deltas for each in reports) == scope_checksum(source, SCOPE).deltas == 34
    assert scope_checksum(there, SCOPE) == scope_checksum(source, SCOPE)
    end_division(division, again)
    fresh = begin_division(source, SCOPE, stored_division(), 4, 5)
    assert fresh.id not in {"", division.id}
    assert copy(1, fresh).copied > 0  # the next migration reads everything
    source.close()
    there.close()


def test_a_concurrent_division_of_a_move_is_rejected(tmp_path):
    adapter = SqliteAdapter(tmp_path / "a.db")
    fill(adapter)
    first, second = (ProgressInMark(adapter, "tiers/aged", Division) for _ in range(2))
    assert first.read() == second.read() is None
    division = begin_division(adapter, SCOPE, first, 4, 5)
    with pytest.raises(IntegrityError, match="another run has moved it"):
        second.write(Division())
    later = replace(SCOPE, until=20)
    assert begin_division(adapter, later, second, 4, 5, any_scope=True) == division
    assert begin_division(adapter, later, second, 4, 5).scope == later
    adapter.close()
