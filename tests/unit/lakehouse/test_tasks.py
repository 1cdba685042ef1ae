"""Tasks are sent to executors as values, and their errors return with type and fields."""

import hashlib
import sqlite3
from concurrent.futures import CancelledError, Future
from contextlib import closing, nullcontext, suppress
from threading import Barrier
from types import SimpleNamespace

import msgspec
import pytest
import requests

from lakehouse import task_runner
from lakehouse.backends import flows
from lakehouse.backends.adapter_tasks import run_task
from lakehouse.backends.destinations import Follower, FollowTask
from lakehouse.backends.flows import Flow, LakeFlow
from lakehouse.backends.transfers import Migration, Tiering
from lakehouse.task_runner import THREADS, in_threads, raise_failure
from lakesync.adapters.backend_config import SingleBackend, TieredBackend, WriteTarget
from lakesync.adapters.backends.sqlite import SqliteAdapter
from lakesync.adapters.deltas import DeltaBatch, DeltaQuery, StoredDelta
from lakesync.adapters.redaction import RedactionRequest
from lakesync.adapters.transfer.flow_pages import RowFilter
from lakesync.adapters.transfer.follower import DeltaSelection
from lakesync.adapters.transfer.migration import MigrationScope
from lakesync.model.delta import extract_delta
from lakesync.model.errors import (
    AdapterError,
    ConfigurationError,
    IntegrityError,
    LakeUnavailableError,
    Rejection,
    SchemaError,
)
from lakesync.model.schema import parse_schema
from lakesync.staging.remote import error_of
from lakesync.wire.json import decode_push

SCHEMA = parse_schema({"table": "flights", "columns": [{"name": "delay", "type": "number"}]})


@pytest.fixture
def backend(tmp_path):
    return lambda name: SingleBackend(name, f"sqlite://{tmp_path}/{name}.db")


def run(work):
    """Run a task as an executor does."""
    rows = [row for batch in run_task([work], 0) for row in batch.to_pylist()]
    raise_failure(row["failure"] for row in rows)
    return [row["report"] for row in rows]


def test_each_task_runs_from_its_serialised_value(backend, tmp_path):
    leaf = WriteTarget("a", backend("a").uri, cold=(TieredBackend(backend("h"), backend("c"), 5),))
    row_filter = RowFilter(where=(("delay", "gt", "3"),))
    assert run(Flow("f", backend("s"), leaf, row_filter, (SCHEMA,))) == []
    assert len(run(Tiering("t", backend("h"), backend("c"), -1, 5))) == 1
    assert len(run(Migration("m", backend("s"), backend("d"), MigrationScope(), 10, str(tmp_path)))) == 1
    follower = Follower("l", leaf, DeltaSelection(), (SCHEMA,))
    (report,) = run(FollowTask(follower, [], {}, {"g/main": 512}))
    assert '"g/main":512' in report


@pytest.mark.parametrize("task", ["tiering", "migration"])
def test_b7_a_task_that_has_read_deltas_before_an_erasure_does_not_write_them(backend, tmp_path, monkeypatch, task):
    """As a task of a killed run, which goes on while the erasure runs."""
    delta = extract_delta(None, {"delay": 1}, table="flights", row_id="r", client_id="c", hlc=1)
    with closing(SqliteAdapter(tmp_path / "a.db")) as source, closing(SqliteAdapter(tmp_path / "b.db")) as target:
        source.insert_deltas(DeltaBatch("1", "g", (StoredDelta("g", 256, delta),)))
        read = SqliteAdapter.query_arrow

        def erased_after(adapter, query):
            page = read(adapter, query)
            for each in (target, source):
                each.redact([RedactionRequest("g", 1, "flights", "r")])
            return page

        monkeypatch.setattr(SqliteAdapter, "query_arrow", erased_after)
        with pytest.raises(IntegrityError, match="another run has moved it"):
            run(
                Tiering("t", backend("a"), backend("b"), -1, None)
                if task == "tiering"
                else Migration("m", backend("a"), backend("b"), MigrationScope(), 10, str(tmp_path))
            )
        monkeypatch.undo()
        assert not len(target.query_arrow(DeltaQuery()).deltas)
        assert len(source.query_arrow(DeltaQuery()).deltas) == 1


class Gateway:
    """Rejects the deltas of some rows, as a server reports it."""

    def __init__(self, *rows):
        self.rows, self.stored = rows, []

    def push(self, _gateway, body):
        deltas = decode_push(body).deltas
        rejected = [Rejection(each.delta_id, "X", each.row_id) for each in deltas if each.row_id in self.rows]
        if rejected or not self.rows:
            response = requests.Response()
            response.status_code = 422
            content = {"error": "no such column", "code": "SCHEMA_ERROR", "rejected": rejected}
            response._content = msgspec.json.encode(content)
            raise error_of(response)
        self.stored += [each.row_id for each in deltas]


@pytest.fixture
def into_lake(backend, tmp_path, monkeypatch):
    def steps(gateway, *replay_range, epoch=1):
        monkeypatch.setattr(flows, "open_intake", lambda _: nullcontext(gateway))
        progress, epochs = tmp_path / "f.json", {"home/main": epoch}
        row_filter = RowFilter(gateways=("old",))
        return list(LakeFlow(backend("s"), row_filter, "home", None, progress, epochs, *replay_range).run())

    deltas = [
        extract_delta(None, {"delay": 1}, table="flights", row_id=f"r{row}", client_id="c", hlc=(9 << 16) + row)
        for row in range(4)
    ]
    stored = tuple(StoredDelta("old", delta.hlc, delta) for delta in deltas)
    SqliteAdapter(tmp_path / "s.db").insert_deltas(DeltaBatch("old.main.1.9-9", "old", stored))
    return steps


def test_a_flow_into_the_lake_continues_without_the_deltas_that_the_gateway_rejects(into_lake):
    gateway = Gateway("r1", "r2")
    first, again = into_lake(gateway, (0, 1 << 40))
    assert gateway.stored == ["r0", "r3"] * 2
    assert [each.message for each in first.rejected] == ["r1", "r2"] == [each.message for each in again.rejected]
    assert first.progress.position.value == (9 << 16) + 3
    assert [(each.scanned, each.deltas, list(each.days.values())) for each in (first, again)] == [(4, 2, [2])] * 2
    assert first.progress.deltas == 2


@pytest.mark.usefixtures("into_lake")  # which fills the source
def test_a_flow_reports_its_suspended_tables(backend, tmp_path):
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        connection.execute("CREATE TABLE flights (row_id TEXT)")  # a table of the operator
    written, last = Flow("flows/f/t", backend("s"), WriteTarget("t", backend("t").uri), RowFilter(), (SCHEMA,)).run()
    assert (written.deltas, written.suspended) == (4, ())
    assert (last.scanned, last.suspended, last.progress) == (0, ("flights",), written.progress)


def test_a_flow_into_the_lake_starts_again_if_the_store_was_rebuilt(into_lake):
    before, after = Gateway("other"), Gateway("other")
    into_lake(before)
    into_lake(after)
    assert after.stored == [], "the flow continues after the deltas that the store has"
    into_lake(after, epoch=2)
    assert after.stored == before.stored == ["r0", "r1", "r2", "r3"]
    into_lake(after, epoch=2)
    assert len(after.stored) == 4


def test_a_flow_into_the_lake_stops_if_the_gateway_rejects_the_whole_push(into_lake):
    with pytest.raises(SchemaError, match="no such column"):
        into_lake(Gateway())


def test_errors_of_tasks_keep_their_class(backend, tmp_path):
    (tmp_path / "broken.db").write_text("this is no database of SQLite, however long one looks at it")
    with pytest.raises(AdapterError, match=r"broken\.db cannot be used"):
        run(Tiering("t", backend("broken"), backend("c"), -1, 5))
    with pytest.raises(ConfigurationError, match="no adapter has the scheme 'gopher'"):
        run(Tiering("t", SingleBackend("x", "gopher://hole"), backend("c"), -1, 5))


def test_b11_a_call_that_fails_does_not_keep_the_others_from_being_called():
    called = []

    def call(number):
        if number == 0:
            raise LakeUnavailableError("the table's files are missing")
        hashlib.sha256(bytes(1 << 20))  # so that calls are waiting when the first one fails
        called.append(number)

    spark = SimpleNamespace(getTags=set, addTag=None)
    with pytest.raises(LakeUnavailableError):
        in_threads(spark, call, range(50 * THREADS))
    assert sorted(called) == list(range(1, 50 * THREADS))


def test_after_an_interrupt_no_further_call_begins(monkeypatch):
    called, last_call, are_busy = [], Future(), Barrier(THREADS + 1)

    def call(number):
        called.append(number)
        are_busy.wait()
        with suppress(CancelledError):  # go on until the calls that have not begun are cancelled
            last_call.result().result()

    def interrupted(calls):
        last_call.set_result(calls[-1])
        are_busy.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(task_runner, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        in_threads(SimpleNamespace(getTags=set, addTag=None), call, range(50 * THREADS))
    assert len(called) == THREADS
