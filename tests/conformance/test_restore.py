"""Damage at a destination changes the digest of its day, and a restore of the day repairs it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakesync.adapters.arrow import to_arrow
from lakesync.adapters.deltas import DeltaBatch, DeltaQuery, MarkUpdate, StoredDelta
from lakesync.adapters.digests import ARRIVALS_PER_DAY, DigestScope, day_of, diff_digests, merge_digests
from lakesync.adapters.transfer.follower import DeltaSelection, follow_history
from lakesync.adapters.transfer.restore import restore
from lakesync.model.schema import parse_schema
from tests.conformance.adapter_places import DATABASES, TABLES, start_server
from tests.conformance.book import make_delta
from tests.conformance.history_batches import history
from tests.conformance.test_adapter_tables import rows_of_gateways

COLUMNS = [
    {"name": "title", "type": "string"},
    {"name": "size", "type": "number"},
    {"name": "tags", "type": "json"},
    {"name": "done", "type": "boolean"},
]
NOTES = parse_schema({"table": "notes", "columns": COLUMNS})
HARD = parse_schema({"table": "hard", "columns": COLUMNS, "softDelete": False})
SCHEMAS = (NOTES, HARD)
FIRST, SECOND = 20_000, 20_001
"""Two days."""


def made():
    """Two days of two gateways, with deleted rows, in both tables."""
    found = []
    for number, (gateway, day) in enumerate([("g", FIRST), ("h", FIRST), ("g", SECOND), ("h", SECOND)], 1):
        deltas = []
        for table in ("notes", "hard"):
            kept = {"title": f"é {number}", "size": number * 1.5, "tags": ["a", {"b": number}], "done": number % 2 == 0}
            deltas += [
                make_delta("c", 10 * number, f"kept {day}", table, **kept),
                make_delta("c", 10 * number + 1, "both days", table, title=f"of {number}"),
                make_delta("c", 10 * number + 2, f"gone {day}", table, title="then deleted"),
                make_delta("c", 10 * number + 3, f"gone {day}", table),
            ]
        found.append((gateway, day * ARRIVALS_PER_DAY + 256 * number, deltas))
    return found


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.deep if name == "bigquery" else ()) for name in TABLES])
def adapter(request, tmp_path):
    start_server(request)
    opened = DATABASES[request.param](tmp_path)
    list(follow_history(opened, "leaf", DeltaSelection(), history(made()), SCHEMAS))
    yield opened
    opened.close()


WHOLE = DigestScope(schemas=SCHEMAS)


def test_digests_count_deltas_and_rows_by_day(adapter):
    found = merge_digests(adapter.digests(WHOLE))
    assert found.keys() == {(table, day) for table in ("notes", "hard") for day in (FIRST, SECOND)}
    assert [found["notes", day].deltas for day in (FIRST, SECOND)] == [8, 8]
    assert [(found["notes", day].rows, found["notes", day].deleted) for day in (FIRST, SECOND)] == [(4, 2), (6, 2)]
    assert [(found["hard", day].rows, found["hard", day].deleted) for day in (FIRST, SECOND)] == [(2, 0), (4, 0)]
    assert sum(each.altered for each in found.values()) == 0
    one_day = DigestScope(tables=("notes",), gateways=("g",), schemas=(NOTES,), days=(SECOND,))
    ((key, only),) = merge_digests(adapter.digests(one_day)).items()
    assert (key, only.deltas, only.rows) == (("notes", SECOND), 4, 3)


DAMAGES = {
    "an emptied table of rows": ("DELETE FROM notes WHERE 1 = 1", {"notes"}, {FIRST, SECOND}),
    "a lost row": ("DELETE FROM hard WHERE row_id = 'both days' AND gateway = 'g'", {"hard"}, {SECOND}),
    "an altered text": (f"UPDATE notes SET title = 'by hand' WHERE row_id = 'kept {FIRST}'", {"notes"}, {FIRST}),
    "an altered number": (f"UPDATE notes SET size = 7 WHERE row_id = 'kept {SECOND}'", {"notes"}, {SECOND}),
    "a row brought back": (f"UPDATE notes SET deleted_at = NULL WHERE row_id = 'gone {FIRST}'", {"notes"}, {FIRST}),
    "lost deltas": ("DELETE FROM lakesync_deltas WHERE table_name = 'hard'", {"hard"}, {FIRST, SECOND}),
    "an altered delta": (
        f"UPDATE lakesync_deltas SET columns = '{{}}' WHERE row_id = 'kept {FIRST}' AND table_name = 'notes'",
        {"notes"},
        {FIRST},
    ),
}


def test_bigquery_computes_digests_and_is_restored(request, tmp_path):
    request.param = "bigquery"
    start_server(request)
    adapter = DATABASES["bigquery"](tmp_path)
    list(follow_history(adapter, "leaf", DeltaSelection(), history(made()), SCHEMAS))
    before = adapter.digests(WHOLE)
    assert sum(each.altered for each in before) == 0
    with adapter._executor.connect() as connection:
        connection.execute(f"UPDATE notes SET title = 'by hand' WHERE row_id = 'kept {FIRST}'")
        connection.execute("DELETE FROM hard WHERE true")
    found = diff_digests(before, adapter.digests(WHOLE))
    assert {(each.table, each.lake.day) for each in found} == {("notes", FIRST), ("hard", FIRST), ("hard", SECOND)}
    restore(adapter, "leaf", history(made()), DigestScope(schemas=SCHEMAS, days=(FIRST, SECOND)))
    assert diff_digests(before, adapter.digests(WHOLE)) == []
    adapter.close()


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_by_day_and_repaired_by_a_restore(adapter, damage):
    before, shown = adapter.digests(WHOLE), rows_of_gateways(adapter)
    statement, tables, days = DAMAGES[damage]
    with adapter._executor.connect() as connection:
        assert connection.execute(statement) > 0
    found = diff_digests(before, adapter.digests(WHOLE))
    assert {each.table for each in found} == tables
    assert {each.lake.day for each in found} == days
    for day in days:
        some = [push for push in made() if day_of(push[1]) == day]
        restore(adapter, "leaf", history(some), DigestScope(schemas=SCHEMAS, days=(day,)))
    assert diff_digests(before, adapter.digests(WHOLE)) == []
    again = rows_of_gateways(adapter)
    for each in (*shown.values(), *again.values()):
        del each["synced_at"]
    assert again == shown


def test_surplus_deltas_are_removed(adapter):
    before = adapter.digests(WHOLE)
    planted = StoredDelta("g", FIRST * ARRIVALS_PER_DAY + 999, make_delta("c", 5, "planted", title="never pushed"))
    newer = StoredDelta("g", FIRST * ARRIVALS_PER_DAY + 999, make_delta("c", 999, "both days", title="never pushed"))
    adapter.insert_deltas(DeltaBatch("planted", "g", (planted, newer)))
    adapter.materialise("g", NOTES, ["planted", "both days"])
    with adapter._executor.connect() as connection:
        connection.execute(
            "INSERT INTO hard (gateway, row_id, last_arrival) VALUES ('g', 'by hand', ?)", [FIRST * ARRIVALS_PER_DAY]
        )
    assert {each.lake.day for each in diff_digests(before, adapter.digests(WHOLE))} == {FIRST}
    some = [push for push in made() if day_of(push[1]) == FIRST]
    restore(adapter, "leaf", history(some), DigestScope(schemas=SCHEMAS, days=(FIRST,)))
    assert diff_digests(before, adapter.digests(WHOLE)) == []


@pytest.mark.parametrize("kind", ["parquet on local disk", "json on local disk"])
def test_a_batch_over_midnight_has_each_delta_on_its_day(kind, tmp_path):
    adapter = DATABASES[kind](tmp_path)
    stored = [
        StoredDelta("g", SECOND * ARRIVALS_PER_DAY + 256 * n, make_delta("c", 10 + n, "r", size=n)) for n in (-1, 0, 1)
    ]
    for _ in range(2):  # the repeat is that after a crash before the mark
        adapter.apply_arrow("g.main.1.1-3", to_arrow(stored), MarkUpdate("leaf", None, "{}"))
        found = merge_digests(adapter.digests(DigestScope()))
        assert {key: each.deltas for key, each in found.items()} == {("notes", FIRST): 1, ("notes", SECOND): 2}
    before = adapter.digests(DigestScope())
    # one object, also with JSON, as earlier versions have written it
    old, data = adapter._encode("g.main.1.1-3.notes", "g", to_arrow(stored))
    adapter.objects.put_object(old.key, data)
    adapter.restore_arrow("leaf", "g.main.1.1-3", to_arrow(stored), DigestScope())
    assert diff_digests(before, adapter.digests(DigestScope())) == []
    adapter.close()


@pytest.mark.parametrize("kind", ["parquet on local disk", "json on local disk", "parquet on s3"])
def test_a_lost_object_is_found_by_day_and_written_again(request, kind, tmp_path):
    request.param = kind
    start_server(request)
    adapter = DATABASES[kind](tmp_path)
    list(follow_history(adapter, "leaf", DeltaSelection(), history(made())))
    before = adapter.digests(DigestScope())
    assert {each.day for each in before} == {FIRST, SECOND}
    lost = next(each for each in adapter.objects.list_objects("deltas/g/").objects if "notes" in each.key)
    adapter.objects.delete_object(lost.key)
    ((table, day),) = {(each.table, each.lake.day) for each in diff_digests(before, adapter.digests(DigestScope()))}
    assert (table, day) == ("notes", FIRST)
    some = [push for push in made() if day_of(push[1]) == day]
    restore(adapter, "leaf", history(some), DigestScope(days=(day,)))
    assert diff_digests(before, adapter.digests(DigestScope())) == []
    assert adapter.query_deltas_since(DeltaQuery()).end is None
    adapter.close()


@pytest.mark.parametrize("kind", ["parquet on local disk", "json on local disk", "parquet on s3"])
def test_a_batch_that_was_copied_in_two_runs_is_restored_as_one_object(request, kind, tmp_path):
    """The first run ends at midnight, within a batch, because an operator requested the first day."""
    request.param = kind
    start_server(request)
    adapter = DATABASES[kind](tmp_path)
    midnight = SECOND * ARRIVALS_PER_DAY
    pushes = [("g", midnight + at, [make_delta("c", 1000 + at, f"r{at}", title="a")]) for at in (-3, -2, 1, 2)]
    of_batch = pa.Table.from_batches(history(pushes)).combine_chunks()
    column = of_batch.schema.get_field_index("batch_id")
    of_batch = of_batch.set_column(column, "batch_id", pa.array(["g.main.1.4"] * len(of_batch))).to_batches(2)
    list(follow_history(adapter, "leaf", DeltaSelection(), of_batch[:1], until={"g/main": midnight - 1}))
    list(follow_history(adapter, "leaf", DeltaSelection(), of_batch, until={"g/main": midnight + 2}))
    assert sum(each.deltas for each in adapter.digests(DigestScope())) == len(pushes)
    for _ in range(2):
        restore(adapter, "leaf", of_batch, DigestScope(days=(FIRST,)))
        assert sum(each.deltas for each in adapter.digests(DigestScope())) == len(pushes)
    adapter.close()
