"""B4 and B5: state tables equal the merge of `deltas`, whatever runs again, and one bad value holds nothing back."""

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta

import msgspec
import pytest

from lakehouse.checks import duplicate_keys, unfit_values
from lakehouse.schema_snapshot import join_schemas
from lakehouse.sessions import session
from lakehouse.table_access import open_table
from lakehouse.table_creation import ensure_state
from lakehouse.table_definitions import LakeNames
from lakehouse.tables import merge_job, writes
from lakehouse.tables.merging import forget_marks, merge_table
from lakesync.model.delta import delta_id
from lakesync.model.errors import SchemaError
from lakesync.model.merge import RowState
from lakesync.model.schema import parse_schema
from lakesync.model.types import ColumnValue, RowDelta
from tests.integration.gateway_support import until
from tests.lake_support import arrivals, fill, states
from tests.spelling import spelled

FIRST = date(2013, 1, 1)
DAYS = [FIRST + timedelta(days=number) for number in range(3)]
TYPES = {"title": "string", "size": "number", "done": "boolean", "extra": "json"}

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute where the machine is busy


@pytest.fixture(scope="module")
def spark(spark_server):
    with session(spark_server["config"], shared=True) as spark:
        yield spark


@pytest.fixture
def names(request):
    """A lake of the test's own."""
    test = re.sub(r"\W+", "_", request.node.name)
    return LakeNames("lake", f"sys_{test}", f"tab_{test}")


def schema(types=TYPES, table="t"):
    return parse_schema({"table": table, "columns": [{"name": name, "type": kind} for name, kind in types.items()]})


def delta(op, row, hlc, client="a", table="t", **values):
    columns = tuple(ColumnValue.of(name, value) for name, value in values.items())
    identity = delta_id(client_id=client, hlc=hlc, table=table, row_id=row, columns=columns)
    return RowDelta(op, table, row, client, columns, hlc, identity)


def story(rng, gateway, days=DAYS, pushes_a_day=6):
    """`(arrival, deltas)` over several days: few rows, few clients, stamps that cross the order of arrival."""
    pushes = []
    for day in days:
        for arrival in arrivals(day, pushes_a_day, start=rng.randint(0, 80_000)):
            deltas = [
                delta(
                    rng.choices(["INSERT", "UPDATE", "DELETE"], [3, 6, 1])[0],
                    f"{gateway}-{rng.randint(1, 12)}",
                    rng.randint(1, 60),
                    rng.choice("abc"),
                    **{
                        name: rng.choice(["x", 'q"\\\n', 1.5, True, None, {"k": [1]}])
                        for name in rng.sample(list(TYPES), rng.randint(1, 3))
                    },
                )
                for _ in range(5)
            ]
            pushes.append(
                (arrival, [msgspec.structs.replace(one, columns=()) if one.op == "DELETE" else one for one in deltas])
            )
    return pushes


def merged(pushes, gateway):
    """The Python merge, spelled; rows that nothing was ever kept of are not told apart from rows never written."""
    rows = {}
    for _, deltas in pushes:
        for one in deltas:
            rows.setdefault((gateway, one.row_id), RowState()).merge(one)
    return {key: spelled(state) for key, state in rows.items()}


def lake(spark, names, table="t"):
    return {key: spelled(state) for key, state in states(spark.table(names.state(table))).items()}


def content(spark, names):
    rows = spark.table(names.state("t")).toArrow().to_pylist()
    return sorted(str(sorted((name, str(value)) for name, value in row.items())) for row in rows)


@pytest.mark.parametrize("rows_a_slice", [merge_job.ROWS_PER_SLICE, 3])
def test_b4_state_equals_the_merge_of_deltas_in_any_steps(spark, names, monkeypatch, rows_a_slice):
    monkeypatch.setattr(merge_job, "ROWS_PER_SLICE", rows_a_slice)
    rng = random.Random(1)
    one, two = story(rng, "one"), story(rng, "two")
    fill(spark, names, one, "one")
    fill(spark, names, two, "two")
    expected = merged(one, "one") | merged(two, "two")
    last = {"one": one[-1][0], "two": two[-1][0]}

    middle = {"one": one[7][0], "two": two[3][0]}
    first = merge_table(spark, schema(), middle, names=names)
    assert first.marks == middle
    assert lake(spark, names) == merged(one[:8], "one") | merged(two[:4], "two")
    report = merge_table(spark, schema(), last, names=names)
    assert (report.deltas_in, report.marks) == (5 * (len(one) - 8 + len(two) - 4), last)
    assert lake(spark, names) == expected
    assert not duplicate_keys(spark, "t", names)

    again = merge_table(spark, schema(), last, names=names)
    assert (again.deltas_in, again.rows_merged, again.snapshot_id) == (0, 0, report.snapshot_id)

    before = content(spark, names)
    forget_marks(spark, "t", names)
    for days in ([DAYS[2]], [DAYS[0], DAYS[1]]):
        assert merge_table(spark, schema(), last, days=days, names=names).marks == {}
    assert content(spark, names) == before
    assert merge_table(spark, schema(), last, names=names).marks == last
    assert content(spark, names) == before

    merge_table(spark, schema(), last, rebuild=True, names=names)
    assert content(spark, names) == before

    alone = merge_table(spark, schema(), {"two": last["two"]}, rebuild=True, names=names)
    assert alone.deltas_in == 5 * len(two)
    assert content(spark, names) == before


@pytest.mark.parametrize("rows_a_slice", [merge_job.ROWS_PER_SLICE, 3])
def test_b4_merge_on_read_equals_copy_on_write(spark, names, monkeypatch, rows_a_slice):
    monkeypatch.setattr(merge_job, "ROWS_PER_SLICE", rows_a_slice)
    rng = random.Random(2)
    pushes = story(rng, "g", pushes_a_day=9)
    fill(spark, names, pushes)
    merge_table(spark, schema(), {"g": pushes[3][0]}, names=names)
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: True)
    for arrival, _ in pushes[8::9]:
        report = merge_table(spark, schema(), {"g": arrival}, names=names)
        assert report.rows_merged
        assert (report.duplicates, report.differences) in {(0, 0), (None, None)}
    assert {row["name"] for row in spark.table(f"{names.state('t')}.refs").collect()} == {"main"}
    with open_table(spark, names.state("t")) as table:
        assert any(task.delete_files for task in table.scan().plan_files())
        assert {row["_row"]: row["_arrival"] for row in table.scan().to_arrow().to_pylist()} == {
            row["_row"]: row["_arrival"] for row in spark.table(names.state("t")).collect()
        }
        assert table.scan().to_arrow().num_rows == spark.table(names.state("t")).count()
    summaries = spark.table(f"{names.state('t')}.snapshots").select("summary").collect()
    assert len(summaries) > 3
    assert {row["summary"]["engine-name"] for row in summaries} == {"spark"}
    assert lake(spark, names) == merged(pushes, "g")
    before = content(spark, names)
    merge_table(spark, schema(), {"g": pushes[-1][0]}, rebuild=True, names=names)
    assert content(spark, names) == before


@pytest.mark.parametrize(("small", "point"), [(False, "tables.planned"), (True, "tables.on_branch")])
def test_b4_a_killed_merge_leaves_the_old_table(spark, names, monkeypatch, small, point):
    pushes = story(random.Random(4), "g", pushes_a_day=4)
    last = {"g": pushes[-1][0]}
    fill(spark, names, pushes)
    merge_table(spark, schema(), {"g": pushes[5][0]}, names=names)
    before = content(spark, names)
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: small)

    def die(reached):
        if reached == point:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writes, "crash_point", die)
        with pytest.raises(KeyboardInterrupt):
            merge_table(spark, schema(), last, names=names)
    assert content(spark, names) == before
    merge_table(spark, schema(), last, names=names)
    assert lake(spark, names) == merged(pushes, "g")
    assert {row["name"] for row in spark.table(f"{names.state('t')}.refs").collect()} == {"main"}


def test_b4_a_rebuild_repairs_a_damaged_table(spark, names):
    pushes = story(random.Random(4), "g", pushes_a_day=4)
    last = {"g": pushes[-1][0]}
    fill(spark, names, pushes)
    merge_table(spark, schema(), last, names=names)
    before = content(spark, names)
    spark.sql(f"DELETE FROM {names.state('t')} WHERE _row IN (SELECT max(_row) FROM {names.state('t')})")
    assert content(spark, names) != before
    assert merge_table(spark, schema(), last, rebuild=True, names=names).rows_merged == len(merged(pushes, "g"))
    assert content(spark, names) == before


def test_a_growing_table_gets_more_buckets(spark, names, monkeypatch):
    monkeypatch.setattr(writes, "ROWS_PER_BUCKET", 2)
    pushes = story(random.Random(5), "g", pushes_a_day=4)
    fill(spark, names, pushes)
    for arrival in (pushes[0][0], pushes[5][0], pushes[-1][0]):
        merge_table(spark, schema(), {"g": arrival}, names=names)
    with open_table(spark, names.state("t")) as table:
        assert writes.buckets_of(table) > 2
        assert {task.file.spec_id for task in table.scan().plan_files()} == {table.spec().spec_id}
    assert lake(spark, names) == merged(pushes, "g")
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: True)  # deletes beside files of an older division
    late = [(arrivals(DAYS[-1], 1, start=86_000)[0], [delta("UPDATE", "g-1", 99, title="late")])]
    fill(spark, names, late)
    merge_table(spark, schema(), {"g": late[0][0]}, names=names)
    assert lake(spark, names) == merged([*pushes, *late], "g")


def test_a_duplicate_row_is_reported_and_repaired(spark, names):
    first, second = arrivals(FIRST, 2)
    fill(spark, names, [(first, [delta("INSERT", "r", 1, title="x"), delta("INSERT", "s", 1, title="y")])])
    merge_table(spark, schema(), {"g": first}, names=names)
    spark.table(names.state("t")).where("_row = 'r'").writeTo(names.state("t")).append()
    assert duplicate_keys(spark, "t", names)
    fill(spark, names, [(second, [delta("UPDATE", "s", 2, title="z")])])
    assert merge_table(spark, schema(), {"g": second}, names=names).duplicates == 1
    assert not duplicate_keys(spark, "t", names)


def test_a_concurrent_writer_loses_no_data(spark, names, monkeypatch):
    """Between reading and committing, another run merges more and commits: what it merged stays."""
    pushes = [
        (arrival, [delta("INSERT", f"row-{number}", 10 + number, size=number)])
        for number, arrival in enumerate(arrivals(FIRST, 6))
    ]
    fill(spark, names, pushes)
    merge_table(spark, schema(), {"g": pushes[0][0]}, names=names)
    interfered = []

    def other_run_first(work):
        def run(*arguments, **options):
            if not interfered:
                interfered.append(True)
                merge_table(spark, schema(), {"g": pushes[-1][0]}, names=names)
            return work(*arguments, **options)

        return run

    for small in (False, True):
        interfered.clear()
        forget_marks(spark, "t", names)
        with monkeypatch.context() as patch:
            patch.setattr(writes, "_suits_merge_on_read", lambda *_, small=small: small)
            patch.setattr(writes, "_observe", other_run_first(writes._observe))
            merge_table(spark, schema(), {"g": pushes[2][0]}, names=names)
        assert interfered
        assert lake(spark, names) == merged(pushes, "g")


def test_a_killed_merge_beside_another_takes_no_rows(spark, names, monkeypatch):
    """Between the commits of a merge on read another run marks more rows as deleted, and dies: they stay."""
    first, second, third = arrivals(FIRST, 3)
    pushes = [
        (first, [delta("INSERT", f"row-{number}", 1, size=number) for number in range(4)]),
        (second, [delta("UPDATE", "row-0", 2, title="second")]),
        (third, [delta("UPDATE", f"row-{number}", 3, title="third") for number in range(4)]),
    ]
    fill(spark, names, pushes)
    merge_table(spark, schema(), {"g": first}, names=names)
    spark.sql(f"ALTER TABLE {names.state('t')} CREATE TAG merged")  # the user's own
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: True)
    observe = writes._observe
    killed = []

    def die(*_):
        killed.append(True)
        raise KeyboardInterrupt

    def after_a_killed_merge(*arguments):
        if not killed:
            with monkeypatch.context() as patch:
                patch.setattr(writes, "_observe", die)
                with pytest.raises(KeyboardInterrupt):
                    merge_table(spark, schema(), {"g": third}, names=names)
        return observe(*arguments)

    monkeypatch.setattr(writes, "_observe", after_a_killed_merge)
    merge_table(spark, schema(), {"g": second}, names=names)
    assert killed
    assert lake(spark, names) == merged(pushes[:2], "g")
    assert not duplicate_keys(spark, "t", names)
    merge_table(spark, schema(), {"g": third}, names=names)
    assert lake(spark, names) == merged(pushes, "g")
    assert {row["name"] for row in spark.table(f"{names.state('t')}.refs").collect()} == {"main", "merged"}


def test_a_merge_whose_branch_is_dropped_doubles_no_row(spark, names, monkeypatch, tmp_path):
    """An erasure drops all branches; it may do so while a merge on read appends the merged rows to its own."""
    first, second = arrivals(FIRST, 2)
    pushes = [
        (first, [delta("INSERT", f"row-{number}", 1, size=number) for number in range(4)]),
        (second, [delta("UPDATE", "row-0", 2, title="second")]),
    ]
    fill(spark, names, pushes)
    merge_table(spark, schema(), {"g": first}, names=names)
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: True)
    observe = writes._observe
    reached, dropped = tmp_path / "reached", tmp_path / "dropped"

    def held(batches):
        from pathlib import Path

        yield from batches
        Path(str(reached)).touch()
        deadline = time.monotonic() + 60  # a task of Spark cannot import `until`
        while not Path(str(dropped)).exists():
            assert time.monotonic() < deadline, "the branches were not dropped"
            time.sleep(0.05)

    def observe_slowly(*arguments):
        rows = observe(*arguments)
        return rows if dropped.exists() else rows.mapInArrow(held, rows.schema)

    def drop_branches():
        until(reached.exists, "the merge to append to its branch")
        for row in spark.table(f"{names.state('t')}.refs").where("type = 'BRANCH' AND name <> 'main'").collect():
            spark.sql(f"ALTER TABLE {names.state('t')} DROP BRANCH `{row['name']}`")
        dropped.touch()

    monkeypatch.setattr(writes, "_observe", observe_slowly)
    with ThreadPoolExecutor(1) as erasure:
        done = erasure.submit(drop_branches)
        merge_table(spark, schema(), {"g": second}, names=names)
        done.result()
    assert not duplicate_keys(spark, "t", names)
    assert lake(spark, names) == merged(pushes, "g")
    assert {row["name"] for row in spark.table(f"{names.state('t')}.refs").collect()} == {"main"}


def test_b5_a_value_that_does_not_fit_is_null_counted_and_kept(spark, names):
    (arrival,) = arrivals(FIRST, 1)
    rows = [
        delta(
            "INSERT", "good", 1, title='a "quoted" \n é \U0001f600', size=-1.5e300, done=False, extra={"k": [1, None]}
        ),
        delta("INSERT", "bad", 1, title=7, size="7", done="true", extra="text"),
        delta("INSERT", "null", 1, title=None, size=None, done=None, extra=None),
        delta("DELETE", "gone", 1),
    ]
    fill(spark, names, [(arrival, rows)])
    report = merge_table(spark, schema(), {"g": arrival}, names=names)
    assert (report.rows_merged, report.tombstones, report.rejected_values) == (4, 1, 3)
    typed = {row["_row"]: tuple(row[name] for name in TYPES) for row in spark.table(names.state("t")).collect()}
    assert typed == {
        "good": ('a "quoted" \n é \U0001f600', -1.5e300, False, '{"k":[1,null]}'),
        "bad": (None, None, None, '"text"'),
        "null": (None, None, None, None),
        "gone": (None, None, None, None),
    }
    cells = spark.table(names.state("t")).where("_row = 'bad'").toArrow()["_cells"].to_pylist()[0]
    assert {name: cell["value"] for name, cell in cells} == {
        "title": "7",
        "size": '"7"',
        "done": '"true"',
        "extra": '"text"',
    }
    assert rejected(spark, names) == {
        ("title", "string", "7"),
        ("size", "number", '"7"'),
        ("done", "boolean", '"true"'),
    }
    told = [(each.key, each.type) for each in unfit_values(spark, "t", names)]
    assert told == [("bad done", "boolean"), ("bad size", "number"), ("bad title", "string")]
    (mended,) = arrivals(FIRST, 1, start=60)
    fill(spark, names, [(mended, [delta("UPDATE", "bad", 2, title="seven", size=7)])])
    report = merge_table(spark, schema(), {"g": mended}, names=names)
    assert rejected(spark, names) == {("done", "boolean", '"true"')}


def test_a_deleted_row_stays_in_the_state_table_with_its_tombstone(spark, names):
    first, second, third = arrivals(FIRST, 3)
    told = {"table": "t", "columns": [{"name": "title", "type": "string"}], "sourceTable": "t_there"}
    fill(spark, names, [(first, [delta("INSERT", "r", 5, title="x"), delta("INSERT", "kept", 5, title="y")])])
    fill(spark, names, [(second, [delta("DELETE", "r", 7, client="b")])], gateway="g")
    fill(spark, names, [(second, [delta("INSERT", "r", 5, title="of another")])], gateway="other")
    upto = {"g": second, "other": second}
    for soft in (True, False):
        merge_table(spark, parse_schema({**told, "softDelete": soft}), upto, rebuild=True, names=names)
        rows = spark.table(names.state("t")).where("_gateway = 'g'").collect()
        gone = {row["_row"]: (row["_gone"], row["_tombstone"], row["title"]) for row in rows}
        assert gone == {"r": (True, (7, "b"), None), "kept": (False, None, "y")}
    assert [row["title"] for row in spark.table(names.state("t")).where("_gateway = 'other'").collect()] == [
        "of another"
    ]
    assert not spark.catalog.tableExists(names.state("t_there"))
    fill(spark, names, [(third, [delta("INSERT", "r", 9, title="again")])])
    merge_table(spark, schema({"title": "string"}), {"g": third}, names=names)
    (row,) = spark.table(names.state("t")).where("_gateway = 'g' AND _row = 'r'").collect()
    assert (row["_gone"], row["title"]) == (False, "again")


def rejected(spark, names):
    """What of row `bad` is in the table of values that do not fit."""
    rows = spark.table(names.rejected).collect()
    assert {(row["gateway"], row["table_name"], row["row_id"]) for row in rows} == {("g", "t", "bad")}
    return {(row["column_name"], row["type"], row["value"]) for row in rows}


def test_a_contract_decides_about_columns_registered_later(spark, names):
    early, late = arrivals(FIRST, 2)
    fill(spark, names, [(early, [delta("INSERT", "r", 1, title="t", added=3)])])
    merge_table(spark, schema({"title": "string"}), {"g": early}, names=names)
    fill(spark, names, [(late, [delta("UPDATE", "r", 2, title="u")])])
    grown = schema({"title": "string", "added": "number"})
    with pytest.raises(SchemaError, match="columns added, which its state table lacks, and its contract is freeze"):
        merge_table(spark, grown, {"g": late}, names=names, contract="freeze")
    merge_table(spark, grown, {"g": late}, names=names, contract="discard")
    row = spark.table(names.state("t")).collect()[0]
    assert (row["title"], "added" in row.asDict()) == ("u", False)
    assert dict(row["_cells"])["added"]["value"] == "3"


def test_a_new_column_types_values_that_were_merged_before(spark, names):
    early, late = arrivals(FIRST, 2)
    fill(spark, names, [(early, [delta("INSERT", "r", 1, title="t", added=3)])])
    merge_table(spark, schema({"title": "string"}), {"g": early}, names=names)
    fill(spark, names, [(late, [delta("UPDATE", "r", 2, title="u")])])
    grown = schema({"title": "string", "added": "number"})
    merge_table(spark, grown, {"g": early}, names=names)
    merge_table(spark, schema({"title": "string"}), {"g": late}, names=names)
    row = spark.table(names.state("t")).collect()[0]
    assert (row["title"], row["added"]) == ("u", 3.0)
    with pytest.raises(SchemaError, match="only in case"):
        ensure_state(spark, schema(table="T"), names)


def test_gateways_that_spell_a_column_differently_share_a_table(spark, names):
    """The joined schema has both spellings, which a table of the lake cannot have."""
    early, late = arrivals(FIRST, 2)
    fill(spark, names, [(early, [delta("INSERT", "r", 1, Title="t")])], "one")
    fill(spark, names, [(early, [delta("INSERT", "r", 1, title="u")])], "two")
    both = join_schemas(schema({"Title": "string"}), schema({"title": "string"}))
    merge_table(spark, both, {"one": early, "two": early}, names=names)
    fill(spark, names, [(late, [delta("UPDATE", "r", 2, Size=3)])], "one")
    grown = join_schemas(schema({"Title": "string", "Size": "number"}), schema({"title": "string", "size": "number"}))
    merge_table(spark, grown, {"one": late, "two": early}, names=names)
    rows = {row["_gateway"]: row for row in spark.table(names.state("t")).collect()}
    assert [field for field in spark.table(names.state("t")).columns if not field.startswith("_")] == ["Title", "Size"]
    assert (rows["one"]["Title"], rows["one"]["Size"], rows["two"]["Title"]) == ("t", 3.0, None)
    assert dict(rows["two"]["_cells"])["title"]["value"] == '"u"'


def test_an_interrupted_schema_change_is_completed_without_a_new_delta(spark, names):
    (early,) = arrivals(FIRST, 1)
    fill(spark, names, [(early, [delta("INSERT", "r", 1, title="t", added=3)])])
    merge_table(spark, schema({"title": "string"}), {"g": early}, names=names)
    grown = schema({"title": "string", "added": "number"})
    ensure_state(spark, grown, names)  # and the run is killed
    merge_table(spark, grown, {"g": early}, names=names)
    assert spark.table(names.state("t")).collect()[0]["added"] == 3.0
    assert not ensure_state(spark, grown, names).has_new_columns


def test_a_schema_with_another_type_keeps_the_type_of_the_lake(spark, names):
    early, late = arrivals(FIRST, 2)
    fill(spark, names, [(early, [delta("INSERT", "good", 1, size=3)])])
    merge_table(spark, schema({"size": "number"}), {"g": early}, names=names)
    fill(spark, names, [(late, [delta("INSERT", "bad", 2, size="large"), delta("INSERT", "new", 3, size=4)])])
    report = merge_table(spark, schema({"size": "string"}), {"g": late}, names=names)
    assert report.rejected_values == 1
    rows = {row["_row"]: row for row in spark.table(names.state("t")).collect()}
    assert {name: row["size"] for name, row in rows.items()} == {"good": 3.0, "bad": None, "new": 4.0}
    assert dict(rows["bad"]["_cells"])["size"]["value"] == '"large"'
    assert rejected(spark, names) == {("size", "number", '"large"')}
    assert dict(ensure_state(spark, schema({"SIZE": "string"}), names).columns) == {"size": "number"}


def test_a_merge_without_deltas_creates_an_empty_table_and_no_snapshot(spark, names):
    report = merge_table(spark, schema(), {}, names=names)
    assert (report.deltas_in, report.snapshot_id, report.marks) == (0, None, {})
    assert merge_table(spark, schema(), {"g": arrivals(FIRST, 1)[0]}, names=names).snapshot_id is None
