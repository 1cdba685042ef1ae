"""The comparison of marks: which parts are behind, and by how much."""

import msgspec
import pytest

from lakesync.analysis.lags import (
    FollowerPosition,
    HistoryFile,
    Lag,
    LakeMarks,
    StateTable,
    collect_progress,
    compare_marks,
    lowest_mark,
)
from lakesync.analysis.marks import Report, report_in
from lakesync.model.namespaces import Namespaces
from lakesync.staging.records import Backlog
from lakesync.staging.shards import ShardMap

SHARED = Namespaces("tables", {})
TABLES = [StateTable("flights", "tables"), StateTable("planes", "tables")]


def at(second):
    return second * 1000 << 16


def waiting(gateway="nyc", shard="main", **changes):
    fields = {"flushed_seq": 5, "last_seq": 5, "last_arrival": at(20), "deltas": 0, "bytes": 0, "oldest_ms": None}
    fields |= {"flush_requested_ms": None, "checkpoint_arrival": at(20)}
    return Backlog(gateway, shard, 1, **{**fields, **changes})


def file(first=11, last=20, tables=("flights", "planes"), gateway="nyc", shard="main", deltas=10):
    return HistoryFile(gateway, shard, at(first), at(last), deltas, *tables)


def merged(**marks):
    return {table: {"nyc": at(second)} for table, second in marks.items()}


def behind(backlog, marks, files, followers=(), namespaces=SHARED, shards=None, tables=TABLES, **lake):
    found = collect_progress(backlog, LakeMarks(marks, **lake), tables, followers, namespaces, shards)
    return {lag.key: lag for lag in compare_marks(backlog, found, files)}


def test_nothing_is_behind_if_all_marks_are_equal():
    copy = FollowerPosition("copy", {"nyc/main": at(20)})
    assert behind([waiting()], merged(flights=20, planes=20), [file()], [copy]) == {}


def test_each_part_is_compared_independently():
    waits = waiting(last_seq=8, deltas=3, oldest_ms=21_000, checkpoint_arrival=at(10))
    found = behind([waits], merged(flights=20, planes=10), [file()], [FollowerPosition("copy", {"nyc/main": at(15)})])
    assert found == {
        "deltas/main/nyc": Lag("deltas", "main", "nyc", 5, 3, 21_000),
        "table/planes/nyc": Lag("table", "planes", "nyc", at(10), 10, 11_000),
        "checkpoint/nyc": Lag("checkpoint", "", "nyc", at(10), 10, 11_000),
        "destination/copy/nyc": Lag("destination", "copy", "nyc", at(15), 6, 15_000),
    }


def test_a_table_ignores_files_without_its_deltas():
    assert behind([waiting()], merged(flights=20, planes=10), [file(tables=("cabs", "flights"))]) == {}


def test_a_table_that_was_never_merged_lacks_every_file_that_may_have_its_deltas():
    found = behind([waiting()], merged(flights=20), [file(1, 10), file()])
    assert found.keys() == {"table/planes/nyc"}
    assert found["table/planes/nyc"].deltas == 20


def test_a_gateway_without_anything_in_the_lake_lacks_nothing():
    new = waiting("ewr", flushed_seq=0, last_seq=0, checkpoint_arrival=None)
    assert behind([waiting(), new], merged(flights=20, planes=20), [file()]) == {}


def test_a_rebuilt_store_needs_a_checkpoint_before_its_first_flush():
    rebuilt = waiting(flushed_seq=0, checkpoint_arrival=None)
    assert behind([rebuilt], merged(flights=20, planes=20), [file()]).keys() == {"checkpoint/nyc"}


def test_an_unregistered_table_is_followed_for_gateways_that_wrote_it():
    marks = {**merged(flights=20, planes=20), "loose": {"nyc": at(10)}}
    both = [waiting(), waiting("ewr")]
    marks = {table: {**of, "ewr": at(20)} if table != "loose" else of for table, of in marks.items()}
    assert behind(both, marks, [file(), file(gateway="ewr")]).keys() == {"table/loose/nyc"}


def test_tables_of_a_namespace_follow_only_its_gateways():
    own = Namespaces("tables", {"ewr": "east"})
    tables = [*TABLES, StateTable("flights", "east")]
    marks = {**merged(flights=20, planes=20), "east.flights": {"ewr": at(10)}}
    both = [waiting(), waiting("ewr")]
    files = [file(), file(gateway="ewr")]
    assert behind(both, marks, files, namespaces=own, tables=tables).keys() == {"table/east.flights/ewr"}
    moved = behind(both, marks, files, namespaces=own, tables=tables, misplaced=frozenset({"ewr"}))
    assert moved == {}


def test_a_sharded_table_follows_its_own_streams():
    shards = ShardMap({"planes": "side"}, "home")
    both = [waiting(shard="home"), waiting(shard="side")]
    files = [file(shard="side", tables=("planes", "planes")), file(shard="main", tables=("flights", "planes"))]
    found = behind(both, merged(flights=10, planes=10), files, shards=shards)
    assert found.keys() == {"table/flights/nyc", "table/planes/nyc"}
    assert found["table/planes/nyc"].deltas == 10


def test_the_checkpoint_of_a_sharded_gateway_is_as_old_as_its_oldest_part():
    both = [waiting(shard="home"), waiting(shard="side", checkpoint_arrival=at(10))]
    found = behind(both, merged(flights=20, planes=20), [file(shard="home")], shards=ShardMap({}, "home"))
    assert found.keys() == {"checkpoint/nyc"}


@pytest.mark.parametrize(("gateways", "lacking"), [((), True), (("nyc",), True), (("ewr",), False)])
def test_a_destination_follows_the_gateways_that_it_names(gateways, lacking):
    copy = FollowerPosition("copy", {}, frozenset(gateways))
    found = behind([waiting()], merged(flights=20, planes=20), [file()], [copy])
    assert bool(found) is lacking


def test_files_below_the_least_mark_are_not_read():
    found = collect_progress([waiting()], LakeMarks(merged(flights=20, planes=12)), TABLES, (), SHARED)
    assert lowest_mark(found) == at(12)
    assert lowest_mark(collect_progress([waiting()], LakeMarks(merged(flights=20)), TABLES, (), SHARED)) == 0
    assert lowest_mark([]) == 0


def test_the_pipelines_report_is_read_from_its_mark():
    lag = Lag("checkpoint", "", "nyc", 1, 2, 3)
    report = Report(5, (lag,), {lag.key: 3})
    assert report_in({"pipeline": msgspec.json.encode(report).decode()}) == report
    assert report_in({}) is None
