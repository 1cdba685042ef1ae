"""Loads: parts of a large backlog are applied concurrently; each delta is stored once, whatever process is killed."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from msgspec.structs import replace

from lakesync.adapters import LifecycleAdapter, SqliteAdapter
from lakesync.adapters.arrow import has_text_columns
from lakesync.adapters.arrow_access import max_writers, read_arrow
from lakesync.adapters.deltas import HASH_SLOTS, DeltaQuery, Part, hash_slot_of
from lakesync.adapters.transfer.follower import DeltaSelection, follow_history, read_follower_progress
from lakesync.adapters.transfer.loads import LoadBarrier, begin_load, finish_load, is_announced, load_to_resume
from lakesync.model.crash_points import VARIABLE
from lakesync.model.errors import IntegrityError
from lakesync.model.schema import Column
from tests.conformance.adapter_places import DATABASES, SERVERS, TABLES, start_server
from tests.conformance.history_batches import history, pushes
from tests.conformance.killed_follower import last_arrivals, load, part_of_load, take_load, take_part
from tests.conformance.test_adapter_tables import NOTES, rows_of_gateways
from tests.conformance.test_adapters import everything
from tests.conformance.test_followers import carry, once, shows
from tests.forked import Forked

EVERYTHING = DeltaSelection()
STORES = ("parquet on local disk", "parquet on s3")


def size_of(kind):
    return 4 if kind == "bigquery" else 12


@pytest.mark.parametrize("kind", [*TABLES, *STORES])
def test_a_load_applies_missing_deltas_once(request, kind, tmp_path):
    request.param = kind
    start_server(request)
    adapter, made = DATABASES[kind](tmp_path), pushes(size_of(kind))
    carry(adapter, made[:2], min_deltas=5)
    before = read_follower_progress(adapter, "leaf", EVERYTHING)
    until = last_arrivals(made)
    begun = begin_load(adapter, "leaf", EVERYTHING, until, 3, [NOTES])
    assert read_follower_progress(adapter, "leaf", EVERYTHING) == replace(before, load=begun)
    since = before.streams
    taken = [sum(each.deltas for each in part_of_load(adapter, begun, made, number, since)) for number in range(3)]
    assert sum(taken) == 3 * len(made) - 6
    assert kind in STORES or sum(map(bool, taken)) > 1
    ended = finish_load(adapter, "leaf", EVERYTHING)
    assert (ended.streams, ended.load, is_announced(adapter, "leaf")) == (until, None, False)
    once(adapter, made)
    if kind in TABLES:
        shows(adapter, made)
    assert carry(adapter, made) == []
    adapter.close()


POINTS = ("load.announced:1", "load.begun:1", "load.before_finish:1", "load.after_finish:1")
SQL = (*POINTS, "sql.before_rows:2", "sql.before_mark:4", "sql.after_follow:3", "follow.after_chunk:5")
OBJECTS = (*POINTS, "objects.before_mark:3", "follow.after_chunk:2")
BY_DEFAULT = {"load.begun:1", "load.before_finish:1", "sql.before_mark:4", "objects.before_mark:3"}


def kills():
    """Each crash point in each kind of store; by default those between the data and the mark that records it."""
    for kinds, points in ((("sqlite", "postgres", "mariadb", "bigquery"), SQL), (STORES, OBJECTS)):
        for kind in kinds:
            for point in points:
                deep = point not in BY_DEFAULT or kind == "bigquery"
                yield pytest.param(kind, point, id=f"{kind}, {point}", marks=pytest.mark.deep if deep else ())


@pytest.mark.parametrize(("kind", "point"), kills())
def test_a_killed_load_resumes(request, kind, point, tmp_path):
    request.param = kind
    start_server(request)
    count = size_of(kind)
    environment = {**os.environ, VARIABLE: point}
    assert Forked(load, kind, tmp_path, dict(SERVERS), count, environment=environment).wait(120) == -9
    adapter, made = DATABASES[kind](tmp_path), pushes(count)
    if read_follower_progress(adapter, "leaf", EVERYTHING).deltas < 3 * count:  # killed before the load had ended
        take_load(adapter, made)
    once(adapter, made)
    if kind in TABLES:
        shows(adapter, made)
    adapter.close()


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "parquet on s3", "sqlite"])
def test_several_processes_apply_parts_concurrently(request, kind, tmp_path):
    request.param = kind
    start_server(request)
    adapter, made = DATABASES[kind](tmp_path), pushes(60)
    begin_load(adapter, "leaf", EVERYTHING, last_arrivals(made), 4, [NOTES])
    running = [
        Forked(take_part, kind, tmp_path, dict(SERVERS), 60, number, environment=os.environ) for number in range(4)
    ]
    more = [
        ("z", arrival, [replace(each, client_id="z", hlc=each.hlc + 7) for each in some]) for _, arrival, some in made
    ]
    another = follow_history(adapter, "other", EVERYTHING, history(more[:30]), [NOTES], min_deltas=5)
    assert sum(each.deltas for each in another) == 90  # concurrently, into the same rows
    assert [each.wait(120) for each in running] == [0, 0, 0, 0]
    assert finish_load(adapter, "leaf", EVERYTHING).deltas == 180
    found = [(each.gateway, each.arrival, each.delta.delta_id) for each in everything(adapter)]
    wanted = [(gateway, arrival, delta.delta_id) for gateway, arrival, some in [*made, *more[:30]] for delta in some]
    assert sorted(found) == sorted(wanted)
    if kind in TABLES:
        latest = {}
        for each in sorted(everything(adapter), key=lambda each: each.delta.hlc):
            cells = {cell.column: cell.value for cell in each.delta.columns}
            latest[each.gateway, each.delta.row_id] = float(cells["size"])
        assert {row: float(cells["size"]) for row, cells in rows_of_gateways(adapter).items()} == latest
    adapter.close()


def test_a_reader_by_arrival_waits_for_the_end_of_a_load(tmp_path):
    adapter, cold, made = SqliteAdapter(tmp_path / "a.db"), SqliteAdapter(tmp_path / "cold.db"), pushes()
    carry(adapter, made[:4], min_deltas=5)
    reader, place = LoadBarrier(adapter), LoadBarrier(LifecycleAdapter(adapter, cold, 0))
    first = reader.query_deltas_since(DeltaQuery())
    assert has_text_columns(read_arrow(reader, DeltaQuery()).deltas)  # as the database returns them
    after = DeltaQuery(after=adapter.newest_position())
    begun = begin_load(adapter, "leaf", EVERYTHING, last_arrivals(made), 2, [NOTES])
    since = read_follower_progress(adapter, "leaf", EVERYTHING).streams
    part_of_load(adapter, begun, made, 1, since)
    assert adapter.query_deltas_since(after).deltas  # some of the new deltas; the others would come before it
    for each in (reader, place):
        assert (each.query_deltas_since(after).deltas, each.query_arrow(after).deltas.num_rows) == ((), 0)
        assert each.query_arrow(DeltaQuery("hlc")).deltas.num_rows > len(first.deltas)
        assert each.query_deltas_since(DeltaQuery(tables=("notes",), rows=("r1",))).deltas
    part_of_load(adapter, begun, made, 0, since)
    finish_load(adapter, "leaf", EVERYTHING)
    assert len(first.deltas) + len(reader.query_deltas_since(after).deltas) == 36
    assert place.query_arrow(DeltaQuery()).deltas.num_rows == 36
    adapter.close()
    cold.close()


def test_a_page_read_during_a_load_is_withheld(tmp_path):
    made = pushes()

    class Reading(SqliteAdapter):
        def query_deltas_since(self, query):
            page = super().query_deltas_since(query)
            take_load(adapter, made)
            return page

    adapter, reader = SqliteAdapter(tmp_path / "a.db"), LoadBarrier(Reading(tmp_path / "a.db"))
    carry(adapter, made[:4])
    assert reader.query_deltas_since(DeltaQuery()).deltas == ()
    assert len(LoadBarrier(adapter).query_deltas_since(DeltaQuery()).deltas) == 36
    adapter.close()
    reader.close()


def test_a_load_with_other_schemas_restarts(tmp_path):
    adapter, made = SqliteAdapter(tmp_path / "a.db"), pushes()
    begun = begin_load(adapter, "leaf", EVERYTHING, last_arrivals(made), 2, [NOTES])
    part_of_load(adapter, begun, made, 0)
    at = read_follower_progress(adapter, "leaf", EVERYTHING)
    assert load_to_resume(adapter, at, [NOTES]) == begun
    wider = replace(NOTES, columns=(*NOTES.columns, Column("more", "string")))
    assert load_to_resume(adapter, at, [wider]) is None
    list(follow_history(adapter, "leaf", EVERYTHING, history(made), [wider], min_deltas=5))
    once(adapter, made)
    shows(adapter, made)
    with pytest.raises(IntegrityError, match="is already finished"):
        finish_load(adapter, "leaf", EVERYTHING)
    adapter.close()


def test_a_concurrent_run_of_a_load_is_rejected(tmp_path):
    adapter, made = SqliteAdapter(tmp_path / "a.db"), pushes()
    begun = begin_load(adapter, "leaf", EVERYTHING, last_arrivals(made), 2, [NOTES])
    with pytest.raises(IntegrityError, match="part 0 of the load of 'leaf' is not finished"):
        finish_load(adapter, "leaf", EVERYTHING)
    part = begun.part(0)
    wanted = [batch.filter(part.mask(pa.Table.from_batches([batch])).combine_chunks()) for batch in history(made)]
    slow = follow_history(adapter, "leaf#0", DeltaSelection(part=part), wanted, until=begun.until, min_deltas=5)
    next(slow)
    part_of_load(adapter, begun, made, 0)
    with pytest.raises(IntegrityError, match="another run has moved it"):
        next(slow)
    adapter.close()


def test_a_part_contains_whole_rows_or_batches():
    names = [f"r{number}" for number in range(200)]
    deltas = pa.table({"row_id": names, "batch_id": [f"b{n // 10}" for n in range(200)]})
    for by_batch in (False, True):
        parts = [Part("l", number, 3, by_batch).mask(deltas).to_pylist() for number in range(3)]
        assert all(sum(each) == 1 for each in zip(*parts, strict=True))
        keys = deltas.column("batch_id" if by_batch else "row_id").to_pylist()
        for number, mask in enumerate(parts):
            found = {key for key, mine in zip(keys, mask, strict=True) if mine}
            assert {hash_slot_of(key) % 3 for key in found} == {number}
    holders = {number for number, mask in enumerate(parts) for name, mine in zip(names, mask, strict=True) if mine}
    assert holders == {0, 1, 2}


def test_an_adapter_with_one_writer_gets_one_part(tmp_path):
    hot, cold = SqliteAdapter(tmp_path / "a.db"), DATABASES["parquet on local disk"](tmp_path)
    assert [max_writers(each) for each in (hot, cold, LifecycleAdapter(hot, cold, 0), object())] == [
        1,
        HASH_SLOTS,
        1,
        1,
    ]
