"""Rows of a destination are `(gateway, row_id)`: a user's keys block none, and batching does not matter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lakesync.adapters.deltas import states_of
from lakesync.adapters.transfer.follower import DeltaSelection, follow_history
from lakesync.model.schema import parse_schema
from tests.conformance.adapter_places import DATABASES, EXAMPLES, TABLES, start_server
from tests.conformance.book import make_delta
from tests.conformance.history_batches import history

LONG = "k" * 6_000
COLUMNS = [{"name": name, "type": "string"} for name in ("sku", "ext", "title")]
KEYED = {"table": "goods", "columns": COLUMNS, "primaryKey": ["sku"], "externalIdColumn": "ext"}
SOFT, HARD = parse_schema(KEYED), parse_schema({**KEYED, "softDelete": False})


def follow(adapter, schema, pushes, at_once=25_000, calls=1):
    """Apply pushes in several runs, in transactions of a number of deltas."""
    size = -(-len(pushes) // calls) or 1
    for end in range(size, len(pushes) + size, size):
        list(follow_history(adapter, "leaf", DeltaSelection(), history(pushes[:end]), [schema], min_deltas=at_once))


def shown(adapter, schema):
    """The table's rows by identity, without the time of writing and the user's columns."""
    names = ["gateway", "row_id", "sku", "ext", "title", "last_arrival", "checksum"]
    names += ["deleted_at"] if schema.soft_delete else []
    with adapter._executor.connect() as connection:
        found = connection.query(f"SELECT {', '.join(names)} FROM goods")
    return {(row[0], row[1]): dict(zip(names[2:], row[2:], strict=True)) for row in found}


def pushed(*deltas, gateway="g"):
    """A push for each delta."""
    return [(gateway, 256 * (number + 1), [delta]) for number, delta in enumerate(deltas)]


def good(row, hlc, client="c", **values):
    return make_delta(client, hlc, row, table="goods", **values)


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.deep if name == "bigquery" else ()) for name in TABLES])
def kind(request):
    start_server(request)
    return request.param


def test_two_devices_with_one_key_are_two_rows(adapter):
    one, other = good("r1", 1, "ann", sku="s", ext="e", title="of ann"), good("r2", 2, "bob", sku="s", ext="e")
    follow(adapter, SOFT, pushed(one, other))
    found = shown(adapter, SOFT)
    assert [(each["sku"], each["ext"]) for each in found.values()] == [("s", "e")] * 2
    assert found["g", "r1"]["title"] == "of ann"


def test_rows_of_two_gateways_with_one_id_are_two_rows(adapter):
    pushes = [*pushed(good("r", 1, sku="a")), *pushed(good("r", 1, sku="b"), gateway="h")]
    follow(adapter, SOFT, pushes)
    assert {row: each["sku"] for row, each in shown(adapter, SOFT).items()} == {("g", "r"): "a", ("h", "r"): "b"}


def test_two_rows_may_swap_keys(adapter):
    follow(adapter, SOFT, pushed(good("r1", 1, sku="a"), good("r2", 1, sku="b")))
    swap = [("g", 1024, [good("r1", 2, sku="b"), good("r2", 2, sku="a")])]
    follow(adapter, SOFT, [*pushed(good("r1", 1, sku="a"), good("r2", 1, sku="b")), *swap])
    assert {row_id: each["sku"] for (_, row_id), each in shown(adapter, SOFT).items()} == {"r1": "b", "r2": "a"}


def test_the_key_of_a_deleted_row_can_be_reused(adapter):
    follow(adapter, SOFT, pushed(good("r1", 1, sku="a", ext="e"), good("r1", 2), good("r2", 3, sku="a", ext="e")))
    found = shown(adapter, SOFT)
    assert {row_id: (each["sku"], each["deleted_at"] is None) for (_, row_id), each in found.items()} == {
        "r1": ("a", False),
        "r2": ("a", True),
    }


def test_keys_may_be_long_or_missing(adapter):
    follow(
        adapter, SOFT, pushed(good("r1", 1, sku=LONG, ext=LONG), good("r2", 1, title="no key"), good("r3", 1, sku=""))
    )
    found = shown(adapter, SOFT)
    assert {row_id: each["sku"] for (_, row_id), each in found.items()} == {"r1": LONG, "r2": None, "r3": ""}


deltas = st.builds(
    lambda row, hlc, client, op, values: replace(good(row, hlc, client, **({} if op == "DELETE" else values)), op=op),
    st.sampled_from(["r1", "r2", "r3"]),
    st.integers(1, 9),
    st.sampled_from(["ann", "bob"]),
    st.sampled_from(["INSERT", "UPDATE", "UPDATE", "DELETE"]),
    st.dictionaries(st.sampled_from(["sku", "ext", "title"]), st.sampled_from(["a", "b", None, LONG]), max_size=3),
)
histories = st.lists(
    st.tuples(st.sampled_from("gh"), st.lists(deltas, min_size=1, max_size=4)),
    max_size=8,
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.deep if name == "bigquery" else ()) for name in TABLES]
)
def test_any_batching_gives_the_same_table(request, name, tmp_path_factory):
    request.param = name
    start_server(request)

    @settings(max_examples=EXAMPLES.get(name, 40), deadline=None)
    @given(
        made=histories,
        schema=st.sampled_from([SOFT, HARD]),
        at_once=st.integers(1, 12),
        calls=st.integers(1, 4),
    )
    def holds(made, schema, at_once, calls):
        made = each_once(made)
        pushes = [(gateway, 256 * (number + 1), some) for number, (gateway, some) in enumerate(made)]
        found = []
        for batching in ({}, {"at_once": at_once, "calls": calls}):
            adapter = DATABASES[name](tmp_path_factory.mktemp("rows"))
            adapter.ensure_schema(schema)
            follow(adapter, schema, pushes, **batching)
            found.append(shown(adapter, schema))
            adapter.close()
        assert found[0] == found[1]
        alive = {row: each for row, each in found[0].items() if each.get("deleted_at") is None}
        assert {row: values(each) for row, each in alive.items()} == expected(made)

    holds()


def each_once(made):
    """Leave out deltas that have the identity of an earlier one."""
    seen, found = set(), []
    for gateway, some in made:
        own = []
        for delta in some:
            identity = (gateway, delta.client_id, delta.hlc, delta.delta_id)
            if identity not in seen:
                seen.add(identity)
                own.append(delta)
        if own:
            found.append((gateway, own))
    return found


def values(row):
    return {name: row[name] for name in ("sku", "ext", "title") if row[name] is not None}


def expected(made):
    """The visible rows, by an independent merge of each gateway's deltas."""
    found = {}
    for gateway in "gh":
        states = states_of(delta for name, some in made if name == gateway for delta in some)
        for row_id, state in states.items():
            if state.visible:
                cells = {column: bytes(raw).decode() for column, raw in state.values().items()}
                found[gateway, row_id] = {name: text[1:-1] for name, text in cells.items() if text != "null"}
    return found
