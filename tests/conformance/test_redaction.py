"""B7 at a backend: covered deltas lose their values and keep their positions, and rows are rebuilt from the others."""

from __future__ import annotations

import sqlite3
from functools import partial

import pytest

from lakesync.adapters import DeltaBatch, LocalDisk, ObjectDeltas, SqliteAdapter, StoredDelta
from lakesync.adapters.arrow import to_arrow
from lakesync.adapters.arrow_access import copy_page, fence_writes
from lakesync.adapters.composite import CompositeBase, cold_tier_contents
from lakesync.adapters.deltas import DeltaQuery, MarkUpdate
from lakesync.adapters.digests import DigestScope
from lakesync.adapters.redaction import RedactionRequest, require_redactable
from lakesync.adapters.transfer.flow_pages import RowFilter
from lakesync.adapters.transfer.flows import run_flow
from lakesync.adapters.transfer.follower import DeltaSelection, follow_history
from lakesync.adapters.transfer.loads import WrittenStreams
from lakesync.model.crash_points import VARIABLE
from lakesync.model.errors import AdapterError, ConfigurationError, IntegrityError, SchemaError, ValidationError
from lakesync.model.schema import parse_schema
from lakesync.model.types import RowDelta
from lakesync.staging.records import Erasure
from tests.conformance.adapter_places import COARSE_ARRIVALS, DATABASES, TABLES, start_server
from tests.conformance.book import make_delta
from tests.conformance.history_batches import history, pushes
from tests.conformance.test_adapter_tables import NOTES, parsed, rows
from tests.conformance.test_adapters import everything
from tests.forked import run_code

SECRET = "the-erased-text"
ROW = RedactionRequest("g", 100, table="notes", row_id="erased")
ANN = RedactionRequest("g", 100, client_id="ann")
OBJECTS = ("parquet on local disk", "json on local disk", "parquet on s3")


def written():
    """`(gateway, deltas)`: the row to erase, a client's deltas of other rows, later deltas, and another gateway's."""
    return [
        ("g", [make_delta("bob", 1, "shared", title="of bob", size=1), make_delta("bob", 2, "erased", title=SECRET)]),
        (
            "g",
            [make_delta("ann", 3, "shared", title=SECRET), make_delta("ann", 4, "hers", title=SECRET, tags=[SECRET])],
        ),
        ("g", [make_delta("ann", 5, "shared", table="other", title=SECRET), make_delta("bob", 6, "hers", size=7)]),
        ("g", [make_delta("bob", 7, "erased"), make_delta("ann", 101, "later", title="after it")]),
        ("h", [make_delta("ann", 8, "theirs", title="another gateway's")]),
    ]


def fill(adapter, schemas=()):
    for number, (gateway, deltas) in enumerate(written(), 1):
        stored = tuple(StoredDelta(gateway, 256 * number, delta) for delta in deltas)
        mark = MarkUpdate(f"leaf {number}", None, "there")
        adapter.apply_arrow(f"{gateway}.main.1.{number}-{number}", to_arrow(stored), mark, schemas)


def said(adapter):
    """The values and the position of each delta, by identity."""
    return {each.identity: (each.arrival, each.delta.op, len(each.delta.columns)) for each in everything(adapter)}


def is_clean(adapter, kind, before):
    """Check that no erased value is left, all others are unchanged, and each delta has its position."""
    after = said(adapter)
    assert after.keys() == before.keys()
    assert {place: value[0] for place, value in after.items()} == {place: value[0] for place, value in before.items()}
    gone = {("g", "bob", 2), ("g", "ann", 3), ("g", "ann", 4), ("g", "ann", 5)}
    for (gateway, client, hlc, name), stored in after.items():
        erased = (gateway, client, hlc) in gone
        assert stored[1:] == (("UPDATE", 0) if erased else before[gateway, client, hlc, name][1:])
    assert SECRET not in str(everything(adapter))
    states = adapter.get_latest_state("g", "notes", ["shared", "hers", "erased"])
    texts = {row: {name: bytes(raw) for name, raw in state.values().items()} for row, state in states.items()}
    assert texts == {"shared": {"title": b'"of bob"', "size": b"1"}, "hers": {"size": b"7"}, "erased": {}}
    assert (kind in COARSE_ARRIVALS) or after["g", "ann", 101, written()[3][1][1].delta_id][0] == 1024


@pytest.mark.parametrize("kind", [*TABLES, *OBJECTS])
def test_b7_covered_deltas_are_emptied_and_keep_their_identity(request, kind, tmp_path):
    request.param = kind
    start_server(request)
    adapter = DATABASES[kind](tmp_path)
    schemas = [NOTES] if kind in TABLES else []
    fill(adapter, schemas)
    reader = DATABASES[kind](tmp_path)
    before = said(reader)
    assert (adapter.redact([ROW], schemas).deltas, adapter.redact([ANN], schemas).deltas) == (1, 3)
    is_clean(adapter, kind, before)
    is_clean(reader, kind, before)  # its read values differ from its stored ones
    if kind in TABLES:
        found = rows(adapter)
        assert found.keys() == {"shared", "hers", "later", "theirs"}  # also with soft delete
        assert (found["shared"]["title"], found["hers"]["title"], parsed(found["hers"]["tags"])) == (
            "of bob",
            None,
            None,
        )
        assert (int(found["hers"]["size"]), found["hers"]["deleted_at"]) == (7, None)
    again = adapter.redact([ROW, ANN], schemas)
    assert again.deltas == 0
    assert set(again.touched) == {
        *(("g", "notes", row_id) for row_id in ("erased", "shared", "hers")),
        ("g", "other", "shared"),
    }
    is_clean(adapter, kind, before)
    if kind == "bigquery":
        return  # each statement takes seconds
    fill(adapter, schemas)  # a repeat of the original batch restores nothing
    is_clean(adapter, kind, before)
    one_table = RedactionRequest("h", 100, client_id="ann", tables=("other",))
    assert adapter.redact([one_table], schemas).deltas == 0
    assert adapter.redact([RedactionRequest("h", 100, client_id="ann", tables=("notes",))], schemas).deltas == 1
    for each in (adapter, reader):
        each.close()


KILLED = """
import sys
from lakesync.adapters import LocalDisk, ObjectDeltas, SqliteAdapter
from tests.conformance.test_redaction import ANN, NOTES, ROW

kind, path = sys.argv[1:]
adapter = SqliteAdapter(path) if kind == "sqlite" else ObjectDeltas(LocalDisk(path))
adapter.redact([ROW, ANN], [NOTES] if kind == "sqlite" else [])
"""


@pytest.mark.parametrize(
    ("kind", "place", "left"),
    [
        ("sqlite", "sql.redacted_deltas", 4),
        ("sqlite", "sql.redacted", 0),
        ("objects", "objects.redacted:1", 3),
        ("objects", "local.before_place", 4),
    ],
)
def test_a_repeated_redaction_completes_an_interrupted_one(tmp_path, kind, place, left):
    path = tmp_path / "there"
    adapter = SqliteAdapter(path) if kind == "sqlite" else ObjectDeltas(LocalDisk(path))
    schemas = [NOTES] if kind == "sqlite" else []
    fill(adapter, schemas)
    before = said(adapter)
    assert run_code(KILLED, kind, str(path), **{VARIABLE: place}) == -9
    assert adapter.redact([ROW, ANN], schemas).deltas == left
    is_clean(adapter, kind, before)
    if kind == "sqlite":
        assert rows(adapter).keys() == {"shared", "hers", "later", "theirs"}
        texts = [file.read_bytes() for file in tmp_path.iterdir()]
        assert not any(SECRET.encode() in text for text in texts)
    adapter.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb", "parquet on local disk"])
def test_b7_a_follower_that_has_read_its_mark_before_an_erasure_writes_nothing(request, kind, tmp_path):
    """As a Spark task of a killed run, which goes on while the erasure runs."""
    request.param = kind
    start_server(request)
    adapter = DATABASES[kind](tmp_path)
    made = pushes(4)

    def follow(batches):
        return list(follow_history(adapter, "leaf", DeltaSelection(), batches, [NOTES] if kind in TABLES else ()))

    def erased_meanwhile(batches):
        adapter.redact([ROW])
        yield from batches

    for part in (made[:2], made):  # the first without a mark
        before = everything(adapter)
        with pytest.raises(IntegrityError, match="another run has moved it"):
            follow(erased_meanwhile(history(part)))
        assert everything(adapter) == before
        follow(history(part))
        assert len(everything(adapter)) == sum(len(deltas) for _, _, deltas in part)
    adapter.close()


def test_b7_a_flow_that_has_read_its_mark_before_an_erasure_writes_nothing(tmp_path):
    source, target = (SqliteAdapter(tmp_path / f"{name}.db") for name in ("source", "target"))
    fill(source)

    def erased_meanwhile():
        target.redact([ROW])
        return WrittenStreams()

    with pytest.raises(IntegrityError, match="another run has moved it"):
        list(run_flow(source, target, "f", RowFilter(), read_written=erased_meanwhile))
    assert everything(target) == []
    list(run_flow(source, target, "f", RowFilter()))
    assert everything(target) == everything(source)
    for each in (source, target):
        each.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb", "parquet on local disk", "nested"])
def test_b7_a_fenced_writer_writes_nothing_after_an_erasure_has_begun(request, kind, tmp_path):
    request.param = kind
    start_server(request)
    adapter, source = DATABASES[kind](tmp_path), SqliteAdapter(tmp_path / "source.db")
    fill(source)
    deltas = source.query_arrow(DeltaQuery()).deltas
    fence_writes(adapter, "m")
    for single in (adapter,) if kind != "nested" else _singles(adapter):
        single.redact([ROW])
    scope = DigestScope()
    with pytest.raises(IntegrityError, match="another run has moved it"):
        copy_page(adapter, "migration", deltas)
    if kind != "nested":
        with pytest.raises(IntegrityError, match="another run has moved it"):
            adapter.restore_arrow("m", "g.main.1.1-3", deltas, scope)
    assert everything(adapter) == []
    fence_writes(adapter, "m")
    copy_page(adapter, "migration", deltas)
    assert len(everything(adapter)) == len(deltas)
    for each in (adapter, source):
        each.close()


def _singles(adapter):
    """The adapters of a composition that are not compositions."""
    if not isinstance(adapter, CompositeBase):
        return [adapter]
    return [single for each in adapter.adapters for single in _singles(each)]


class ErasedInThatMoment(LocalDisk):
    """Is erased between a writer's check of its mark and its object."""

    def __init__(self, path):
        super().__init__(path)
        self.path, self.erasing = path, True

    def put_object(self, key, data, *, if_absent=False):
        if self.erasing and key.startswith("deltas/"):
            self.erasing = False
            ObjectDeltas(LocalDisk(self.path)).redact([ROW])
        return super().put_object(key, data, if_absent=if_absent)


@pytest.mark.parametrize("has_mark", [False, True])
def test_b7_an_object_that_an_erasure_has_missed_is_deleted(tmp_path, has_mark):
    adapter = ObjectDeltas(ErasedInThatMoment(tmp_path))
    stored = to_arrow([StoredDelta("g", 256, delta) for delta in written()[0][1]])
    adapter.fence_writes("m")
    adapter.move_mark(MarkUpdate("leaf", None, "{}"))
    write = partial(adapter.insert_arrow, "g.main.1.1-1", "g", stored)
    if has_mark:
        write = partial(adapter.apply_arrow, "g.main.1.1-1", stored, MarkUpdate("leaf", "{}", '{"n":1}'))
    with pytest.raises(IntegrityError, match="another run has moved it"):
        write()
    assert everything(adapter) == []
    adapter.close()


def test_b7_a_repair_stops_before_its_next_object_once_an_erasure_has_begun(tmp_path):
    adapter = ObjectDeltas(ErasedInThatMoment(tmp_path))
    stored = [StoredDelta("g", 256, make_delta("bob", n, "kept", table, size=n)) for n, table in ((1, "a"), (2, "b"))]
    adapter.fence_writes("m")
    with pytest.raises(IntegrityError, match="another run has moved it"):
        adapter.restore_arrow("m", "g.main.1.1-2", to_arrow(stored), DigestScope())
    assert len(everything(adapter)) == 1
    adapter.close()


def test_sqlite_reports_a_reader_that_keeps_erased_data_in_the_wal(tmp_path):
    adapter = SqliteAdapter(tmp_path / "d.db")
    fill(adapter)
    with adapter._executor.connect() as writing:
        writing.execute("PRAGMA busy_timeout=0")  # instead of twenty seconds
    reader = sqlite3.connect(adapter.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM lakesync_deltas").fetchone()
    with pytest.raises(AdapterError, match="another connection is reading it"):
        adapter.redact([ROW])
    reader.close()
    assert adapter.redact([ROW, ANN]).deltas == 3
    assert not any(SECRET.encode() in file.read_bytes() for file in tmp_path.iterdir())
    adapter.close()


def test_redacted_rows_of_a_hot_tier_lose_values_of_the_cold_tier(tmp_path):
    hot, cold = SqliteAdapter(tmp_path / "hot.db"), ObjectDeltas(LocalDisk(tmp_path / "cold"))
    fill(hot, [NOTES])
    older = [StoredDelta("g", 256, make_delta("ann", 1, "old", title=SECRET))]
    both = to_arrow([*older, StoredDelta("g", 256, make_delta("bob", 2, "old", size=3))])
    hot.apply_arrow("g.main.1.0-0", both, MarkUpdate("old", None, "there"), [NOTES])
    cold.insert_deltas(DeltaBatch("tier", "g", tuple(older)))
    hot.delete_deltas(cold.query_arrow(DeltaQuery()).deltas)
    assert rows(hot)["old"]["title"] == SECRET
    touched = cold.redact([ANN]).touched
    assert hot.redact([ANN], [NOTES], cold_tier_contents([cold]), touched).rows == 3
    assert (rows(hot)["old"]["title"], rows(hot)["old"]["size"]) == (None, 3)
    for each in (hot, cold):
        each.close()


@pytest.mark.parametrize("kind", TABLES)
def test_b7_rows_of_a_table_whose_schema_was_retired_are_deleted(request, kind, tmp_path):
    request.param = kind
    start_server(request)
    adapter = DATABASES[kind](tmp_path)
    schema = parse_schema(
        {
            "table": "notes",
            "columns": [
                {"name": "title", "type": "string"},
                {"name": "gateway", "type": "string"},
                {"name": "__gateway", "type": "string"},  # the system's column is `_gateway`
                {"name": "size", "type": "number"},
            ],
        }
    )
    fill(adapter, [schema])
    delta = make_delta("ann", 9, "unfit", size=SECRET, gateway="h")
    adapter.apply_arrow("g.main.1.9-9", to_arrow([StoredDelta("g", 9999, delta)]), MarkUpdate("m", None, "v"), [schema])
    assert len(adapter.dead_letters(10)) == 1
    with adapter._executor.connect() as connection:
        connection.execute("CREATE TABLE other (row_id VARCHAR(80), title VARCHAR(80))")  # a table of the operator
        connection.execute("INSERT INTO other VALUES ('shared', 'mine')")
    touched = adapter.redact([ANN]).touched  # the schema was retired
    assert ("g", "other", "shared") in touched
    assert adapter.remove_rows(touched) == 3
    assert adapter.remove_rows(touched) == adapter.remove_rows([]) == 0
    with adapter._executor.connect() as connection:
        kept = connection.query("SELECT _gateway, row_id FROM notes")
        assert sorted(kept) == [("g", "erased"), ("g", "later"), ("h", "theirs")]
        assert connection.query("SELECT title FROM other") == [("mine",)]
    assert adapter.dead_letters(10) == []
    adapter.close()


def test_a_row_with_an_erased_key_is_written_without_it(tmp_path):
    keyed = parse_schema({"table": "notes", "columns": [{"name": "title", "type": "string"}], "primaryKey": ["title"]})
    adapter = SqliteAdapter(tmp_path / "d.db")
    deltas = (make_delta("ann", 1, "r", title=SECRET), make_delta("bob", 2, "r", size=1))
    stored = tuple(StoredDelta("g", 256, delta) for delta in deltas)
    adapter.apply_arrow("b", to_arrow(stored), MarkUpdate("leaf", None, "there"), [keyed])
    assert rows(adapter).keys() == {"r"}
    adapter.redact([ANN], [keyed])
    assert rows(adapter)["r"]["title"] is None
    adapter.close()


def test_an_erasure_does_not_wait_for_a_table_that_cannot_be_created(tmp_path):
    adapter = SqliteAdapter(tmp_path / "d.db")
    with adapter._executor.connect() as connection:
        connection.execute("CREATE TABLE other (row_id VARCHAR(80), title VARCHAR(80))")  # a table of the operator
    other = parse_schema({"table": "other", "columns": [{"name": "title", "type": "string"}]})
    fill(adapter, [NOTES, other])
    assert adapter.redact([ANN], [NOTES, other]).rows == 2
    assert SECRET not in str(everything(adapter))
    assert rows(adapter)["shared"]["title"] == "of bob"
    adapter.close()


def test_an_erasure_waits_for_a_table_that_lakesync_created(tmp_path):
    adapter = SqliteAdapter(tmp_path / "d.db")
    fill(adapter, [NOTES])
    grown = {
        "table": "notes",
        "columns": [
            *({"name": each.name, "type": each.type} for each in NOTES.columns),
            {"name": "synced_at", "type": "string"},
        ],
    }
    with pytest.raises(SchemaError, match="synced_at"):
        adapter.redact([ANN], [parse_schema(grown)])
    adapter.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "parquet on local disk"])
def test_an_insert_without_columns_is_emptied_and_a_delete_stays_a_delete(request, kind, tmp_path):
    request.param = kind
    start_server(request)
    adapter = DATABASES[kind](tmp_path)
    (title,) = make_delta("ann", 2, "deleted", title=SECRET).columns
    inserted = RowDelta("INSERT", "notes", "empty", "ann", (), 1, "an insert")
    deleted = RowDelta("DELETE", "notes", "deleted", "ann", (title,), 3, "a delete")  # from an adapter of another kind
    older = make_delta("bob", 2, "deleted", size=1)
    stored = tuple(StoredDelta("g", 256 * n, delta) for n, delta in enumerate((inserted, deleted, older), 1))
    adapter.insert_deltas(DeltaBatch("g.main.1.1-1", "g", stored))
    assert adapter.redact([ANN]).deltas == 2
    assert SECRET not in str(everything(adapter))
    ops = {each.delta.delta_id: each.delta.op for each in everything(adapter)}
    assert (ops["an insert"], ops["a delete"]) == ("UPDATE", "DELETE")
    states = adapter.get_latest_state("g", "notes", ["empty", "deleted"])
    assert [state.visible for state in states.values()] == [False, False]
    assert adapter.redact([ANN]).deltas == 0
    adapter.close()


@pytest.mark.parametrize(
    "named", [{}, {"table": "notes"}, {"row_id": "r"}, {"tables": ("notes",)}, {"table": "notes", "client_id": "ann"}]
)
def test_a_redaction_request_names_either_a_row_or_a_client(named):
    with pytest.raises(ValidationError, match="set either table and row_id, or client_id"):
        RedactionRequest("g", 100, **named)


@pytest.mark.parametrize(
    "named", [{}, {"table": "notes"}, {"row_id": "r"}, {"table": "notes", "row_id": "r", "client_id": "ann"}]
)
def test_an_erasure_names_either_a_row_or_a_client(named):
    target = {"table": None, "row_id": None, "client_id": None, **named}
    with pytest.raises(ValidationError, match=r"erasure 1 of gateway 'g' names .*: set either table and row_id, or"):
        Erasure("g", 1, **target, hlc=100, arrival=256, requested_ms=0)


def test_an_adapter_without_redaction_is_reported():
    with pytest.raises(ConfigurationError, match="'warehouse' \\(object\\) does not support erasure"):
        require_redactable(object(), "warehouse")
