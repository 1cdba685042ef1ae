"""A flow's target has the rows that match its filter, in any order of the source and after any interruptions."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import lakesync
from lakesync.adapters import (
    DeltaBatch,
    DeltaQuery,
    LifecycleAdapter,
    LocalDisk,
    ObjectDeltas,
    SqliteAdapter,
    StoredDelta,
)
from lakesync.adapters.deltas import Part
from lakesync.adapters.digests import DigestScope
from lakesync.adapters.transfer.flow_pages import RowFilter, written_by
from lakesync.adapters.transfer.flows import replay_flow, run_flow
from lakesync.adapters.transfer.follower import DeltaSelection, follow_history, read_follower_progress
from lakesync.adapters.transfer.loads import LoadBarrier, begin_load, finish_load, part_name
from lakesync.client import LocalTransport
from lakesync.model.errors import AdapterError, ConfigurationError
from lakesync.model.schema import Column
from lakesync.rules.model import parse_rules
from tests.conformance.adapter_places import DATABASES, start_server
from tests.conformance.book import make_delta
from tests.conformance.history_batches import history
from tests.conformance.test_adapter_tables import NOTES, parsed, rows
from tests.conformance.test_adapters import everything

LARGE = RowFilter(tables=("notes",), where=(("size", "gte", "10"),))
"""Rows of `notes` whose size is at least 10."""
NOTHING_HIDDEN = RowFilter(tables=("notes",))
"""All rows of `notes`."""
HOUR = 3_600_000 << 16


def put(adapter, arrival, *deltas, gateway="g"):
    stored = tuple(StoredDelta(gateway, arrival, delta) for delta in deltas)
    adapter.insert_deltas(DeltaBatch(f"{gateway}.{arrival}", gateway, stored))


def flow(source, target, row_filter=LARGE, **options):
    return list(run_flow(source, target, "flows/f", row_filter, [NOTES], **options))


def shown(adapter):
    return {row: int(float(cells["size"])) for row, cells in rows(adapter).items() if cells["deleted_at"] is None}


@pytest.fixture
def places(tmp_path):
    opened = [SqliteAdapter(tmp_path / f"{name}.db") for name in ("source", "target")]
    yield opened
    for each in opened:
        each.close()


def test_rows_enter_and_leave_a_flows_filter(places):
    source, target = places
    put(source, 256, make_delta("c", 1, "small", size=1, title="a"), make_delta("c", 1, "large", size=20))
    flow(source, target)
    assert shown(target) == {"large": 20}
    with target._executor.connect() as connection:
        connection.execute("UPDATE notes SET props = '{\"mine\": 1}' WHERE row_id = 'large'")
    put(source, 512, make_delta("c", 2, "small", size=30), make_delta("c", 2, "large", size=2))
    flow(source, target)
    assert shown(target) == {"small": 30}
    found = rows(target)
    assert found["small"]["title"] == "a"  # with its values from before it matched
    assert parsed(found["large"]["props"]) == {"mine": 1}
    put(source, 768, make_delta("c", 3, "large", size=40), make_delta("c", 3, "small"))
    (done,) = flow(source, target)
    assert done.deltas <= done.scanned + 1
    assert shown(target) == {"large": 40}


def test_late_deltas_of_another_gateway_are_found_and_a_new_filter_restarts(places):
    source, target = places
    put(source, HOUR, make_delta("c", 5, "r1", size=10))
    flow(source, target)
    put(source, HOUR - 256, make_delta("c", 6, "r2", size=11), gateway="h")
    flow(source, target)
    assert shown(target) == {"r1": 10, "r2": 11}
    everything_of_g = RowFilter(tables=("notes",), gateways=("g",))
    put(source, HOUR + 256, make_delta("c", 7, "r3", size=1))
    assert sum(part.deltas for part in flow(source, target, everything_of_g)) == 2
    assert [part.scanned for part in flow(source, target, everything_of_g)] == []  # a gateway writes in order
    with pytest.raises(ConfigurationError, match="does not store marks"):
        list(run_flow(source, object(), "f", LARGE))


def followed_flow(source, target, row_filter=LARGE, **options):
    """Run the flow from a source that the follower `leaf` writes."""
    written = partial(written_by, source, ["leaf"])
    return flow(LoadBarrier(source), target, row_filter, read_written=written, **options)


@pytest.mark.parametrize("gateways", [(), ("g",)])
def test_deltas_that_a_follower_writes_hours_late_are_found(places, gateways):
    """The flush of another gateway, or of another shard of the same gateway, failed for hours."""
    source, target = places
    late_gateway = gateways[0] if gateways else "h"
    chosen = replace(LARGE, gateways=gateways)

    def write(gateway, shard, arrival, number):
        batch = history([(gateway, arrival, [make_delta("c", number, f"r{number}", size=10 + number)])], shard=shard)
        list(follow_history(source, "leaf", DeltaSelection(), batch, until={f"{gateway}/{shard}": arrival}))

    write("g", "main", 5 * HOUR, 1)
    write(late_gateway, "other", HOUR, 2)
    assert sum(step.deltas for step in followed_flow(source, target, chosen)) == 2
    write("g", "main", 9 * HOUR, 3)
    followed_flow(source, target, chosen)
    write(late_gateway, "other", 2 * HOUR, 4)
    assert sum(step.deltas for step in followed_flow(source, target, chosen)) >= 1
    assert shown(target) == {"r1": 11, "r2": 12, "r3": 13, "r4": 14}
    write("h", "new", 3 * HOUR, 5)  # a stream that the flow has not seen
    write(late_gateway, "new", 4 * HOUR, 6)
    followed_flow(source, target, chosen)
    assert shown(target).keys() >= ({"r6"} if gateways else {"r5", "r6"})
    again = followed_flow(source, target, chosen)
    assert sum(step.deltas for step in again) <= (0 if gateways else 1), "only the last hour is read again"


def test_old_deltas_of_the_first_follower_are_found_by_a_flow_that_ran_before(places):
    source, target = places
    put(source, 5 * HOUR, make_delta("c", 1, "r1", size=10))
    followed_flow(source, target)
    late = history([("h", HOUR, [make_delta("c", 2, "r2", size=11)])])
    list(follow_history(source, "leaf", DeltaSelection(), late))
    followed_flow(source, target)
    assert shown(target) == {"r1": 10, "r2": 11}


def chained_flow(source, target):
    """Run a flow without conditions from a source that the flow `flows/f` writes."""
    written = partial(written_by, source, (), ["flows/f"])
    return list(run_flow(LoadBarrier(source), target, "flows/next", NOTHING_HIDDEN, [NOTES], read_written=written))


@pytest.fixture
def chain(places, tmp_path):
    """The source and target of the flow `flows/f`, and the target of a flow that reads the first target."""
    with closing(SqliteAdapter(tmp_path / "last.db")) as last:
        yield *places, last


def test_a_row_that_starts_to_match_another_flow_is_copied_whole_from_its_target(chain):
    source, middle, last = chain
    put(source, 256, make_delta("c", 1, "grown", size=1, title="a"), make_delta("c", 1, "old", size=11))
    put(source, HOUR, make_delta("c", 2, "large", size=20))
    flow(source, middle)
    chained_flow(middle, last)
    assert shown(last) == {"large": 20, "old": 11}
    put(source, 9 * HOUR, make_delta("c", 3, "grown", size=30), make_delta("c", 3, "gone", size=10))
    put(source, 9 * HOUR + 256, make_delta("c", 4, "gone"), make_delta("c", 4, "large", size=2))
    flow(source, middle)
    chained_flow(middle, last)
    assert rows(last)["grown"]["title"] == "a"
    assert everything(last) == everything(middle)
    assert chained_flow(middle, last)[-1].deltas <= 4  # those of the lookback


def test_deltas_that_another_flow_writes_hours_late_are_found_in_its_target(chain):
    source, middle, last = chain

    def write(gateway, arrival, number):
        batch = history([(gateway, arrival, [make_delta("c", number, f"r{number}", size=10 + number)])])
        list(follow_history(source, "leaf", DeltaSelection(), batch, until={f"{gateway}/main": arrival}))
        followed_flow(source, middle, NOTHING_HIDDEN)
        chained_flow(middle, last)

    write("g", 5 * HOUR, 1)
    write("h", HOUR, 2)
    write("g", 9 * HOUR, 3)
    write("h", 2 * HOUR, 4)
    assert shown(last) == shown(middle) == {"r1": 11, "r2": 12, "r3": 13, "r4": 14}


def test_late_deltas_during_a_load_are_found_after_it(places):
    source, target = places
    batch = history([("g", 9 * HOUR, [make_delta("c", 1, "r1", size=11)]), ("h", HOUR, [make_delta("c", 2, "r2")])])
    list(follow_history(source, "leaf", DeltaSelection(), batch))
    followed_flow(source, target)
    late = history([("h", 2 * HOUR, [make_delta("c", 3, "r3", size=13)])])
    list(follow_history(source, "leaf", DeltaSelection(), late))
    begin_load(source, "leaf", DeltaSelection(), {"g/main": 10 * HOUR}, 1)
    followed_flow(source, target)
    assert shown(target) == {"r1": 11}, "a load is in progress"
    part = DeltaSelection(part=Part(read_follower_progress(source, "leaf", DeltaSelection()).load.id, 0, 1))
    list(follow_history(source, part_name("leaf", 0), part, [], until={"g/main": 10 * HOUR}))
    finish_load(source, "leaf", DeltaSelection())
    followed_flow(source, target)
    assert shown(target) == {"r1": 11, "r3": 13}


def test_a_replay_during_a_load_fails_instead_of_leaving_deltas_out(places):
    source, target = places
    put(source, 256, make_delta("c", 1, "r1", size=11))
    begin_load(source, "leaf", DeltaSelection(), {"g/main": 10 * HOUR}, 1)
    written = partial(written_by, source, ["leaf"])
    with pytest.raises(AdapterError, match="received a large backlog meanwhile"):
        list(replay_flow(LoadBarrier(source), target, "flows/f", LARGE, [NOTES], (0, 512), read_written=written))


def test_a_flow_retries_a_suspended_table_and_writes_a_new_column(places):
    source, target = places
    with target._executor.connect() as connection:
        connection.execute("CREATE TABLE notes (owner VARCHAR(80))")  # a table of the operator
    put(source, 256, make_delta("c", 1, "r1", size=11, added=1))
    flow(source, target)
    assert [each.table for each in target.suspended_tables("flows/f")] == ["notes"]
    with target._executor.connect() as connection:
        connection.execute("DROP TABLE notes")
    target.retry_tables("flows/f", ["notes"])
    flow(source, target)
    assert (shown(target), target.suspended_tables("flows/f")) == ({"r1": 11}, [])
    grown = replace(NOTES, columns=(*NOTES.columns, Column("added", "number")))
    put(source, 512, make_delta("c", 2, "r2", size=12, added=2), make_delta("c", 2, "small", size=1))
    list(run_flow(source, target, "flows/f", LARGE, [grown]))
    assert {row: float(cells["added"]) for row, cells in rows(target).items()} == {"r1": 1, "r2": 2}


def test_a_row_with_older_deltas_in_a_cold_tier_is_complete(places, tmp_path):
    source, target = places
    cold = SqliteAdapter(tmp_path / "cold.db")
    of_g = replace(LARGE, gateways=("g",))  # without a lookback
    put(source, 256, make_delta("c", 1, "large", size=20, title="old"))
    flow(source, target, of_g, cold=(cold,))
    LifecycleAdapter(target, cold, 1).migrate_to_tier()
    assert everything(target) == []
    put(source, 512, make_delta("c", 2, "large", size=30))
    (done,) = flow(source, target, of_g, cold=(cold,))
    assert done.deltas == 1  # the deltas in the cold tier are not copied again
    assert (shown(target), rows(target)["large"]["title"]) == ({"large": 30}, "old")
    cold.close()


@pytest.mark.parametrize("format_", ["parquet", "json"])
def test_a_flow_into_an_object_store_stores_each_delta_once(tmp_path, format_):
    """Although each run reads the last hour again."""
    source, target = SqliteAdapter(tmp_path / "source.db"), ObjectDeltas(LocalDisk(tmp_path / "kept"), format_)
    for n in range(1, 7):
        put(source, 256 * n, make_delta("c", n, f"r{n}", size=10 * n), gateway="gh"[n % 2])
        flow(source, target)
    assert sum(digest.deltas for digest in target.digests(DigestScope())) == 6
    source.close()


@pytest.mark.parametrize("kind", ["database", "objects"])
def test_a_replay_writes_missing_deltas_and_no_duplicates(tmp_path, kind):
    """Replay arrivals 512 to 1024: the lost deltas in this range return, lost deltas outside it do not."""
    source = SqliteAdapter(tmp_path / "source.db")
    target = SqliteAdapter(tmp_path / "target.db") if kind == "database" else ObjectDeltas(LocalDisk(tmp_path / "kept"))
    for n in range(1, 6):
        put(source, 256 * n, make_delta("c", n, f"r{n}", size=10 * n))
    assert sum(page.deltas for page in flow(source, target)) == 5
    marked = target.read_mark("flows/f")

    def again():
        return sum(page.deltas for page in replay_flow(source, target, "flows/f", LARGE, [NOTES], (512, 1024), page=2))

    assert again() == 3
    assert sorted(stored.arrival for stored in everything(target)) == [256, 512, 768, 1024, 1280], "no duplicates"
    if kind == "database":
        lost = target.query_arrow(DeltaQuery(since=257)).deltas  # all but the first
        target.delete_deltas(lost)
        with target._executor.connect() as connection:
            connection.execute("DELETE FROM notes WHERE row_id <> 'r1'")
        assert again() == 3
        assert sorted(stored.arrival for stored in everything(target)) == [256, 512, 768, 1024]
        assert shown(target) == {f"r{n}": 10 * n for n in (1, 2, 3, 4)}
    else:
        for path in (tmp_path / "kept").rglob("*.parquet"):
            path.unlink()
        assert again() == 3
        assert sorted(stored.arrival for stored in everything(target)) == [512, 768, 1024]
    assert target.read_mark("flows/f") == marked
    source.close()
    target.close()


steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 60), st.none() | st.sampled_from([1, 9, 10, 99])),
    max_size=12,
    unique_by=lambda step: step[1],
)


@settings(max_examples=25, deadline=None)
@given(history=steps, when=st.lists(st.booleans(), min_size=12, max_size=12), page=st.integers(1, 5))
def test_a_flows_target_has_the_rows_that_match_the_filter(tmp_path_factory, history, when, page):
    folder = tmp_path_factory.mktemp("flow")
    source, target = SqliteAdapter(folder / "s.db"), SqliteAdapter(folder / "t.db")
    for number, (row, hlc, size) in enumerate(history, 1):
        put(source, 256 * number, make_delta("c", hlc, row, **({} if size is None else {"size": size})))
        if when[number - 1]:
            next(run_flow(source, target, "flows/f", LARGE, [NOTES], page=page), None)  # and is interrupted
    flow(source, target, page=page)
    target.ensure_schema(NOTES)
    states = source.get_latest_state(None, "notes", ["a", "b", "c"])
    assert shown(target) == {
        row: int(bytes(state.values()["size"])) for row, state in states.items() if LARGE.matches(state)
    }
    target.close()
    source.close()


def test_a_flow_copies_rows_from_bigquery_to_postgres_and_to_a_client(request, tmp_path):
    for request.param in ("bigquery", "postgres"):
        start_server(request)
    source, target = DATABASES["bigquery"](tmp_path), DATABASES["postgres"](tmp_path)
    put(source, 256, make_delta("c", 1, "small", size=1), make_delta("c", 1, "large", size=20, title="é"))
    flow(source, target)
    assert (shown(target), rows(target)["large"]["title"]) == ({"large": 20}, "é")
    assert {stored.delta.row_id for stored in everything(target)} == {"large"}
    with lakesync.open_gateway("g") as gateway:
        gateway.set_rules(
            parse_rules(
                {
                    "version": 1,
                    "buckets": [
                        {
                            "name": "large",
                            "tables": ["notes"],
                            "filters": [{"column": "size", "op": "gte", "value": "10"}],
                        }
                    ],
                }
            )
        )
        gateway.register_source("warehouse", source)
        client = lakesync.open(tmp_path / "app.db", client_id="me", schemas=[NOTES], transport=LocalTransport(gateway))
        client.coordinator.pull_from("warehouse")
        assert [(row["row_id"], row["title"]) for row in client["notes"].rows()] == [("large", "é")]
        client.close()
    source.close()
    target.close()
