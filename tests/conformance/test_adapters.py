"""The conformance suite of adapters. An adapter is added by one line in `adapter_places.DATABASES`."""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from psycopg.errors import ProgramLimitExceeded

from lakesync.adapters import DeltaBatch, DeltaQuery, StoredDelta
from lakesync.adapters.arrow import to_arrow
from lakesync.adapters.backends import postgres
from lakesync.adapters.backends.postgres import PostgresAdapter
from lakesync.adapters.deltas import checksum_of, position_of
from lakesync.adapters.sql.delta_table import DeltaWriter
from lakesync.model.delta import jcs_raw
from lakesync.model.merge import RowState
from lakesync.model.types import RowDelta
from lakesync.testing import strategies
from tests.conformance.adapter_places import (
    COARSE_ARRIVALS,
    DATABASES,
    DEEP,
    EXAMPLES,
    KEEPS_BATCHES,
    TABLES,
    start_server,
)
from tests.conformance.book import make_delta


def matching_deltas(deltas, query):
    """Return the deltas that a query matches, regardless of its limit: what every adapter has to find."""
    tables, rows = frozenset(query.tables), frozenset(query.rows)
    for stored in deltas:
        delta = stored.delta
        value = stored.arrival if query.order == "arrival" else delta.hlc
        if (
            value > query.since
            and (query.until is None or value <= query.until)
            and (query.gateway is None or stored.gateway == query.gateway)
            and (not tables or delta.table in tables)
            and (not rows or delta.row_id in rows)
            and (query.after is None or position_of(stored, query.order) > query.after)
        ):
            yield stored


@pytest.fixture(params=[pytest.param(kind, marks=[pytest.mark.deep] * (kind in DEEP)) for kind in DATABASES])
def kind(request):
    """Each kind of adapter in turn."""
    start_server(request)
    return request.param


def batch(number: int, *deltas: RowDelta, gateway: str = "g", step: int = 256) -> DeltaBatch:
    """Deltas that arrived one after another, in one batch."""
    first = number * 1_000_000
    stored = tuple(StoredDelta(gateway, first + step * place, delta) for place, delta in enumerate(deltas))
    return DeltaBatch(f"{gateway}.main.1.{number}-{number}", gateway, stored)


def plain(stored: StoredDelta, *, arrival: bool = True):
    """The expected values of read deltas, as canonical text."""
    delta = stored.delta
    cells = [(cell.column, jcs_raw(cell.value)) for cell in delta.columns]
    fields = (delta.op, delta.table, delta.row_id, delta.client_id, cells, delta.hlc, delta.delta_id)
    return (stored.gateway, stored.arrival if arrival else None, *fields)


def texts(state: RowState) -> dict[str, bytes]:
    """Each live column's value."""
    return {column: bytes(value) for column, value in state.values().items()}


def everything(adapter, query: DeltaQuery | None = None) -> list[StoredDelta]:
    """Every page of a query."""
    query = query or DeltaQuery()
    found: list[StoredDelta] = []
    while True:
        page = adapter.query_deltas_since(query)
        assert len(page.deltas) <= query.limit
        found += page.deltas
        if page.end is None:
            return found
        assert page.deltas, "a page with more to come is not empty"
        assert page.end == position_of(page.deltas[-1], query.order)
        query = msgspec.structs.replace(query, after=page.end)


def test_inserted_deltas_are_returned_in_order_of_arrival(adapter, kind):
    first = batch(1, make_delta("c", 5, "r1", x=1, y={"b": [1.5, None], "a": "é\n"}), make_delta("d", 3, "r2", x=True))
    second = batch(2, make_delta("c", 4, "r1"))
    adapter.insert_deltas(second)
    adapter.insert_deltas(first)
    exact = kind not in COARSE_ARRIVALS
    found = [plain(stored, arrival=exact) for stored in everything(adapter)]
    assert sorted(found[:2]) == sorted(plain(stored, arrival=exact) for stored in first.deltas)
    assert found[2:] == [plain(stored, arrival=exact) for stored in second.deltas]


def test_insert_returns_count_and_id_sum_of_the_stored_batch(adapter):
    """Also in batches with more or fewer deltas of the same time, and for a delta whose id is not a hash."""
    one, other, more = (
        batch(number, *(make_delta("c", n, f"r{n}", x=n) for n in range(number, 60, step)))
        for number, step in ((1, 2), (2, 4), (4, 20))
    )
    odd = msgspec.structs.replace(make_delta("c", 31, "r", x=1), delta_id="AB" * 32)
    for each in (one, other, more, batch(5, odd, make_delta("c", 33, "r", y=1))):
        assert adapter.insert_deltas(each) == checksum_of(each.deltas)


def test_a_repeated_batch_changes_nothing(adapter, kind, tmp_path):
    one = batch(1, make_delta("c", 1, "r1", x=1), make_delta("c", 2, "r2", x=2))
    answer = adapter.insert_deltas(one)
    before = everything(adapter)
    assert adapter.insert_deltas(one) == answer
    other = DATABASES[kind](tmp_path)
    assert other.insert_deltas(one) == answer
    assert everything(other) == everything(adapter) == before
    other.close()


def test_two_concurrent_writers_of_one_batch_both_succeed(kind, tmp_path):
    one = batch(1, *(make_delta("c", n, f"r{n}", x=n) for n in range(1, 200)))
    adapters = [DATABASES[kind](tmp_path) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda each: each.insert_deltas(one), adapters))
    assert answers == [checksum_of(one.deltas)] * 4
    assert len(everything(adapters[0])) == 199
    for each in adapters:
        each.close()


def test_a_delta_in_two_batches_is_stored_once_if_deltas_are_identified(adapter, kind):
    delta = make_delta("c", 1, "r", x=1)
    adapter.insert_deltas(batch(1, delta))
    again = batch(2, delta, make_delta("c", 2, "r", x=2))
    assert adapter.insert_deltas(again) == checksum_of(again.deltas)
    assert len(everything(adapter)) == (3 if kind in KEEPS_BATCHES else 2)
    assert texts(adapter.get_latest_state("g", "notes", ["r"])["r"]) == {"x": b"2"}


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("clients", [("c",), ("c", "e")])
@pytest.mark.parametrize(("gateway", "client"), [("h", "c"), ("g", "d")])
def test_a_missing_delta_is_not_hidden_by_an_equal_id(request, kind, clients, gateway, client, tmp_path):
    request.param = kind
    start_server(request)
    adapter = DATABASES[kind](tmp_path)
    mine = batch(1, *(make_delta(each, n, f"r{n}", x=n) for each in clients for n in (1, 2)))
    theirs = [msgspec.structs.replace(stored.delta, client_id=client) for stored in mine.deltas[1:]]
    assert adapter.insert_deltas(mine) == checksum_of(mine.deltas)
    adapter.insert_deltas(batch(2, *theirs, gateway=gateway))
    adapter.delete_deltas(to_arrow(mine.deltas[1:]))
    with adapter._connect() as connection:
        found = DeltaWriter(connection, adapter._dialect, to_arrow(mine.deltas)).stored_checksum()
    assert found == checksum_of(mine.deltas[:1])
    adapter.close()


def test_two_clients_may_use_the_same_delta_id(adapter):
    """A broken client may use another client's id: neither delta may be lost."""
    mine = make_delta("c", 1, "r1", x=1)
    theirs = msgspec.structs.replace(make_delta("d", 1, "r2", x=2), delta_id=mine.delta_id)
    both = batch(1, mine, theirs)
    assert adapter.insert_deltas(both) == checksum_of(both.deltas)
    assert {stored.delta.row_id for stored in everything(adapter)} == {"r1", "r2"}


def test_inserted_deltas_survive_reopening(kind, tmp_path):
    first = DATABASES[kind](tmp_path)
    first.insert_deltas(batch(1, make_delta("c", 1, "r", x=1)))
    first.close()
    second = DATABASES[kind](tmp_path)
    assert [stored.delta.row_id for stored in everything(second)] == ["r"]
    second.close()


def test_pages_are_contiguous(adapter, kind):
    limits = (9, 70) if kind in EXAMPLES else (1, 3, 10, 69, 70, 71)  # a server takes long for a page
    for number in range(1, 8):
        rows = [make_delta(client, number, f"r{n}", x=n) for n in range(5) for client in ("c", "d")]
        adapter.insert_deltas(batch(number, *rows, step=0))
    for order in ("arrival", "hlc"):
        whole = everything(adapter, DeltaQuery(order=order))
        assert len(whole) == 70
        for limit in limits:
            assert everything(adapter, DeltaQuery(order=order, limit=limit)) == whole


def test_a_follower_by_arrival_gets_later_deltas(adapter):
    adapter.insert_deltas(batch(1, make_delta("c", 9, "r1", x=1)))
    (seen,) = everything(adapter)
    end = position_of(seen, "arrival")
    assert everything(adapter, DeltaQuery(after=end)) == []
    adapter.insert_deltas(batch(2, make_delta("c", 1, "late", x=1)))
    assert [stored.delta.row_id for stored in everything(adapter, DeltaQuery(after=end))] == ["late"]


def test_gateways_are_separate(adapter):
    delta = make_delta("c", 1, "r", x=1)
    adapter.insert_deltas(batch(1, delta, gateway="g"))
    adapter.insert_deltas(batch(1, delta, gateway="h"))
    assert len(everything(adapter)) == 2
    assert [stored.gateway for stored in everything(adapter, DeltaQuery(gateway="h"))] == ["h"]
    of_row = DeltaQuery(gateway="h", tables=("notes",), rows=("r",))
    assert [stored.gateway for stored in everything(adapter, of_row)] == ["h"]
    adapter.insert_deltas(batch(2, make_delta("c", 2, "r", x=2), gateway="h"))
    newest = {name: adapter.newest_position(name) for name in ("g", "h", "another")}
    assert newest["another"] is None
    assert [position.gateway for position in (newest["g"], newest["h"])] == ["g", "h"]
    assert newest["g"] < newest["h"] == adapter.newest_position()
    assert texts(adapter.get_latest_state("g", "notes", ["r"])["r"]) == {"x": b"1"}
    assert texts(adapter.get_latest_state(None, "notes", ["r"])["r"]) == {"x": b"2"}


def test_latest_state_is_the_merge_of_all_deltas(adapter):
    history = [
        make_delta("c", 1, "r", x=1, y="a"),
        make_delta("d", 2, "r", x=2),
        make_delta("c", 3, "gone", x=1),
        make_delta("c", 4, "gone"),
        make_delta("c", 5, "r", table="other", x="not this one"),
    ]
    adapter.insert_deltas(batch(1, *history[:2]))
    adapter.insert_deltas(batch(2, *history[2:]))
    states = adapter.get_latest_state("g", "notes", ["r", "gone", "absent"])
    assert states.keys() == {"r", "gone"}
    assert texts(states["r"]) == {"x": b"2", "y": b'"a"'}
    assert not states["gone"].visible
    assert states["gone"].tombstone == (4, "c")
    assert adapter.get_latest_state("g", "notes", []) == {}


def test_values_of_every_type_are_returned_unchanged(adapter):
    """Any text, 64-bit clocks, nested values, 5 MB in one value; null is a value, an absent column is not."""
    odd = "é\U0001f600 \u0001\t\n\r\\N '\"`%?{}\x7f\u2028 "
    values = {
        "text": odd,
        "nul": "a\0b",
        "empty": "",
        "none": None,
        "whole": 2**53 - 1,
        "small": -1.5e-300,
        "yes": True,
        "deep": {"": [], odd: [[{"x": None}], 1e21]},
        "large": "x\u00e9" * 2_500_000,
    }
    made = batch(
        1, make_delta(odd, 2**63 - 1, odd, **values), make_delta("c ", 1, "r", text="NULL"), make_delta("c", 1, "r")
    )
    made = DeltaBatch(
        made.batch_id,
        "g",
        (
            *made.deltas,
            StoredDelta("g", 2**63 - 1, msgspec.structs.replace(make_delta("c", 3, "r", x=1), delta_id="é" * 512)),
        ),
    )
    assert adapter.insert_deltas(made) == adapter.insert_deltas(made) == checksum_of(made.deltas)
    found = everything(adapter, DeltaQuery(order="hlc"))
    assert sorted(map(repr, (plain(each, arrival=False) for each in found))) == sorted(
        map(repr, (plain(each, arrival=False) for each in made.deltas))
    )
    assert "absent" not in texts(adapter.get_latest_state("g", "notes", [odd])[odd])


def test_postgres_returns_a_page_of_which_a_column_exceeds_its_limit_of_a_value(own_database, monkeypatch):
    def exceed_limit(*_):
        raise ProgramLimitExceeded

    adapter = PostgresAdapter(own_database)
    adapter.insert_deltas(
        batch(1, make_delta("c", 2**63 - 1, "é\n\\N", text="\U0001f600", none=None), make_delta("d", 1, "r"))
    )
    usual = everything(adapter)
    monkeypatch.setattr(postgres, "read_columns", exceed_limit)
    assert everything(adapter) == usual
    assert len(usual) == 2
    adapter.close()


def test_an_empty_adapter_returns_nothing(adapter):
    assert everything(adapter) == []
    assert adapter.newest_position() is None
    assert adapter.get_latest_state(None, "notes", ["r"]) == {}


def test_a_large_batch_is_one_batch(adapter):
    large = batch(1, *(make_delta("c", n, f"r{n}", x=n) for n in range(1, 20_001)), step=0)
    assert adapter.insert_deltas(large) == checksum_of(large.deltas)
    assert len(everything(adapter, DeltaQuery(limit=7_000))) == 20_000


deltas = strategies.deltas(
    tables=st.sampled_from(["t", "u"]),
    rows=st.sampled_from(["r1", "r2", "é'\"/%"]),
    clients=st.sampled_from(["a", "b", "\U00010000"]),
    stamps=st.integers(0, 6) | st.just(2**63 - 1),
    columns=strategies.column_values(st.sampled_from(["x", "y"])),
)


def with_one_content(batches: list[list[RowDelta]]) -> list[list[RowDelta]]:
    """Make deltas with the same id equal, because a gateway rejects one id with two contents.

    Two deltas have the same id if they differ only in the operation, which the hash does not cover.
    """
    first: dict[str, RowDelta] = {}
    return [[first.setdefault(each.delta_id, each) for each in batch] for batch in batches]


batches = st.lists(st.lists(deltas, min_size=1, max_size=4, unique_by=lambda each: each.delta_id), max_size=4).map(
    with_one_content
)
queries = st.builds(
    DeltaQuery,
    order=st.sampled_from(["arrival", "hlc"]),
    since=st.integers(-1, 8) | st.integers(1_000_000, 4_001_000),
    until=st.none() | st.integers(0, 8) | st.integers(1_000_000, 4_001_000),
    gateway=st.sampled_from([None, "g", "h"]),
    tables=st.lists(st.sampled_from(["t", "u"]), max_size=1).map(tuple),
    rows=st.lists(st.sampled_from(["r1", "r2"]), max_size=2, unique=True).map(tuple),
    limit=st.integers(1, 5),
)


def test_every_query_returns_the_matching_deltas(kind):
    phases = [Phase.generate] if kind in EXAMPLES else list(Phase)  # a server is too slow to reduce a failure

    @settings(max_examples=EXAMPLES.get(kind, 40), deadline=None, phases=phases)
    @given(history=batches, query=queries)
    def holds(history, query):
        with tempfile.TemporaryDirectory() as folder:
            adapter = DATABASES[kind](Path(folder))
            kept: dict = {}
            for number, each in enumerate(history, 1):
                made = batch(number, *each, gateway="gh"[number % 2])
                adapter.insert_deltas(made)
                last = made.deltas[-1].arrival
                for stored in made.deltas:
                    known = msgspec.structs.replace(stored, arrival=last) if kind in COARSE_ARRIVALS else stored
                    twice = kind in KEEPS_BATCHES and query.order == "arrival"
                    kept.setdefault((stored.identity, known.arrival if twice else None), known)
            wanted = sorted(matching_deltas(kept.values(), query), key=lambda stored: position_of(stored, query.order))
            found = everything(adapter, query)
            assert sorted(map(repr, map(plain, found))) == sorted(map(repr, map(plain, wanted)))
            newest = [position_of(stored, "arrival") for stored in everything(adapter)]
            assert adapter.newest_position() == (newest[-1] if newest else None)
            own = [position_of(stored, "arrival") for stored in everything(adapter, DeltaQuery(gateway="g"))]
            assert adapter.newest_position("g") == (own[-1] if own else None)
            places = [position_of(stored, query.order) for stored in found]
            assert places == sorted(places)
            states = {
                (table, row): state
                for table in ("t", "u")
                for row, state in adapter.get_latest_state(None, table, ["r1", "r2"]).items()
            }
            merged: dict = {}
            for stored in kept.values():
                if stored.delta.row_id in ("r1", "r2"):
                    merged.setdefault(stored.delta.key, RowState()).merge(stored.delta)
            assert {key: shown(state) for key, state in states.items()} == {key: shown(merged[key]) for key in merged}
            adapter.close()

    holds()


def shown(state: RowState):
    """A state for comparison: values as Python parses their canonical text."""
    cells = {column: json.loads(jcs_raw(value)) for column, value in state.values().items()}
    return cells, state.visible, state.tombstone, state.inserted
