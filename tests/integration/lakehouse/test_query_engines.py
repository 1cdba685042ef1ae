"""DuckDB, Spark and SQLite return the same result for a statement; SQLite's tables share no code with LakeSync."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
from dataclasses import dataclass, field

import pytest

from lakehouse.checkpoints.checkpoint import make_checkpoint
from lakehouse.history.flush import flush_backlog
from lakehouse.sessions import session
from lakehouse.spark_query import query_in_session
from lakehouse.table_definitions import LakeNames
from lakehouse.tables.merging import merge_table
from lakesync.analysis.as_of import AsOf
from lakesync.analysis.query import query as on_duckdb
from lakesync.config.sections import DeclaredGateway
from lakesync.engine import Engine
from lakesync.model.delta import delta_id
from lakesync.model.errors import ValidationError
from lakesync.model.schema import Column, TableSchema
from lakesync.model.types import ColumnValue, RowDelta, SyncPush
from lakesync.staging import open_store
from tests.integration.gateway_support import wall_ms

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine

TYPED = {
    "tasks": {"title": "string", "size": "number", "done": "boolean", "extra": "json"},
    "pieces": {"hlc": "number", "columns": "string", "row_state": "json"},
}
"""Columns that get a schema during the test. Tables that are not listed never have one."""

VALUES = {
    "tasks": {
        "title": ["x", 'q"\\\n', "é\U0001f600", "", None, 3],
        "size": [1, -2.5, 7, 0, None, "7"],
        "done": [True, False, None, "true"],
        "extra": [{"b": 1, "a": [1, None]}, [], "text", 5, None],
        "note": ["n", "m", None],
        "mixed": [1, "one", None, {"k": True}],
        "weight": [1.5, -3, None],
        "open": [True, False],
        "void": [None],
    },
    "waiting": {"pieces": ["p", "q"], "value": [1, 2, 3], "name": [True, "t"], "waiting": [1, None]},
    "pieces": {"hlc": [1, 2], "columns": ["c"], "row_state": [{"k": 1}], "touched": [4, "four"]},
    "deltas": {"op": ["their own"], "arrival": [1, 2]},
    "held": {"scanned": [1]},
    "made_1": {"_cells": [1], "texts": ["t"]},
}


@dataclass
class History:
    """Random pushes as plain tuples, in order of arrival."""

    engine: Engine
    rng: random.Random
    start: int
    pushed: list[tuple] = field(default_factory=list)
    """`(gateway, arrival, op, table, row, client, hlc, {column: value})`."""

    def push(self, gateway, table, count=6, columns=None):
        rng, seen = self.rng, {each[:1] + each[2:7] for each in self.pushed}
        client, deltas, added = rng.choice("abc"), [], []
        for _ in range(count):
            op = rng.choices(["INSERT", "UPDATE", "DELETE"], [4, 6, 1])[0]
            row, hlc = f"row-{rng.randint(1, 9)}", self.start + rng.randint(1, 10_000)
            known = columns or sorted(VALUES[table])
            names = [] if op == "DELETE" else rng.sample(known, rng.randint(1, len(known)))
            values = {name: rng.choice(VALUES[table][name]) for name in names}
            cells = tuple(ColumnValue.of(name, value) for name, value in values.items())
            identity = delta_id(client_id=client, hlc=hlc, table=table, row_id=row, columns=cells)
            if (gateway, op, table, row, client, hlc) in seen:
                continue
            deltas.append(RowDelta(op, table, row, client, cells, hlc, identity))
            added.append((op, table, row, client, hlc, values))
        self.engine.gateway(gateway).handle_push(SyncPush(client, tuple(deltas)))
        arrival = self.engine.store.cut_point(gateway).arrival
        self.pushed += [(gateway, arrival, *each) for each in added]
        return arrival


def text_of(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def reduced(pushed, table, gateways):
    """Return each visible row of a table with its last arrival and live values, by the promises M1 to M3."""
    rows = {}
    for gateway, arrival, op, name, row, client, hlc, values in pushed:
        if name != table or gateway not in gateways:
            continue
        state = rows.setdefault((gateway, row), {"arrival": 0, "dead": (), "born": (), "cells": {}})
        stamp = (hlc, client)
        state["arrival"] = max(state["arrival"], arrival)
        if op == "DELETE":
            state["dead"] = max(state["dead"], stamp)
            continue
        if op == "INSERT":
            state["born"] = max(state["born"], stamp)
        for column, value in values.items():
            cell = (stamp, text_of(value).encode(), value)
            if column not in state["cells"] or cell[:2] > state["cells"][column][:2]:
                state["cells"][column] = cell
    visible = {}
    for key, state in rows.items():
        live = {column: cell[2] for column, cell in state["cells"].items() if cell[0] > state["dead"]}
        if live or state["born"] > state["dead"]:
            visible[key] = (state["arrival"], live)
    return visible


def fits(value, kind):
    if kind == "json" or value is None:
        return True
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"string": isinstance(value, str), "number": is_number, "boolean": isinstance(value, bool)}[kind]


def as_column(value, kind):
    if value is None or not fits(value, kind):
        return None
    return text_of(value) if kind == "json" else value


def kinds_of(table, visible):
    """Return the type of each column: from its schema, else the type that all its live values fit."""
    found = dict(TYPED.get(table, {}))
    live = [values for _, values in visible.values()]
    for column in sorted({name for values in live for name in values} - found.keys()):
        values = [each[column] for each in live if column in each]
        found[column] = next(
            kind for kind in ("string", "boolean", "number", "json") if all(fits(value, kind) for value in values)
        )
    return {column: kind for column, kind in found.items() if column != "_cells"}  # the lake's own name


def in_sqlite(pushed, namespaces):
    """Create the tables of a history in SQLite, under their names in the lake."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE deltas (gateway, arrival, op, table_name, row_id, client_id, hlc)")
    database.executemany("INSERT INTO deltas VALUES (?, ?, ?, ?, ?, ?, ?)", [each[:7] for each in pushed])
    for namespace, gateways in namespaces.items():
        database.execute(f"ATTACH ':memory:' AS {namespace}")
        for table in VALUES:
            visible = reduced(pushed, table, gateways)
            kinds = kinds_of(table, visible)
            names = ["_gateway", "_row", "_arrival", *kinds]
            rows = [
                (*key, arrival, *(as_column(values.get(column), kind) for column, kind in kinds.items()))
                for key, (arrival, values) in visible.items()
            ]
            places = [namespace, "main"] if namespace == next(iter(namespaces)) and table != "deltas" else [namespace]
            for place in places:
                database.execute(f"CREATE TABLE {place}.{table} ({', '.join(names)})")
                database.executemany(f"INSERT INTO {place}.{table} VALUES ({', '.join('?' * len(names))})", rows)
    return database


@dataclass
class Place:
    config: object
    history: History
    moments: list[int]
    """Arrivals in each state: before any schema, merged, flushed but not merged, and unflushed."""
    namespaces: dict[str, set[str]]
    spark: object

    def answer(self, engine, sql, as_of=None):
        return (
            on_duckdb(self.config, sql, as_of)
            if engine == "duckdb"
            else query_in_session(self.spark, self.config, sql, as_of)
        )

    def statements(self):
        shared, apart = self.namespaces
        return [
            "SELECT * FROM tasks",
            f"SELECT * FROM {apart}.tasks",
            "SELECT _row, note FROM tasks WHERE _gateway = 'shop' AND note = 'n'",
            "SELECT _row, mixed, weight FROM tasks WHERE _row IN ('row-1', 'row-2')",
            "SELECT _gateway, count(*) AS n, sum(size) AS s, sum(weight) AS w FROM tasks WHERE done GROUP BY _gateway",
            "SELECT * FROM waiting",
            "SELECT pieces, waiting FROM waiting",
            "SELECT * FROM pieces WHERE hlc > 1",
            "SELECT w.value, p.columns, p.touched FROM waiting w JOIN pieces AS p USING (_row, _gateway)",
            "WITH pieces AS (SELECT value AS v FROM waiting) SELECT v, count(*) AS n FROM pieces GROUP BY v",
            "SELECT held.scanned FROM held UNION ALL SELECT count(*) FROM made_1",
            "SELECT * FROM made_1",
            f"SELECT {shared}.deltas.op, arrival FROM {shared}.deltas WHERE arrival = 1",
            "SELECT table_name, op, count(*) AS n FROM deltas WHERE gateway <> 'other' GROUP BY table_name, op",
        ]


@pytest.fixture(scope="module")
def place(spark_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    suffix = folder.name.replace("-", "_")
    shared, apart = f"tab_{suffix}", f"ap_{suffix}"
    url = f"sqlite://{folder / 'staging'}"
    config = (
        spark_server["config"]
        .replace(
            lake={"system_namespace": f"sys_{suffix}", "namespace": shared},
            staging={"url": url},
        )
        .model_copy(update={"gateways": {"apart": DeclaredGateway(namespace=apart)}})
    )
    names = LakeNames("lake", f"sys_{suffix}", shared)
    names_apart = LakeNames("lake", f"sys_{suffix}", apart, is_shared=False)
    engine = Engine(open_store(url, wall_ms), wall_ms)
    engine.open()
    history = History(engine, random.Random(11), wall_ms() << 16)
    schemas = {
        table: TableSchema(table, tuple(Column(name, kind) for name, kind in columns.items()))
        for table, columns in TYPED.items()
    }

    def pushes():
        history.push("apart", "tasks")
        return max(history.push(gateway, table) for table in VALUES for gateway in ("shop", "other"))

    def merge(schema, gateways=("shop", "other"), where=names):
        merge_table(spark, schema, {each: engine.store.cut_point(each).arrival for each in gateways}, names=where)

    moments = [pushes()]
    with session(config) as spark:
        flush_backlog(spark, engine.store, names=names)
        bare = [TableSchema(table, ()) for table in VALUES if table != "held"]
        make_checkpoint(
            spark, engine.store, engine.store.cut_point("shop"), bare, directory_uri=folder.as_uri(), names=names
        )
        merge(TableSchema("waiting", ()))
        moments.append(pushes())
        flush_backlog(spark, engine.store, names=names)
        for table in VALUES:
            if table != "held":  # that no merge has processed
                merge(schemas.get(table, TableSchema(table, ())))
        merge(schemas["tasks"], ["apart"], names_apart)
        moments.append(pushes())
        flush_backlog(spark, engine.store, names=names)
        moments.append(pushes())
        yield Place(config, history, moments, {shared: {"shop", "other"}, apart: {"apart"}}, spark)
    engine.close()


def rows_of(found):
    """Return rows as sorted dictionaries, with booleans as SQLite has them and comparable numbers."""
    plain = [{name: _plain(value) for name, value in row.items()} for row in found]
    return sorted(plain, key=lambda row: str(sorted((name, str(value)) for name, value in row.items())))


def _plain(value):
    return float(value) if isinstance(value, bool | int | float) else value


def expected(database, sql):
    cursor = database.execute(sql)
    return rows_of(dict(zip([each[0] for each in cursor.description], row, strict=True)) for row in cursor)


@pytest.mark.parametrize(
    ("engine", "when", "step"), [*(("duckdb", when, 1) for when in range(5)), ("spark", 0, 4), ("spark", 4, 1)]
)
def test_every_engine_returns_the_merge_of_all_pushes(place, engine, when, step):
    moment = place.moments[when] if when < len(place.moments) else None
    pushed = [each for each in place.history.pushed if moment is None or each[1] <= moment]
    as_of = None if moment is None else AsOf(arrival=moment)
    with contextlib.closing(in_sqlite(pushed, place.namespaces)) as database:
        for sql in place.statements()[::step]:
            found = rows_of(place.answer(engine, sql, as_of).to_pylist())
            assert (sql, found) == (sql, expected(database, sql))


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
@pytest.mark.parametrize(
    ("sql", "better"),
    [
        ("SELECT titel FROM tasks", "no column 'titel' in tasks; did you mean 'title'"),
        ("SELECT t.weigth FROM tasks t", "no column 'weigth' in tasks; did you mean 'weight'"),
        ("SELECT arival FROM deltas", "no column 'arival' in deltas; did you mean 'arrival'"),
        (
            "SELECT zzz FROM waiting",
            "no column 'zzz' in waiting; known columns: _arrival, _gateway, _row, name, pieces",
        ),
    ],
)
def test_a_misspelt_column_is_reported_with_a_suggestion(place, engine, sql, better):
    with pytest.raises(ValidationError, match=better):
        place.answer(engine, sql)
