"""Each delta of a row has an outcome, each column that lost has a reason, and unflushed deltas are included."""

from __future__ import annotations

import random

import pytest

from lakesync import config
from lakesync.analysis.provenance import ArrivedDelta, provenance, row_history
from lakesync.engine import Engine
from lakesync.model.delta import delta_id
from lakesync.model.errors import LakeUnavailableError
from lakesync.model.merge import RowState
from lakesync.model.types import ColumnValue, RowDelta, SyncPush
from lakesync.staging import open_staging
from lakesync.testing import ManualClock
from tests.conformance.book import make_delta


def delta(op, client, hlc, **values):
    columns = tuple(ColumnValue.of(name, value) for name, value in values.items())
    identity = delta_id(client_id=client, hlc=hlc, table="t", row_id="r", columns=columns)
    return RowDelta(op, "t", "r", client, columns, hlc, identity)


def outcomes_of(*deltas):
    found = provenance([ArrivedDelta("g", 256 * place, True, each) for place, each in enumerate(deltas, 1)])
    return [{cell.column: (cell.outcome, cell.reason) for cell in each.columns} or each.note for each in found]


def at(client, hlc):
    return f"{client} at 1970-01-01T00:00:00.{hlc:03}Z"


def test_each_loss_has_a_reason():
    first = delta("INSERT", "ann", 5 << 16, a=1, b=1)
    story = [
        first,
        delta("UPDATE", "bob", 7 << 16, a=2),
        delta("UPDATE", "cy", 6 << 16, a=3),
        delta("UPDATE", "abe", 7 << 16, a=4),
        delta("UPDATE", "bob", 7 << 16, a=0),
        first,
        delta("DELETE", "ann", 6 << 16),
        delta("UPDATE", "dan", 4 << 16, b=9),
        delta("DELETE", "eve", 3 << 16),
        delta("UPDATE", "eve", 9 << 16),
    ]
    assert outcomes_of(*story) == [
        {"a": ("replaced", f"replaced by {at('bob', 7)}"), "b": ("deleted", f"deleted by {at('ann', 6)}")},
        {"a": ("live", "")},
        {"a": ("lost", f"{at('bob', 7)} wrote later, though it arrived before")},
        {"a": ("lost", f"{at('bob', 7)} wrote at the same hlc, and the greater client id wins")},
        {"a": ("lost", f"{at('bob', 7)} has the same stamp, and the greater value wins")},
        {
            "a": ("lost", f"{at('bob', 7)} wrote later, though it arrived before"),
            "b": ("repeated", "the same delta had arrived before"),
        },
        "deletes older columns; the row had newer ones, or none",
        {"b": ("deleted", f"stamped no later than the DELETE of {at('ann', 6)}")},
        f"no effect: {at('ann', 6)} deleted the row with a later stamp",
        "erased: its columns are gone",
    ]


def test_live_columns_equal_the_merge():
    rng = random.Random(3)
    for _ in range(200):
        story = [
            delta(
                rng.choices(["INSERT", "UPDATE", "DELETE"], [3, 6, 1])[0],
                rng.choice("abc"),
                rng.randint(1, 9),
                **{name: rng.randint(0, 2) for name in rng.sample("wxyz", rng.randint(1, 3))},
            )
            for _ in range(rng.randint(1, 12))
        ]
        state = RowState()
        for each in story:
            state.merge(each)
        found = provenance([ArrivedDelta("g", 256 * place, True, each) for place, each in enumerate(story, 1)])
        live = {cell.column: bytes(cell.value) for each in found for cell in each.columns if cell.outcome == "live"}
        assert live == {name: bytes(value) for name, value in state.values().items()}
        assert all(cell.reason or cell.outcome == "live" for each in found for cell in each.columns)


def test_the_history_includes_unflushed_deltas_before_the_first_flush(tmp_path):
    place, clock = config.load({"data_dir": tmp_path}), ManualClock()
    engine = Engine(open_staging(place.staging.url, None, clock), clock)
    engine.open()
    first, second = (make_delta("ann", (clock.now_ms << 16) + n, "r1", x=n) for n in (1, 2))
    engine.gateway("shop").handle_push(SyncPush("ann", (second, first)))
    engine.close()
    result = row_history(place, "notes", "r1")
    assert {each.delta_id: each.columns[0].outcome for each in result} == {
        first.delta_id: "lost",
        second.delta_id: "live",
    }
    assert not any(each.flushed for each in result)
    with pytest.raises(LakeUnavailableError, match="no Iceberg catalogue"):
        row_history(place, "notes", "r2")
