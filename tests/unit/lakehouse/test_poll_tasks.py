"""The results of a poll's tasks: rows that land, the next positions, and a report for each table."""

from datetime import date
from functools import reduce

import msgspec
import pyarrow as pa
import pytest

from lakehouse.landing.poll_tasks import HLCS_PER_LANDING, PollPlan
from lakehouse.landing.rows import POSITION, REPORT, ROW, Constants, LandedTable, ReadPosition
from lakehouse.landing.task_messages import TablePlan, TableResult
from lakesync.connectors.base import Census, ConnectorConfig, Page, ParallelRead, SourceRow, Table, Usage
from lakesync.model.errors import AdapterError, AuthError, CensusError, ConfigurationError, RateLimitedError
from lakesync.model.validation import MAX_ROW_BYTES, MAX_ROW_COLUMNS

FIRST = 1 << 40


class Source:
    """A source with the pages of its settings; a page that is an error is raised."""

    resumable = True
    tables = (Table("a"), Table("b"))

    def __init__(self, config):
        self.settings, self.calls = config.settings, 0

    @property
    def usage(self):
        return Usage(self.calls, 7, 100)

    def changes(self, table, _cursor):
        for page in self.settings.get(table, ()):
            self.calls += 1
            if isinstance(page, Exception):
                raise page
            yield page

    def census(self, _table):
        if isinstance(self.settings["census"], Exception):
            raise self.settings["census"]
        return Census(None, iter([self.settings["census"]]))

    def read(self, table, row_ids):
        yield Page(table, [SourceRow(row_id, {}) for row_id in row_ids])

    def find_deleted(self, _table, rows):
        return {row.row_id for row in rows}

    def close(self):
        pass


class Piece:
    def __init__(self, *pages):
        self._pages = pages

    def pages(self):
        for page in self._pages:
            if isinstance(page, Exception):
                raise page
            yield page


class Divided(Source):
    """A source that divides the tables of its settings."""

    def split(self, table, _cursor):
        return self.settings.get(f"{table} divided")


def work(settings, source=Source, **more):
    positions = more.pop("positions", {})
    tables = tuple(
        TablePlan(
            name,
            None,
            False,
            positions.get(name, ReadPosition("x")),
            LandedTable(name, None, (), (), -1),
            records_census=True,
        )
        for name in ("a", "b")
    )
    given = {"max_bytes": 1 << 20, "max_calls": None, **more}
    config = ConnectorConfig("gw", "desk", "x", settings)
    return PollPlan(source, config, Constants("gw", "desk", date(2026, 1, 1), 1), FIRST, 0, 5_000, tables, **given)


def done(work):
    """The rows of all tasks, and the reports by table."""
    batches = [batch for part in work.parts() for batch in work.read(part)]
    rows = [row for batch in batches for row in pa.Table.from_batches([batch]).to_pylist()]
    reports = [msgspec.json.decode(row["columns"], type=TableResult) for row in rows if row["kind"] == REPORT]
    return [row for row in rows if row["kind"] != REPORT], reports


def page(table, *row_ids, at=1):
    return Page(table, [SourceRow(row_id, {"is": row_id}) for row_id in row_ids], {"at": at})


def test_each_table_is_a_task_with_its_own_stamps_and_a_failed_one_keeps_its_pages():
    pages = {"a": [page("a", "r1"), AuthError("who are you")], "b": [page("b", "r1", "r2")]}
    rows, (of_a, of_b) = done(work(pages))
    assert [row["row_id"] for row in rows if row["kind"] == ROW] == ["r1", "r1", "r2"]
    assert len({row["hlc"] for row in rows}) == len(rows)
    assert all(FIRST <= row["hlc"] < FIRST + HLCS_PER_LANDING for row in rows)
    assert isinstance(of_a.failure.error(), AuthError)
    assert (of_a.position.cursor, of_a.position.census_ms) == ({"at": 1}, None)
    assert (of_b.failure, of_b.position.census_ms, of_b.rows) == (None, 5_000, 2)
    assert [msgspec.json.decode(row["columns"], type=ReadPosition) for row in rows if row["kind"] == POSITION] == [
        of_a.position,
        of_b.position,
    ]


def test_unchanged_rows_do_not_land():
    pages = {"a": [page("a", "r1")]}
    _, (of_a, _) = done(work(pages))
    rows, (again, _) = done(work(pages, positions={"a": of_a.position, "b": ReadPosition("x", census_ms=1)}))
    assert [row["kind"] for row in rows] == [POSITION, POSITION], "but they are recorded as counted"
    assert (again.rows, again.position.cursor) == (1, {"at": 1})


@pytest.mark.parametrize("limits", [{"max_bytes": 1}, {"max_calls": 2}])
def test_a_long_poll_stops_after_a_page_and_tasks_share_the_budget(limits):
    pages = {name: [page(name, f"r{number}", at=number) for number in range(4)] for name in ("a", "b")}
    _, results = done(work(pages, **limits))
    assert [(each.has_more, each.position.cursor, each.calls) for each in results] == [(True, {"at": 0}, 1)] * 2
    assert all(each.position.census_ms is None for each in results)


def test_one_table_at_a_time_is_divided_and_lands_completely_or_not_at_all():
    row = SourceRow("r", {})
    whole = ParallelRead([Piece([row]), Piece([row], [row])], {"at": 9})
    rows, results = done(work({"a divided": whole, "b divided": whole}, Divided))
    assert [(each.table, each.rows, each.has_more, each.lands_partially) for each in results] == [
        ("a", 1, False, False),
        ("a", 2, False, False),
        ("b", 0, True, True),
    ]
    assert [each.position and each.position.cursor for each in results] == [None, {"at": 9}, None]
    assert max(row["hlc"] for row in rows if row["kind"] == ROW) < max(row["hlc"] for row in rows)
    broken = ParallelRead([Piece([row], RateLimitedError("slowly", retry_after=3.0)), Piece([row])], {"at": 9})
    _, (first, *_) = done(work({"a divided": broken}, Divided))
    assert (first.lands_partially, first.failure.error().retry_after) == (False, 3.0)


@pytest.mark.parametrize(
    ("census", "kind", "noted"),
    [(["r1"], None, True), (RateLimitedError("slowly"), RateLimitedError, False), (AuthError("no"), AuthError, True)],
)
def test_a_census_is_recorded_unless_it_failed_with_a_transient_error(census, kind, noted):
    rows, results = done(work({"census": census}, deleted_share=0.2))
    assert [None if each.failure is None else type(each.failure.error()) for each in results] == [kind, kind]
    assert [each.position is not None and each.position.census_ms == 5_000 for each in results] == [noted, noted]
    assert [row["row_id"] for row in rows if row["kind"] == ROW] == (["r1", "r1"] if kind is None else [])


def test_a_connectors_own_error_class_is_reported_as_its_nearest_known_base():
    class OwnError(CensusError):
        pass

    _, (of_a, _) = done(work({"a": [OwnError("odd")]}))
    assert type(of_a.failure.error()) is CensusError


def test_an_unexpected_error_of_one_table_does_not_stop_the_others():
    rows, (of_a, of_b) = done(work({"a": [page("a", "r1"), KeyError("fields")], "b": [page("b", "r2")]}))
    assert [row["row_id"] for row in rows if row["kind"] == ROW] == ["r1", "r2"]
    assert type(of_a.failure.error()) is AdapterError
    assert (of_a.position.cursor, of_b.failure) == ({"at": 1}, None)
    _, results = done(work({"census": KeyError("ids")}, deleted_share=0.2))
    assert [type(each.failure.error()) for each in results] == [AdapterError, AdapterError]


def nested(levels):
    return reduce(lambda inner, _: [inner], range(levels), 1)


@pytest.mark.parametrize(
    "bad",
    [
        SourceRow("", {}),
        SourceRow("a\0", {}),
        SourceRow("r" * 513, {}),
        SourceRow("r", {"a b": 1}),
        SourceRow("r", {"Name": 1, "name": 1}),
        SourceRow("r", {"deep": nested(101)}),
        SourceRow("r", {"too_deep": nested(5_000)}),
        SourceRow("r", {"huge": 10**400}),
        SourceRow("r", {"long": "x" * MAX_ROW_BYTES}),
        SourceRow("wide", dict.fromkeys((f"c{number}" for number in range(MAX_ROW_COLUMNS + 1)), 1)),
    ],
    ids=lambda row: row.row_id[:3] + "".join(row.columns)[:9],
)
def test_a_row_that_the_gateway_would_reject_does_not_land_and_is_not_remembered(bad):
    unfit = Page("a", [SourceRow("r2", {}), bad], {"at": 2})
    rows, (of_a, _) = done(work({"a": [page("a", "r1"), unfit]}))
    assert [row["row_id"] for row in rows if row["kind"] == ROW] == ["r1"]
    assert isinstance(of_a.failure.error(), ConfigurationError)
    assert (of_a.position.cursor, list(of_a.position.seen.rows)) == ({"at": 1}, ["r1"])
    divided = ParallelRead([Piece([bad])], {"at": 9})
    rows, (first, _) = done(work({"a divided": divided}, Divided))
    assert not [row for row in rows if row["kind"] == ROW]
    assert isinstance(first.failure.error(), ConfigurationError)
    census_of = type("Reading", (Source,), {"read": lambda _, table, __: iter([Page(table, [bad])])})
    rows, (first, _) = done(work({"census": ["r"]}, census_of, deleted_share=0.2))
    assert not [row for row in rows if row["kind"] == ROW]
    assert isinstance(first.failure.error(), ConfigurationError)
