"""A follower applies each delta of the history once, wherever it is killed, and its rows are their merge."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lakesync.adapters import LifecycleAdapter, SqliteAdapter, StoredDelta
from lakesync.adapters.backends import bigquery
from lakesync.adapters.composite import cold_tier_contents
from lakesync.adapters.deltas import DeltaBatch, merge_states
from lakesync.adapters.transfer.follower import (
    DeltaSelection,
    FollowerProgress,
    follow_history,
    read_follower_progress,
)
from lakesync.cli.up.process import free_ports
from lakesync.model.crash_points import VARIABLE
from lakesync.model.errors import AdapterError, ConfigurationError, IntegrityError
from lakesync.model.merge import RowState
from lakesync.model.schema import Column
from tests.backend_servers import bigquery_server
from tests.conformance.adapter_places import DATABASES, NEEDS, SERVERS, TABLES, port_of, start_server, through
from tests.conformance.book import make_delta
from tests.conformance.history_batches import history, pushes
from tests.conformance.killed_follower import follow
from tests.conformance.test_adapter_tables import NOTES, parsed, rows, rows_of_gateways
from tests.conformance.test_adapters import everything
from tests.conformance.wire import Wire
from tests.forked import Forked

EVERYTHING = DeltaSelection()


def carry(adapter, made, **options):
    return list(follow_history(adapter, "leaf", EVERYTHING, history(made), [NOTES], **options))


def once(adapter, made):
    """Check that each delta is stored once, and that the rows match."""
    wanted = sorted((gateway, arrival, delta.delta_id) for gateway, arrival, deltas in made for delta in deltas)
    found = [(each.gateway, each.arrival, each.delta.delta_id) for each in everything(adapter)]
    assert sorted(found) == wanted
    at = read_follower_progress(adapter, "leaf", EVERYTHING)
    assert at.deltas == len(wanted)


def shows(adapter, made):
    """Check that its table of rows shows the newest delta of each row."""
    latest = {}
    pushed = [(gateway, delta) for gateway, _, some in made for delta in some]
    for gateway, delta in sorted(pushed, key=lambda each: each[1].hlc):
        latest[gateway, delta.row_id] = 10 * (delta.hlc // 100) + delta.hlc % 100
    assert {row: int(float(cells["size"])) for row, cells in rows_of_gateways(adapter).items()} == latest


@pytest.mark.parametrize("kind", [*TABLES, "parquet on local disk"])
def test_a_follower_applies_missing_deltas_once(request, kind, tmp_path):
    request.param = kind
    start_server(request)
    adapter, made = DATABASES[kind](tmp_path), pushes(5 if kind == "bigquery" else 12)
    assert read_follower_progress(adapter, "leaf", EVERYTHING) == FollowerProgress()
    first = carry(adapter, made[:4], min_deltas=5)
    assert sum(part.deltas for part in first) == 12
    assert len(first) > 1
    carry(adapter, made, min_deltas=5)
    once(adapter, made)
    assert carry(adapter, made) == []
    if kind in TABLES:
        shows(adapter, made)
        with adapter._executor.connect() as connection:
            props = "JSON '{\"mine\": 1}'" if kind == "bigquery" else "'{\"mine\": 1}'"
            connection.execute(f"UPDATE notes SET props = {props} WHERE row_id = 'r1' AND gateway = 'g'")
        more = ("g", 256 * 99, [make_delta("c", 99_000, "r1", size=5), make_delta("c", 99_001, "r2")])
        carry(adapter, [*made, more])
        found = rows_of_gateways(adapter)
        assert (parsed(found["g", "r1"]["props"]), int(float(found["g", "r1"]["size"]))) == ({"mine": 1}, 5)
        assert found["g", "r2"]["deleted_at"] is not None
    adapter.close()


def test_another_selection_restarts_and_a_concurrent_run_is_rejected(tmp_path):
    adapter = SqliteAdapter(tmp_path / "d.db")
    made = pushes()
    carry(adapter, made)
    narrow = DeltaSelection(tables=("notes",))
    assert read_follower_progress(adapter, "leaf", narrow) == FollowerProgress(narrow)
    ahead = follow_history(adapter, "leaf", narrow, history(made), min_deltas=6)
    next(ahead)
    list(follow_history(adapter, "leaf", narrow, history(made), min_deltas=6))
    with pytest.raises(IntegrityError, match="another run has moved it"):
        next(ahead)
    assert len(everything(adapter)) == 36
    with pytest.raises(ConfigurationError, match="does not store marks"):
        read_follower_progress(object(), "leaf", EVERYTHING)
    adapter.close()


SQL = ("sql.before_rows:2", "sql.before_mark:2", "sql.after_follow:1", "follow.after_chunk:1")
OBJECTS = ("objects.before_mark:2", "follow.after_chunk:2")
DATABASES_KILLED = ("sqlite", "postgres", "mariadb", "bigquery")
BY_DEFAULT = {"sql.before_mark:2", "objects.before_mark:2", "local.after_place:3"}


def kills():
    """Every crash point of every kind; by default the one between the data and the mark that records it."""
    places = [(kind, place) for kind in DATABASES_KILLED for place in SQL]
    for kind in ("parquet on local disk", "parquet on s3"):
        places += [(kind, place) for place in OBJECTS]
    places += [("parquet on local disk", place) for place in ("local.before_place:3", "local.after_place:3")]
    for kind, place in places:
        marks = () if place in BY_DEFAULT else (pytest.mark.deep,)
        yield pytest.param(kind, place, id=f"{kind}, {place}", marks=marks)


@pytest.mark.parametrize(("kind", "place"), kills())
def test_a_killed_follower_resumes(request, kind, place, tmp_path):
    request.param = kind
    start_server(request)
    count = 4 if kind == "bigquery" else 12
    environment = {**os.environ, VARIABLE: place}
    assert Forked(follow, kind, tmp_path, dict(SERVERS), count, environment=environment).wait(120) == -9
    adapter, made = DATABASES[kind](tmp_path), pushes(count)
    before = read_follower_progress(adapter, "leaf", EVERYTHING).deltas
    again = carry(adapter, made, min_deltas=5)
    assert 0 < sum(part.deltas for part in again) == 3 * count - before
    once(adapter, made)
    if kind in TABLES:
        shows(adapter, made)
    adapter.close()


@pytest.mark.deep
@pytest.mark.parametrize("dies", ["COPY:3", "MERGE:3", "COPY:4", "MERGE:4", "UPDATE:1"])
@pytest.mark.parametrize("kind", ["bigquery"])
def test_a_follower_resumes_after_bigquery_dies(kind, dies, tmp_path, monkeypatch):
    with bigquery_server(dies=dies) as server:
        monkeypatch.setitem(SERVERS, NEEDS[kind], server.endpoint)
        monkeypatch.setattr(bigquery, "_RETRY_SECONDS", 1.0)
        adapter, made = DATABASES[kind](tmp_path), pushes(4)
        with pytest.raises(AdapterError):
            carry(adapter, made, min_deltas=5)
        assert not server.listens()
        server.again()
        monkeypatch.setattr(bigquery, "_RETRY_SECONDS", 60.0)
        before = read_follower_progress(adapter, "leaf", EVERYTHING).deltas
        assert sum(part.deltas for part in carry(adapter, made, min_deltas=5)) == 12 - before
        once(adapter, made)
        shows(adapter, made)
        adapter.close()


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "bigquery", "parquet on s3"])
def test_a_follower_with_an_unreachable_destination_fails_and_catches_up(request, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(bigquery, "_RETRY_SECONDS", 1.0)
    request.param = kind
    start_server(request)
    (port,) = free_ports(1)
    adapter, made = through(kind, port, tmp_path), pushes(4)
    with pytest.raises(AdapterError) as raised:
        carry(adapter, made)
    assert "secret" not in str(raised.value)
    monkeypatch.setattr(bigquery, "_RETRY_SECONDS", 60.0)
    wire = Wire(port_of(kind), at=port)
    carry(adapter, made, min_deltas=5)
    once(adapter, made)
    adapter.close()
    wire.close()


def test_rows_of_a_hot_tier_include_deltas_of_the_cold_tier(tmp_path):
    hot, cold = SqliteAdapter(tmp_path / "hot.db"), SqliteAdapter(tmp_path / "cold.db")
    older = make_delta("c", 5, "r", title="from long ago", size=1)
    cold.insert_deltas(DeltaBatch("b", "g", (StoredDelta("g", 256, older),)))
    carry(hot, [("g", 512, [make_delta("c", 6, "r", size=2)])], transform=cold_tier_contents([cold]))
    row = rows(hot)["r"]
    assert (row["title"], row["size"]) == ("from long ago", 2)
    hot.close()
    cold.close()


def test_a_new_column_is_written_for_rows_whose_deltas_are_all_in_the_cold_tier(tmp_path):
    hot, cold = SqliteAdapter(tmp_path / "hot.db"), SqliteAdapter(tmp_path / "cold.db")
    grown = replace(NOTES, columns=(*NOTES.columns, Column("added", "number")))
    made = [("g", 256 * n, [make_delta("c", n, f"r{n}", size=n, added=10 * n)]) for n in (1, 2, 3)]

    def carry_gateway(some, schema):
        of_g, older = DeltaSelection(gateways=("g",)), cold_tier_contents([cold])
        list(follow_history(hot, "leaf", of_g, history(some), [schema], older, cold=[cold]))

    carry_gateway(made[:2], NOTES)
    LifecycleAdapter(hot, cold, 1).migrate_to_tier()
    others = make_delta("c", 4, "theirs", added=1)  # of a gateway that the hot tier does not follow
    cold.insert_deltas(DeltaBatch("b", "other", (StoredDelta("other", 256, others),)))
    carry_gateway(made, grown)
    assert {row: float(cells["added"]) for row, cells in rows(hot).items()} == {"r1": 10, "r2": 20, "r3": 30}
    hot.close()
    cold.close()


def test_a_destination_table_gets_all_rows_under_another_name(tmp_path):
    adapter = SqliteAdapter(tmp_path / "leaf.db")
    for schema in (NOTES, replace(NOTES, source_table="jottings")):  # retired, then registered with another name
        list(follow_history(adapter, "leaf", DeltaSelection(), history(pushes(4)), [schema]))
    assert rows(adapter, "jottings").keys() == rows(adapter, "notes").keys() != set()
    adapter.close()


deltas = st.builds(
    lambda hlc, op, columns: replace(make_delta("c", hlc, "r", **({} if op == "DELETE" else columns)), op=op),
    st.integers(1, 9),
    st.sampled_from(["INSERT", "UPDATE", "DELETE"]),
    st.dictionaries(st.sampled_from(["title", "size"]), st.integers(0, 2), min_size=1),
)


@settings(max_examples=40, deadline=None)
@given(first=st.lists(deltas, max_size=5), second=st.lists(deltas, max_size=5))
def test_merging_two_states_equals_merging_all_deltas(first, second):
    parts = [RowState(), RowState(), RowState()]
    for part, some in zip(parts, (first, second, [*first, *second]), strict=True):
        for delta in some:
            part.merge(delta)
    both = merge_states(parts[0], parts[1])
    assert {name: bytes(raw) for name, raw in both.values().items()} == {
        name: bytes(raw) for name, raw in parts[2].values().items()
    }
    assert (both.visible, both.tombstone, both.inserted) == (parts[2].visible, parts[2].tombstone, parts[2].inserted)
