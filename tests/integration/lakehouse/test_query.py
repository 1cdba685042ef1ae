"""Queries of the lake, now and as of a time, equal the merge in Python, unflushed deltas included."""

import json
import os
import random
import subprocess
import sys
from collections import Counter

import msgspec
import pytest
from typer.testing import CliRunner

from lakehouse.checkpoints.checkpoint import make_checkpoint
from lakehouse.history.flush import flush_backlog
from lakehouse.sessions import session
from lakehouse.spark_query import query as on_spark
from lakehouse.table_definitions import LakeNames
from lakehouse.tables.merging import merge_table
from lakesync.analysis.as_of import AsOf, format_hlc
from lakesync.analysis.provenance import row_history
from lakesync.analysis.query import query
from lakesync.cli.app import app
from lakesync.cli.local.query import rows_of
from lakesync.config import load
from lakesync.engine import Engine
from lakesync.model.delta import delta_id
from lakesync.model.errors import LakeUnavailableError, NotFoundError, ValidationError
from lakesync.model.merge import RowState
from lakesync.model.schema import parse_schema
from lakesync.model.types import ColumnValue, RowDelta, SyncPush
from lakesync.staging import open_store
from tests.integration.gateway_support import wall_ms

COMMAND = [sys.executable, "-c", "from lakesync.cli import main; main()"]
COLUMNS = {"title": "string", "size": "number", "done": "boolean", "extra": "json"}
VALUES = {
    "title": ["x", 'q"\\\n\u0001', "é\U0001f600", "", None, 3],
    "size": [1, -2.5, 1e300, 0, None, "7"],
    "done": [True, False, None, "true"],
    "extra": [{"k": [1, None]}, [], "text", 5, None],
}

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


class RandomPushes:
    """Random pushes, the arrival of each, and the expected content of every table after each of them."""

    def __init__(self, engine, seed):
        self._engine, self._rng = engine, random.Random(seed)
        self._start = wall_ms() << 16
        self.pushed = []

    def push(self, gateway, count=6, table="tasks"):
        rng = self._rng
        client = rng.choice("abc")
        deltas = []
        for _ in range(count):
            op = rng.choices(["INSERT", "UPDATE", "DELETE"], [4, 6, 1])[0]
            names = [] if op == "DELETE" else rng.sample(list(COLUMNS), rng.randint(1, 3))
            cells = tuple(ColumnValue.of(name, rng.choice(VALUES[name])) for name in names)
            row, hlc = f"row-{rng.randint(1, 14)}", self._start + rng.randint(1, 400)
            identity = delta_id(client_id=client, hlc=hlc, table=table, row_id=row, columns=cells)
            deltas.append(RowDelta(op, table, row, client, cells, hlc, identity))
        known = {each.delta_id for _, _, each in self.pushed}
        self._engine.gateway(gateway).handle_push(SyncPush(client, tuple(deltas)))
        arrival = self._engine.store.cut_point(gateway).arrival
        self.pushed += [(gateway, arrival, each) for each in deltas if each.delta_id not in known]
        return arrival

    def rows(self, upto, table="tasks"):
        states = {}
        for gateway, arrival, each in self.pushed:
            if arrival <= upto and each.table == table:
                states.setdefault((gateway, each.row_id), RowState()).merge(each)
        return {
            key: {name: typed(name, state.values().get(name)) for name in COLUMNS}
            for key, state in states.items()
            if state.visible
        }


def typed(name, raw):
    """Return a value as its typed column has it."""
    value = None if raw is None else msgspec.json.decode(raw)
    if value is None:
        return None
    match COLUMNS[name]:
        case "string":
            return value if isinstance(value, str) else None
        case "number":
            return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "boolean":
            return value if isinstance(value, bool) else None
    return value


def asked(config, moment=None, where=""):
    answer = query(config, f"SELECT * FROM tasks {where}", moment)
    found = {}
    for row in rows_of(answer):
        key = (row["_gateway"], row["_row"])
        assert key not in found
        extra = row["extra"]
        found[key] = {name: row[name] for name in COLUMNS} | {"extra": None if extra is None else json.loads(extra)}
    return found


class Place:
    """A lake with one checkpoint, deltas that are flushed but not merged, and unflushed deltas."""

    def __init__(self, config, pushes, moments, checkpoint):
        self.config, self.pushes, self.moments, self.checkpoint = config, pushes, moments, checkpoint


@pytest.fixture(scope="module")
def place(spark_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("query")
    system, tables = f"sys_{folder.name}", f"tab_{folder.name}"
    url = f"sqlite://{folder / 'staging'}"
    lake = {"system_namespace": system, "namespace": tables}
    config = spark_server["config"].replace(lake=lake, staging={"url": url})
    names = LakeNames("lake", system, tables)
    schema = parse_schema(
        {"table": "tasks", "columns": [{"name": name, "type": kind} for name, kind in COLUMNS.items()]}
    )
    engine = Engine(open_store(url, wall_ms), wall_ms)
    engine.open()
    pushes = RandomPushes(engine, 7)
    moments = [pushes.push(gateway) for gateway in ("shop", "other", "shop", "other", "shop", "shop")]
    with session(config) as spark:
        store = engine.store
        flush_backlog(spark, store, names=names)
        merge_table(spark, schema, {"other": moments[1]}, names=names)
        checkpoint = make_checkpoint(
            spark, store, store.cut_point("shop"), [schema], directory_uri=folder.as_uri(), names=names
        )
        moments += [pushes.push(gateway) for gateway in ("other", "shop", "other")]
        flush_backlog(spark, store, names=names)
    moments += [pushes.push("shop"), pushes.push("other"), pushes.push("shop", 2, "drafts")]
    yield Place(config, pushes, moments, checkpoint)
    engine.close()


def test_a_current_query_returns_every_acknowledged_delta(place):
    assert asked(place.config) == place.pushes.rows(max(place.moments))


def test_a_query_as_of_a_time_returns_the_rows_that_had_arrived(place):
    for moment in place.moments:
        assert asked(place.config, AsOf(arrival=moment)) == place.pushes.rows(moment)
    assert asked(place.config, AsOf(arrival=place.moments[3] - 1)) == place.pushes.rows(place.moments[3] - 1)


def test_a_snapshot_is_read_without_later_deltas(place):
    snapshot = place.checkpoint.tables[0].snapshot_id
    there = asked(place.config, AsOf(snapshot=snapshot), "WHERE _gateway = 'shop'")
    expected = place.pushes.rows(place.checkpoint.arrival)
    assert there == {key: row for key, row in expected.items() if key[0] == "shop"}
    with pytest.raises(NotFoundError, match=r"has the snapshot 5, .* the newest snapshots are [0-9]+ of tasks"):
        asked(place.config, AsOf(snapshot=5))


@pytest.mark.parametrize(
    "where",
    [
        "title = 'x'",
        "size >= 0 AND _gateway = 'other'",
        "_row IN ('row-1', 'row-2')",
        "done AND size < 2 OR title = 'é😀'",
        "title = 3::VARCHAR OR size = '7'",
        "_arrival > 5",
    ],
)
def test_pushed_down_predicates_do_not_change_the_result(place, where):
    everything = query(place.config, f"WITH t AS MATERIALIZED (FROM tasks) SELECT * FROM t WHERE {where}")
    filtered = query(place.config, f"SELECT * FROM tasks WHERE {where}")
    assert sorted(map(str, rows_of(filtered))) == sorted(map(str, rows_of(everything)))


def test_the_history_has_every_delta_once_with_its_batch(place):
    (row,) = rows_of(
        query(
            place.config,
            "SELECT count(*) AS n, count(DISTINCT delta_id) AS ids, count(batch_id) AS flushed, "
            "bool_and(day = CAST(hlc_time(arrival) AS DATE)) AS days FROM deltas",
        )
    )
    pushed = place.pushes.pushed
    waiting = sum(arrival in place.moments[-3:] for _, arrival, _ in pushed)
    assert row == {"n": len(pushed), "ids": len(pushed), "flushed": len(pushed) - waiting, "days": True}
    history = f"lake.{place.config.lake.system_namespace}.deltas"
    counted = f"SELECT count(*) AS n FROM {history} WHERE gateway = 'shop' AND columns['title'] IS NOT NULL"
    expected = [
        each
        for gateway, arrival, each in pushed
        if gateway == "shop" and arrival <= place.moments[7] and any(cell.column == "title" for cell in each.columns)
    ]
    assert list(rows_of(query(place.config, counted, AsOf(arrival=place.moments[7])))) == [{"n": len(expected)}]


def test_a_table_without_a_flush_can_be_queried(place):
    (row,) = rows_of(query(place.config, "SELECT count(*) AS n FROM drafts JOIN tasks USING (_gateway)"))
    assert row["n"]


def test_an_unknown_table_or_column_lists_known_ones(place):
    with pytest.raises(NotFoundError, match="no table 'task' in the lake; known tables: deltas, drafts, tasks"):
        query(place.config, "SELECT * FROM task")
    with pytest.raises(NotFoundError, match=f"the first delta arrived at {format_hlc(place.moments[0])}"):
        query(place.config, "SELECT * FROM tasks", AsOf(arrival=place.moments[0] - 1))
    with pytest.raises(ValidationError, match="no column 'titel' in tasks; did you mean 'title'"):
        query(place.config, "SELECT titel FROM tasks")


def test_the_history_of_a_row_has_every_delta_with_its_outcome(place):
    counts = Counter((gateway, each.row_id) for gateway, _, each in place.pushes.pushed if each.table == "tasks")
    (gateway, row), count = counts.most_common(1)[0]
    found = row_history(place.config, "tasks", row, gateway)
    mine = [each for name, _, each in place.pushes.pushed if (name, each.row_id, each.table) == (gateway, row, "tasks")]
    assert [each.delta_id for each in found] == [each.delta_id for each in mine]
    assert len(found) == count
    live = {cell.column for each in found for cell in each.columns if cell.outcome == "live"}
    state = RowState()
    for each in mine:
        state.merge(each)
    assert live == state.values().keys()
    with pytest.raises(NotFoundError, match="never had a row 'row-99' in gateway 'shop'"):
        row_history(place.config, "tasks", "row-99", "shop")
    with pytest.raises(NotFoundError, match="no table 'task' in the lake; known tables: drafts, tasks"):
        row_history(place.config, "task", row)


def test_the_command_prints_rows_on_stdout(place, monkeypatch):
    for name, value in place.config.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    sql = "SELECT _row, title FROM tasks ORDER BY ALL"
    shown_rows = CliRunner().invoke(app, ["query", sql, "--json"], catch_exceptions=False)
    rows = [json.loads(line) for line in shown_rows.stdout.splitlines()]
    assert len(rows) == len(place.pushes.rows(max(place.moments)))
    early = CliRunner().invoke(app, ["query", sql, "--as-of", str(place.moments[2])], catch_exceptions=False)
    expected = place.pushes.rows(place.moments[2])
    assert all(row_id in early.stdout for _, row_id in expected)
    assert f"{len(expected)} rows" in early.stderr
    row_id = next(iter(expected))[1]
    printed = CliRunner().invoke(app, ["row", "history", "tasks", row_id], catch_exceptions=False)
    assert "outcome" in printed.stdout


def test_spark_returns_the_same_rows(place, monkeypatch, tmp_path):
    history = f"{place.config.lake.system_namespace}.deltas"
    sql = (
        f"WITH d AS (SELECT gateway, max(hlc_time(arrival)) IS NOT NULL AS ever FROM {history} GROUP BY gateway) "
        "SELECT _gateway, _row, title, size, done, ever FROM tasks JOIN d ON gateway = _gateway ORDER BY 1, 2"
    )
    assert on_spark(place.config, sql).to_pylist() == query(place.config, sql).to_pylist()
    with pytest.raises(NotFoundError, match="no table 'task' in the lake; known tables: deltas, drafts, tasks"):
        on_spark(place.config, "SELECT * FROM task")
    for name, value in place.config.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    # As with a running `lakesync up` whose settings name a port: `up.json` has the token.
    for name in ("REMOTE", "TOKEN"):
        monkeypatch.delenv(f"LAKESYNC_SPARK_{name}")
    monkeypatch.setenv("LAKESYNC_DATA_DIR", str(tmp_path))
    up = {"remote": f"sc://localhost:{place.config.spark.port}", "token": place.config.spark.token.get_secret_value()}
    (tmp_path / "up.json").write_text(json.dumps({"spark": up}))
    line = ["query", sql, "--as-of", str(place.moments[3]), "--json"]
    there = [CliRunner().invoke(app, [*line, "--engine", engine]).stdout for engine in ("spark", "duckdb")]
    assert there[0] == there[1] != ""
    snapshot = AsOf(snapshot=place.checkpoint.tables[0].snapshot_id)
    assert on_spark(place.config, sql, snapshot).to_pylist() == query(place.config, sql, snapshot).to_pylist()


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_warnings_of_a_query_go_to_stderr_and_stdout_has_only_the_answer(place, tmp_path, engine):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, warnings\n"
        "warnings.warn('a warning')\n"
        "if 'lakehouse.spark_query' in sys.orig_argv:\n"
        "    print('what a library of Spark writes to stdout')\n"
    )
    settings = {**place.config.environment(), "LAKESYNC_CONFIG": "", "PYTHONPATH": str(tmp_path)}
    sql = "SELECT _row, title, size FROM tasks ORDER BY _row, title NULLS LAST, size NULLS LAST"
    command = [*COMMAND, "query", sql, "--json", "--engine", engine]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == list(rows_of(query(place.config, sql)))
    assert "UserWarning: a warning" in done.stderr
    assert ("what a library of Spark writes to stdout" in done.stderr) == (engine == "spark")


def test_a_folder_without_a_lake_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    with pytest.raises(LakeUnavailableError, match="no Iceberg catalogue"):
        query(load({"data_dir": tmp_path}), "SELECT * FROM tasks")
