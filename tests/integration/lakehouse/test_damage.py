"""The audit compares staging's ledger, `deltas`, state tables, checkpoints and destinations; it names damage by day."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import dagster as dg
import msgspec
import pyarrow as pa
import pytest
from pydantic import SecretStr
from pyiceberg.expressions import AlwaysTrue, EqualTo

from lakehouse.schema_snapshot import registered
from lakehouse.table_access import open_table
from lakehouse.table_creation import set_properties
from lakesync.analysis.catalogue import MARKS_PROPERTY
from lakesync.analysis.marks import FollowerMark
from lakesync.config.backends import DeclaredDestination
from lakesync.model.delta import extract_delta
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPush, SyncResponse
from lakesync.wire.frames import encode_checkpoint_frame, read_checkpoint
from lakesync.wire.protobuf import decode_response, encode_response
from lakesync_dagster.definitions import make_definitions
from lakesync_dagster.jobs import assets_to_audit
from tests.dagster_instance import dagster_instance
from tests.integration.gateway_support import SERVICE

pytestmark = [
    pytest.mark.timeout(900),  # Spark's first queries take a minute on a busy machine
    pytest.mark.filterwarnings("ignore:Parquet writer option", "ignore:Merge on read is not yet"),
]

NOON = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
FIRST, SECOND = (f"{NOON - timedelta(days=days):%Y-%m-%d}" for days in (3, 2))
COLUMNS = {"n": "number", "s": "string", "b": "boolean", "j": "json"}
VALUES = {"n": 1e3, "s": 'a "quoted" é \\', "b": False, "j": {"k": [1, None]}}
DELTAS, TODOS = "lake.sys_damage.deltas", "lake.tab_damage.todos"
DESTINATION = "destinations/shop/copy"


class House:
    """A gateway with pushes on two days, a lake, a destination, and Dagster's jobs over them."""

    def __init__(self, serve, spark_config, instance, folder):
        self.folder, self.instance, self.now = folder, instance, NOON - timedelta(days=3)
        self.served = serve(staging=f"sqlite://{folder}/staging", wall=lambda: int(self.now.timestamp() * 1000))
        self.gateway = self.served.engine.gateway("shop")
        columns = [{"name": name, "type": kind} for name, kind in COLUMNS.items()]
        for table in ("todos", "notes"):
            self.gateway.register_schema(parse_schema({"table": table, "columns": columns}))
        config = spark_config.replace(
            lake={"system_namespace": "sys_damage", "namespace": "tab_damage", "checkpoints": str(folder / "frames")},
            gateway={"url": self.served.url},
            service_token=SecretStr(SERVICE),
            dagster={"partitions_start": FIRST},
        )
        self.copy = folder / "copy.db"
        self.config = config.model_copy(
            update={
                "adapters": {"copy": f"sqlite://{self.copy}"},
                "destinations": {"shop": DeclaredDestination(to="copy")},
            }
        )
        self.definitions = make_definitions(self.config, registered(self.served.engine.store))
        for rows in (range(6), range(6, 9)):
            self.push("todos", rows)
            self.push("notes", rows)
            self.now += timedelta(days=1)
        job = dg.define_asset_job("copy", selection=dg.AssetSelection.assets(["destinations", "shop", "copy"]))
        copying = dg.Definitions.merge(self.definitions, dg.Definitions(jobs=[job])).resolve_job_def("copy")
        assert self.run(self.definitions.resolve_job_def("flush"), **{"lakesync/requested_by": "flush_sensor"}).success
        assert self.run(copying).success

    def push(self, table, rows):
        now = int(self.now.timestamp() * 1000) << 16
        deltas = [
            extract_delta(None, {**VALUES, "n": row}, table=table, row_id=f"r{row}", client_id="c", hlc=now + row)
            for row in rows
        ]
        self.gateway.handle_push(SyncPush("c", tuple(deltas)))

    def run(self, job, **tags):
        span = {"dagster/asset_partition_range_start": FIRST, "dagster/asset_partition_range_end": SECOND}
        return job.execute_in_process(instance=self.instance, tags={**span, **tags}, raise_on_error=False)

    def audit(self):
        """Every check that fails: its asset, name and description."""
        job = self.definitions.resolve_job_def("audit")
        run = job.execute_in_process(instance=self.instance, raise_on_error=False)
        found = run.get_asset_check_evaluations()
        assert len(found) == len(job.asset_layer.asset_graph.asset_check_keys)
        # nothing depends on a destination's check, so it does not block and the run succeeds
        blocking = [one for one in found if one.blocking and one.severity is dg.AssetCheckSeverity.ERROR]
        assert run.success == all(one.passed for one in blocking)
        return {
            f"{one.asset_key.to_user_string()} {one.check_name}": one.description for one in found if not one.passed
        }

    def unaudited(self):
        """The assets that the nightly audit would check."""
        store = self.served.engine.store
        return assets_to_audit(self.config, registered(store), store)

    def frames(self, table):
        """The frame files of a table's checkpoint."""
        checkpoint = self.served.engine.store.newest_checkpoint("shop")
        (part,) = [part for part in checkpoint.tables if part.table == table]
        return [Path(urlsplit(uri).path) for uri in part.frames]


@pytest.fixture(scope="module")
def house(serve, spark_server, tmp_path_factory):
    with dagster_instance() as instance:
        yield House(serve, spark_server["config"], instance, tmp_path_factory.mktemp("damage"))


@contextmanager
def kept(*files):
    """Restore files at the end to their present content."""
    contents = {file: file.read_bytes() for file in files}
    try:
        yield contents
    finally:
        for file, content in contents.items():
            file.write_bytes(content)


@contextmanager
def sql(file, *statements):
    """Execute statements in a SQLite database; restore its tables at the end."""

    def table_of(statement):
        return statement.replace("DELETE FROM", "UPDATE").split()[1]

    with closing(sqlite3.connect(file)) as db:
        db.create_function("lakesync_checksum", 1, lambda _: 0, deterministic=True)
        held = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in map(table_of, statements)}
        for statement in statements:
            assert db.execute(statement).rowcount > 0, statement
        db.commit()
        try:
            yield
        finally:
            for name, rows in held.items():
                db.execute(f"DELETE FROM {name}")
                places = ", ".join("?" * len(rows[0]))
                db.executemany(f"INSERT INTO {name} VALUES ({places})", rows)
            db.commit()


@contextmanager
def rewritten(spark, name, where, **changes):
    """Change rows of a lake table with pyiceberg, or delete them if no values are given."""
    with open_table(spark, name) as table:
        before = table.current_snapshot().snapshot_id
        if changes:
            rows = table.scan(row_filter=where).to_arrow()
            assert rows.num_rows
            for column, change in changes.items():
                place = rows.schema.get_field_index(column)
                values = [change(value) for value in rows.column(column).to_pylist()]
                rows = rows.set_column(place, rows.schema.field(place), pa.array(values, rows.schema.field(place).type))
            table.overwrite(rows, overwrite_filter=where)
        else:
            table.delete(where)
    try:
        yield
    finally:
        catalogue, _, rest = name.partition(".")
        spark.sql(f"CALL {catalogue}.system.rollback_to_snapshot('{rest}', {before})")


@contextmanager
def lost_file(spark, name, day=None):
    """Delete a data file of a table from the disk."""
    with open_table(spark, name) as table:
        paths = [Path(urlsplit(path).path) for path in table.inspect.files()["file_path"].to_pylist()]
    path = next(path for path in paths if day is None or f"day={day}" in str(path))
    with kept(path):
        path.unlink()
        yield


def less_one_row(content):
    """Frames without the row `r1`."""
    parts = []
    with pa.BufferReader(content) as stream:
        for message in read_checkpoint(stream):
            response = decode_response(message)
            deltas = tuple(delta for delta in response.deltas if delta.row_id != "r1")
            parts.append(encode_checkpoint_frame(encode_response(SyncResponse(deltas, response.server_hlc))))
    return b"".join(parts)


@contextmanager
def frames(house, change):
    """Replace the contents of frame files; None deletes a file."""
    with kept(*house.frames("todos")) as contents:
        for file, content in contents.items():
            if change is None:
                file.unlink()
            else:
                file.write_bytes(change(content))
        yield


def ledger(house):
    return house.folder / "staging" / "log.db"


TODOS_CHECK, COPY_CHECK = "tables/todos state_equals_history", f"{DESTINATION} equals_lake"
R1, OF_R1 = EqualTo("_row", "r1"), EqualTo("row_id", "r1")  # type: ignore[call-arg]
DAMAGES = {
    "ledger_altered": (
        lambda house, _: sql(ledger(house), f"UPDATE ledger SET flushed_count = 3 WHERE day = '{FIRST}'"),
        {"deltas ledger_equals_lake": f"1 found: shop {FIRST}"},
    ),
    "ledger_row": (
        lambda house, _: sql(ledger(house), f"DELETE FROM ledger WHERE day = '{SECOND}'"),
        {"deltas ledger_equals_lake": f"1 found: shop {SECOND}"},
    ),
    "ledger_emptied": (
        lambda house, _: sql(ledger(house), "DELETE FROM ledger"),
        {"deltas ledger_equals_lake": f"2 found: shop {FIRST}, shop {SECOND}"},
    ),
    "deltas_altered": (
        lambda _, spark: rewritten(
            spark, DELTAS, OF_R1, columns=lambda held: [(name, "7" if name == "n" else text) for name, text in held]
        ),
        {
            "deltas ids_equal_contents": f"2 found: shop {FIRST}",
            TODOS_CHECK: f"1 found: shop {FIRST}",
            "tables/notes state_equals_history": f"1 found: shop {FIRST}",
            COPY_CHECK: f"Rebuild the days {FIRST}:",
        },
    ),
    "deltas_row": (
        lambda _, spark: rewritten(spark, DELTAS, OF_R1),
        {
            "deltas ledger_equals_lake": f"1 found: shop {FIRST}",
            TODOS_CHECK: f"1 found: shop {FIRST}",
            COPY_CHECK: f"Rebuild the days {FIRST}:",
        },
    ),
    "deltas_emptied": (
        lambda _, spark: rewritten(spark, DELTAS, AlwaysTrue()),
        {
            "deltas ledger_equals_lake": f"2 found: shop {FIRST}, shop {SECOND}",
            TODOS_CHECK: f"2 found: shop {FIRST}, shop {SECOND}",
        },
    ),
    "deltas_file": (
        lambda _, spark: lost_file(spark, DELTAS, SECOND),
        dict.fromkeys(("deltas ledger_equals_lake", TODOS_CHECK, COPY_CHECK), f"day={SECOND}"),
    ),
    "state_cell": (
        lambda _, spark: rewritten(
            spark,
            TODOS,
            R1,
            _cells=lambda held: [(name, {**cell, "value": "7"} if name == "n" else cell) for name, cell in held],
        ),
        {TODOS_CHECK: f"1 found: shop {FIRST}"},
    ),
    "state_number": (
        lambda _, spark: rewritten(spark, TODOS, R1, n=lambda _: 7.0),
        {TODOS_CHECK: f"1 found: shop {FIRST}"},
    ),
    "state_string": (
        lambda _, spark: rewritten(spark, TODOS, EqualTo("_row", "r7"), s=lambda held: held + " "),  # type: ignore[call-arg]
        {TODOS_CHECK: f"1 found: shop {SECOND}"},
    ),
    "state_boolean": (
        lambda _, spark: rewritten(spark, TODOS, R1, b=lambda held: not held),
        {TODOS_CHECK: f"1 found: shop {FIRST}"},
    ),
    "state_null": (
        lambda _, spark: rewritten(spark, TODOS, R1, j=lambda _: None),
        {TODOS_CHECK: f"1 found: shop {FIRST}"},
    ),
    "state_row": (lambda _, spark: rewritten(spark, TODOS, R1), {TODOS_CHECK: f"1 found: shop {FIRST}"}),
    "state_emptied": (
        lambda _, spark: rewritten(spark, TODOS, AlwaysTrue()),
        {TODOS_CHECK: f"2 found: shop {FIRST}, shop {SECOND}"},
    ),
    "state_file": (
        lambda _, spark: lost_file(spark, TODOS),
        {
            TODOS_CHECK: "It could not be read",
            "tables/todos row_once": "It could not be read",
            "checkpoint checkpoint_equals_snapshots": "1 found: shop todos",
        },
    ),
    "checkpoint_altered": (
        lambda house, _: frames(house, lambda held: held.replace(b"quoted", b"quoned")),
        {"checkpoint checkpoint_equals_snapshots": f"2 found: shop todos {FIRST}, shop todos {SECOND}"},
    ),
    "checkpoint_row": (
        lambda house, _: frames(house, less_one_row),
        {"checkpoint checkpoint_equals_snapshots": f"shop todos {FIRST}"},
    ),
    "checkpoint_emptied": (
        lambda house, _: frames(house, lambda _: b""),
        {"checkpoint checkpoint_equals_snapshots": f"shop todos {FIRST}, shop todos {SECOND}"},
    ),
    "checkpoint_file": (lambda house, _: frames(house, None), {"checkpoint checkpoint_equals_snapshots": "shop todos"}),
    "destination_typed": (
        lambda house, _: sql(house.copy, "UPDATE todos SET n = 7 WHERE row_id = 'r1'"),
        {COPY_CHECK: f"todos on {FIRST}: 1 altered rows of 0. Rebuild the days {FIRST}:"},
    ),
    "destination_row": (
        lambda house, _: sql(house.copy, "DELETE FROM todos WHERE row_id = 'r7'"),
        {COPY_CHECK: f"todos on {SECOND}: 2 rows of 3"},
    ),
    "destination_delta": (
        lambda house, _: sql(house.copy, "UPDATE lakesync_deltas SET columns = '{}' WHERE row_id = 'r1'"),
        {COPY_CHECK: f"todos on {FIRST}: other contents"},
    ),
    "destination_emptied": (
        lambda house, _: sql(house.copy, "DELETE FROM todos"),
        {COPY_CHECK: f"Rebuild the days {FIRST}, {SECOND}:"},
    ),
}
ONE_EACH = ("ledger_altered", "deltas_altered", "state_string", "checkpoint_altered", "destination_typed")
"""One kind of damage for each place."""


def test_the_audit_reports_each_damaged_part_and_no_sound_one(house, spark):
    assert sorted(house.unaudited()) == ["checkpoint", "deltas", DESTINATION, "tables/notes", "tables/todos"]
    assert house.audit() == {}
    assert house.unaudited() == []
    expected = {check: words for damage in ONE_EACH for check, words in DAMAGES[damage][1].items()}
    expected[TODOS_CHECK] = f"2 found: shop {FIRST}, shop {SECOND}"  # because a value was changed on both sides
    with ExitStack() as damaged:
        for damage in ONE_EACH:
            damaged.enter_context(DAMAGES[damage][0](house, spark))
        found = house.audit()
        assert sorted(house.unaudited()) == ["deltas", "tables/todos"], "changed since, and not checked yet"
    for check, words in expected.items():
        assert words in found[check], (check, found)


@contextmanager
def marks_put_back(house, spark):
    """Reset the marks of a state table and of the destination to the beginning."""
    store, name = house.served.engine.store, DESTINATION
    with open_table(spark, TODOS) as table:
        merged = table.properties[MARKS_PROPERTY]
    followed = store.marks()[name]
    nothing = msgspec.structs.replace(msgspec.json.decode(followed, type=FollowerMark), streams={})
    spark.sql(f"ALTER TABLE {TODOS} UNSET TBLPROPERTIES ('{MARKS_PROPERTY}')")
    store.put_mark(name, msgspec.json.encode(nothing).decode())
    try:
        yield
    finally:
        set_properties(spark, TODOS, {MARKS_PROPERTY: merged})
        store.put_mark(name, followed)


def test_the_audit_reports_parts_whose_marks_are_behind(house, spark):
    with marks_put_back(house, spark):
        found = house.audit()
    late = f"late: {FIRST}, {SECOND}"
    assert found == {"tables/todos fresh": late, f"{DESTINATION} fresh": late}, "nothing of the repaired damage"


@pytest.mark.deep
@pytest.mark.parametrize("damage", DAMAGES)
def test_the_audit_reports_each_damage_with_its_day(house, spark, damage):
    cause, expected = DAMAGES[damage]
    with cause(house, spark):
        found = house.audit()
    for check, words in expected.items():
        assert words in found[check], (check, found)
    if len(expected) == 1:
        others = {check for check in found if check.endswith(" fresh")} | {"tables/todos state_equals_merge"}
        assert found.keys() - others == expected.keys()
